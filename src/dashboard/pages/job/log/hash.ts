/** Lines in the address, to be shared: `#L12` or `#L12-L20`. */
export type Range = { from: number; to: number };

export function readHash(): Range | null {
  const [, from, to] = /^#L(\d{1,15})(?:-L(\d{1,15}))?$/.exec(location.hash) ?? [];
  if (!from || Number(from) < 1) return null;
  return { from: Number(from), to: Math.max(Number(to ?? from), Number(from)) };
}

export function linesOf({ from, to }: Range): string {
  return from === to ? `#L${from}` : `#L${from}-L${to}`;
}
