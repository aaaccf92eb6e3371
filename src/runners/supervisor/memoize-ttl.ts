/** What `look` finds, for many who ask: it is looked for again when what was found is older than `ms`. */
export function memoizeTtl<T>(ms: number, look: () => T): () => T {
  let seen: { found: T; at: number } | undefined;
  return () => {
    const at = performance.now();
    if (!seen || at - seen.at > ms) seen = { found: look(), at };
    return seen.found;
  };
}
