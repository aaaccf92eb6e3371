/**
 * Coalesces concurrent reads: callers that request the same key before the read has started share the read. A later caller
 * starts a new read, because it may look for a change that the running read does not see.
 */
export type Coalesced<T> = (key: string, read: () => Promise<T>) => Promise<T>;

/** Reads start after the current iteration of the event loop. */
export function coalesce<T>(): Coalesced<T> {
  const pending = new Map<string, Promise<T>>();
  return (key, read) => {
    const shared = pending.get(key);
    if (shared) return shared;
    const result = new Promise(setImmediate).then(() => {
      pending.delete(key);
      return read();
    });
    pending.set(key, result);
    return result;
  };
}
