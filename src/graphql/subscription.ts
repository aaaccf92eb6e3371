/** From what the domain yields to what a subscription field is given. */
import { Repeater } from '@repeaterjs/repeater';

/** What ended a subscription, as its last event. */
export type Failed = { failure: unknown };

/**
 * A generator that waits for the database is not ended by its reader going away; a repeater is told, and then
 * aborts it. `signal` of the request would not do: in graphql-sse's single connection mode the request that
 * subscribes is answered and over long before the subscription is.
 *
 * A failure is yielded, to be thrown by the field's resolver: as an event with `errors` it reaches the client on
 * every transport, while a source that throws breaks the connection of some and says nothing on others.
 */
export function endedByReader<T>(
  open: (signal: AbortSignal) => AsyncIterable<T>,
): AsyncIterable<T | Failed> {
  return new Repeater<T | Failed>(async (push, stop) => {
    const abort = new AbortController();
    void stop.then(() => abort.abort());
    try {
      for await (const event of open(abort.signal)) {
        await push(event);
        if (abort.signal.aborted) break;
      }
    } catch (failure) {
      await push({ failure });
    }
    stop();
  });
}

export function orThrow<T extends object>(event: T | Failed): T {
  if ('failure' in event) throw event.failure;
  return event;
}
