/** Where the values of a column are on an axis, from 0 to 1. */
import type { Column, Row } from './table-model.ts';

export type Axis = {
  column: Column;
  ticks: { share: number; text: string }[];
  /** Null: the job has no value, or one that is not finite. */
  place: (row: Row) => number | null;
};

/** More texts than this have labels only at the ends. */
const MAX_TICKS = 12;
/** Positive numbers of a larger ratio, such as learning rates, have a logarithmic scale. */
const LOG_RATIO = 100;

export function toAxis(rows: readonly Row[], column: Column): Axis {
  const values = [...new Set(rows.map(column.read))];
  const texts = values.filter((value) => typeof value === 'string');
  if (texts.length > 0) return textAxis(column, values);
  const numbers = values.filter((value) => Number.isFinite(value)) as number[];
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const isLog = low > 0 && high / low >= LOG_RATIO;
  const scale = isLog ? Math.log : (value: number) => value;
  const unscale = isLog ? Math.exp : (value: number) => value;
  const span = scale(high) - scale(low);
  const shareOf = (value: number) => (span > 0 ? (scale(value) - scale(low)) / span : 0.5);
  // If there are only a few different numbers, such as seeds, each has its own label.
  const isFew = numbers.length <= 6;
  const ticks = isFew
    ? numbers.map((value) => ({ share: shareOf(value), text: column.format(value) }))
    : [0, 0.25, 0.5, 0.75, 1].map((share) => {
        const value = unscale(scale(low) + share * span);
        return { share, text: column.format(Number(value.toPrecision(3))) };
      });
  return {
    column,
    ticks: separate(ticks),
    place: (row) => {
      const value = column.read(row);
      return Number.isFinite(value) ? shareOf(value as number) : null;
    },
  };
}

function textAxis(column: Column, values: (string | number | null)[]): Axis {
  const present = values.filter((value) => value !== null).map(String);
  const sorted = [...new Set(present)].sort((a, b) =>
    a.localeCompare(b, undefined, { numeric: true }),
  );
  const places = new Map(
    sorted.map((text, at) => [text, sorted.length > 1 ? at / (sorted.length - 1) : 0.5] as const),
  );
  const labelled =
    sorted.length <= MAX_TICKS ? sorted : [sorted[0] as string, sorted.at(-1) as string];
  return {
    column,
    ticks: labelled.map((text) => ({ share: places.get(text) as number, text })),
    place: (row) => {
      const value = column.read(row);
      return value === null ? null : (places.get(`${value}`) ?? null);
    },
  };
}

/** Leaves out labels that would cover others. */
function separate(ticks: Axis['ticks']): Axis['ticks'] {
  const kept: Axis['ticks'] = [];
  for (const tick of ticks.toSorted((a, b) => a.share - b.share))
    if (kept.every(({ share, text }) => tick.share - share > 0.05 && text !== tick.text))
      kept.push(tick);
  return kept;
}
