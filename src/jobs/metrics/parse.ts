/** Parses the lines by which programs report metrics: `::metric::loss=0.215 accuracy=0.91 step=215`. */

/** `step`: null if the line has none, so that the step counts up. */
export type MetricLine = { step: number | null; values: [name: string, value: number][] };

const MARK = '::metric::';
const NAME = /^[A-Za-z_][A-Za-z0-9_./-]{0,99}$/;
/** A line with a longer number is refused and stays in the log, where its author sees it. Otherwise the number would be rounded silently. */
const MAX_NUMBER_LENGTH = 64;
const NUMBER = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i;
const INFINITY = /^([+-]?)inf(?:inity)?$/i;
const STEP = 'step';

export function isMetricName(text: string): boolean {
  return NAME.test(text) && text !== STEP;
}

/** @returns null for any other line, and for a line with a mistake */
export function parseMetricLine(text: string): MetricLine | null {
  if (!text.startsWith(MARK)) return null;
  let step: number | null = null;
  const values = new Map<string, number>();
  for (const part of text.slice(MARK.length).trim().split(/\s+/)) {
    const at = part.indexOf('=');
    const name = part.slice(0, Math.max(at, 0));
    const value = parseNumber(part.slice(at + 1));
    if (value === null || !NAME.test(name) || values.has(name)) return null;
    if (name !== STEP) values.set(name, value);
    else if (step === null && Number.isSafeInteger(value) && value >= 0) step = value;
    else return null;
  }
  return values.size === 0 ? null : { step, values: [...values] };
}

function parseNumber(text: string): number | null {
  if (text.length > MAX_NUMBER_LENGTH) return null;
  if (NUMBER.test(text)) return Number(text);
  if (/^[+-]?nan$/i.test(text)) return Number.NaN;
  const infinity = INFINITY.exec(text);
  if (!infinity) return null;
  return infinity[1] === '-' ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
}
