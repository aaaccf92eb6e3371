/**
 * A strict parser of Prometheus' text format 0.0.4: each family has its help and type, followed by all of its samples,
 * without duplicates; names are valid; histogram buckets rise to their count.
 */
export type Sample = { name: string; labels: Record<string, string>; value: number };
export type Family = { name: string; help: string; type: string; samples: Sample[] };

const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;
const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (NaN|[+-]Inf|[-+\d.eE]+)$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)/gy;

export function readExposition(text: string): Map<string, Family> {
  if (!text.endsWith('\n')) throw new Error('the last line has no end');
  const families = new Map<string, Family>();
  const seen = new Set<string>();
  let current: Family | undefined;
  let help: [name: string, text: string] | undefined;
  for (const line of text.split('\n')) {
    if (line === '') continue;
    const [, what, name = '', rest = ''] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
    if (what === 'HELP') {
      help = [name, rest];
      continue;
    }
    if (what === 'TYPE') {
      if (!NAME.test(name) || families.has(name) || help?.[0] !== name || !help[1])
        throw new Error(`a family begins wrongly: ${line}`);
      if (!['counter', 'gauge', 'histogram', 'summary'].includes(rest)) throw new Error(line);
      current = { name, help: help[1], type: rest, samples: [] };
      families.set(name, current);
      continue;
    }
    const [, sample = '', labelText = '', value = ''] = SAMPLE.exec(line) ?? [];
    if (!sample || !current) throw new Error(`this is no sample: ${line}`);
    const suffixes = current.type === 'histogram' ? ['_bucket', '_sum', '_count'] : [''];
    if (!suffixes.some((suffix) => sample === `${current?.name}${suffix}`))
      throw new Error(`${sample} stands under ${current.name}`);
    const labels = labelsOf(labelText);
    const key = `${sample} ${JSON.stringify(Object.entries(labels).sort())}`;
    if (seen.has(key)) throw new Error(`twice: ${line}`);
    seen.add(key);
    current.samples.push({ name: sample, labels, value: Number(value.replace('Inf', 'Infinity')) });
  }
  for (const family of families.values()) demandSound(family);
  return families;
}

function labelsOf(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  let end = 0;
  for (const [all, name = '', value = ''] of text.matchAll(LABEL)) {
    if (name in labels) throw new Error(`a label twice: ${text}`);
    labels[name] = value.replaceAll(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    end += all.length;
  }
  if (end !== text.length) throw new Error(`these are no labels: ${text}`);
  return labels;
}

/** The automatically testable rules of https://prometheus.io/docs/practices/naming. */
function demandSound({ name, type, samples }: Family): void {
  if ((type === 'counter') !== name.endsWith('_total')) throw new Error(`${name} is a ${type}`);
  if (/_(ms|millis|milliseconds|minutes|hours|kb|mb|mib|percent)(_|$)/.test(name))
    throw new Error(`${name} is in no base unit`);
  if (type === 'counter' && samples.some(({ value }) => !(value >= 0))) throw new Error(name);
  if (type !== 'histogram') return;
  const rising = new Map<string, number>();
  for (const { name: sample, labels, value } of samples) {
    const { le, ...own } = labels;
    const key = JSON.stringify(own);
    if (sample.endsWith('_bucket')) {
      if (value < (rising.get(key) ?? 0)) throw new Error(`${name}: ${key} falls at ${le}`);
      rising.set(key, value);
    }
    if (sample.endsWith('_count') && rising.get(key) !== value)
      throw new Error(`${name}: ${key} counts ${value}, and ${rising.get(key)} up to +Inf`);
  }
}
