/** The combinations of a matrix, as GitHub Actions forms them. */

/** The values for one job, in the order of the file. */
export type Combination = Readonly<Record<string, string>>;

export type Matrix = {
  /** The keys with the values that are combined. */
  axes: Readonly<Record<string, readonly string[]>>;
  include: readonly Combination[];
  exclude: readonly Combination[];
};

export const MAX_COMBINATIONS = 256;

/** The number of combinations of the values, before `exclude` and `include`. */
export function countOriginals(matrix: Matrix | undefined): number {
  if (!matrix) return 1;
  const lists = Object.values(matrix.axes);
  return lists.length === 0 ? 0 : lists.reduce((count, values) => count * values.length, 1);
}

/**
 * All combinations of the values, the last key varying fastest, without those that an entry of `exclude` matches. An entry of
 * `include` is added to each of them whose values it does not change; if there is none, it is a combination of its own.
 * @returns one combination without values if there is no matrix
 */
export function combine(matrix: Matrix | undefined): Combination[] {
  if (!matrix) return [{}];
  const { axes, include, exclude } = matrix;
  const originals = multiply(axes).filter(
    (combination) => !exclude.some((entry) => isPartOf(entry, combination)),
  );
  const extended = originals.map((original) => ({ original, values: { ...original } }));
  const added: Combination[] = [];
  for (const entry of include) {
    const changed = Object.keys(entry).filter((key) => Object.hasOwn(axes, key));
    const fitting = extended.filter(({ original }) =>
      changed.every((key) => original[key] === entry[key]),
    );
    for (const { values } of fitting) Object.assign(values, entry);
    if (fitting.length === 0) added.push(entry);
  }
  return [...extended.map(({ values }) => values), ...added];
}

function multiply(axes: Matrix['axes']): Combination[] {
  const keys = Object.entries(axes);
  if (keys.length === 0) return [];
  return keys.reduce<Combination[]>(
    (before, [key, values]) =>
      before.flatMap((combination) => values.map((value) => ({ ...combination, [key]: value }))),
    [{}],
  );
}

function isPartOf(entry: Combination, combination: Combination): boolean {
  return Object.entries(entry).every(([key, value]) => combination[key] === value);
}
