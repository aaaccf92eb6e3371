/**
 * Coalesces concurrent reads: callers that ask for the same key before the read has started share it. A later caller starts
 * a new read, because it may look for a change that the running read does not see.
 */
export type Coalesced<T> = (key: string, read: () => Promise<T>) => Promise<T>;

/** Reads start after the current turn of the event loop. */
export function coalesce<T>(): Coalesced<T> {
  const pending = new Map<string, Promise<T>>();
  return (key, read) => {
    const running = pending.get(key);
    if (running) return running;
    const reading = new Promise(setImmediate).then(() => {
      pending.delete(key);
      return read();
    });
    pending.set(key, reading);
    return reading;
  };
}
