/** Places the jobs of a run in columns: each job to the right of the jobs that it needs. */

export type Step = { name: string; needs: readonly { job: string }[] };
/** `top` and `height` in pixels. */
export type PlacedStep = { name: string; column: number; top: number; height: number };
export type Edge = { from: PlacedStep; to: PlacedStep };

export function placeSteps(
  steps: readonly Step[],
  { gap, heightOf }: { gap: number; heightOf: (name: string) => number },
): { placed: PlacedStep[]; edges: Edge[] } {
  const byName = new Map(steps.map((step) => [step.name, step]));
  const columns = new Map<string, number>();
  // The server refuses cycles. One in old data must not hang the page.
  const columnOf = (name: string, depth: number): number => {
    const known = columns.get(name);
    if (known !== undefined) return known;
    const needs = (byName.get(name)?.needs ?? []).filter(({ job }) => byName.has(job));
    const column =
      depth > steps.length
        ? 0
        : Math.max(-1, ...needs.map(({ job }) => columnOf(job, depth + 1))) + 1;
    columns.set(name, column);
    return column;
  };
  const heights = new Map<number, number>();
  const placed = steps.map(({ name }) => {
    const column = columnOf(name, 0);
    const top = heights.get(column) ?? 0;
    const height = heightOf(name);
    heights.set(column, top + height + gap);
    return { name, column, top, height };
  });
  const places = new Map(placed.map((place) => [place.name, place]));
  const edges = steps.flatMap(({ name, needs }) =>
    needs.flatMap(({ job }) => {
      const from = places.get(job);
      const to = places.get(name);
      return from && to ? [{ from, to }] : [];
    }),
  );
  return { placed, edges };
}
