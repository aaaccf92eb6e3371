/** In which unit a chart shows amounts of memory and disk, and whether it has room for the line of their limit. */

const UNITS: [unit: string, bytes: number][] = [
  ['GiB', 2 ** 30],
  ['MiB', 2 ** 20],
  ['KiB', 2 ** 10],
];

export type Scale = { unit: string; divisor: number };

/** The largest unit of which the most that was used has at least one. */
export function scaleOf(most: number): Scale {
  const [unit, divisor] = UNITS.find(([, bytes]) => most >= bytes) ?? ['KiB', 2 ** 10];
  return { unit, divisor };
}

/** Far below its limit, a use would be a flat line under it. */
const NEAR = 0.1;

/** A job that failed shows its limits always: a use that rises too fast to be measured is ended by them. */
export function showsLimit(most: number, limit: number, hasFailed: boolean): boolean {
  return hasFailed || most >= limit * NEAR;
}
