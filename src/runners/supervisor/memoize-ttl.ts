/** Caches the result of `read` for `ms`. */
export function memoizeTtl<T>(ms: number, read: () => T): () => T {
  let cached: { value: T; at: number } | undefined;
  return () => {
    const at = performance.now();
    if (!cached || at - cached.at > ms) cached = { value: read(), at };
    return cached.value;
  };
}
