/**
 * Reads that several ask for at once. Those who ask for the same before the read has begun share it; one who comes after
 * that gets a read of its own, because it may look for a change that the other does not see.
 */
export type Coalesced<T> = (key: string, read: () => Promise<T>) => Promise<T>;

/** A read begins when all that arrived together has been looked at. */
export function coalesce<T>(): Coalesced<T> {
  const asked = new Map<string, Promise<T>>();
  return (key, read) => {
    const known = asked.get(key);
    if (known) return known;
    const reading = new Promise(setImmediate).then(() => {
      asked.delete(key);
      return read();
    });
    asked.set(key, reading);
    return reading;
  };
}
