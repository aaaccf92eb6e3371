/** What a push brings may be made to take long to look at. */
import { setImmediate as others } from 'node:timers/promises';

/** Without letting other requests have their turn. */
const SLICE_MS = 10;

/**
 * What a loop calls in each round: now and then others have their turn, and the signal is heard.
 * @throws the reason of the signal
 */
export function takeTurns(signal: AbortSignal): () => Promise<void> | undefined {
  let since = performance.now();
  return () => {
    if (performance.now() - since < SLICE_MS) return undefined;
    return others().then(() => {
      signal.throwIfAborted();
      since = performance.now();
    });
  };
}
