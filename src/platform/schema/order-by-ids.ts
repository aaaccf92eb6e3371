/** `loadMany` of a node answers id by id, with null for what is not there. */
export function orderByIds<T extends { id: string }>(ids: readonly string[], found: readonly T[]) {
  const byId = new Map(found.map((node) => [node.id, node]));
  return ids.map((id) => byId.get(id) ?? null);
}
