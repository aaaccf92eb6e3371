/** Colours of jobs by their value in a column. */
import type { Column, Row } from './table-model.ts';

type Scheme = 'light' | 'dark';
/** More values are shades of a range. */
const MAX_CATEGORIES = 10;
/** Apart from each other, also for people who see red and green alike. */
const HUES = [210, 30, 120, 280, 0, 180, 330, 60, 250, 90];

export type ColourScale = {
  of: (row: Row) => string;
  /** The colours and what they mean: all values, or the lowest and the highest. */
  legend: { text: string; colour: string }[];
  isRange: boolean;
};

/** @param column null: a colour for each job */
export function colourRows(
  rows: readonly Row[],
  column: Column | null,
  scheme: Scheme,
): ColourScale {
  const none = scheme === 'dark' ? 'hsl(30 8% 60%)' : 'hsl(30 8% 55%)';
  const categoryColour = (at: number) => toColour(HUES[at % HUES.length] as number, scheme);
  if (!column) {
    const places = new Map(rows.map(({ key }, at) => [key, at]));
    return { of: ({ key }) => categoryColour(places.get(key) ?? 0), legend: [], isRange: false };
  }
  const values = [...new Set(rows.map(column.read))].filter((value) => value !== null);
  const numbers = values.filter((value) => Number.isFinite(value)) as number[];
  if (column.kind === 'metric' || (values.length > MAX_CATEGORIES && numbers.length > 1)) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const shade = (value: number) =>
      // From blue to red.
      toColour(230 - 230 * (high > low ? (value - low) / (high - low) : 0), scheme);
    const of = (row: Row) => {
      const value = column.read(row);
      return Number.isFinite(value) ? shade(value as number) : none;
    };
    const legend = [...new Set([low, high])].map((value) => ({
      text: column.format(value),
      colour: shade(value),
    }));
    return { of, legend: numbers.length > 0 ? legend : [], isRange: true };
  }
  const places = new Map(
    values.sort((a, b) => (a < b ? -1 : 1)).map((value, at) => [value, at] as const),
  );
  return {
    of: (row) => {
      const at = places.get(column.read(row) ?? '');
      return at === undefined ? none : categoryColour(at);
    },
    legend: values.slice(0, MAX_CATEGORIES).map((value, at) => ({
      text: column.format(value),
      colour: categoryColour(at),
    })),
    isRange: false,
  };
}

function toColour(hue: number, scheme: Scheme): string {
  return scheme === 'dark' ? `hsl(${hue} 70% 66%)` : `hsl(${hue} 70% 40%)`;
}
