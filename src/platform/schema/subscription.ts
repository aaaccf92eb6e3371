/** Builds subscription fields from async generators of the domain. */
import { Repeater } from '@repeaterjs/repeater';
import { builder } from './builder.ts';

/** The error that ended a subscription, as its last event. */
type FailureEvent = { failure: unknown };

/**
 * Aborts a generator when its reader disconnects. A generator that waits for the database would not notice the disconnect; a
 * repeater does. The request's `signal` cannot be used: in the single connection mode of graphql-sse, the request that
 * subscribes ends long before the subscription.
 *
 * An error is yielded as an event, and the field's resolver throws it. As an event with `errors` it reaches the client on
 * every transport. An error that the source throws breaks some connections and is lost on others.
 */
export function abortOnDisconnect<T>(
  open: (signal: AbortSignal) => AsyncIterable<T>,
): AsyncIterable<T | FailureEvent> {
  return new Repeater<T | FailureEvent>(async (push, stop) => {
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

export function unwrapEvent<T extends object>(event: T | FailureEvent): T {
  if ('failure' in event) throw event.failure;
  return event;
}

/** Defines an enum of event types: `job.timed_out` becomes TIMED_OUT. @param types type → description */
export function defineEventTypes<Type extends string>(
  name: string,
  description: string,
  types: Record<Type, string>,
) {
  const values = Object.entries<string>(types).map(([value, meaning]) => [
    value.slice(value.indexOf('.') + 1).toUpperCase(),
    { value, description: meaning },
  ]);
  return builder.enumType(name, {
    description,
    values: Object.fromEntries(values) as { [name: string]: { value: Type } },
  });
}

/** Arguments of event subscriptions. `nameDescription`: description of `name`. */
export function defineEventArgs(nameDescription: string) {
  return builder.args((t) => ({
    namespace: t.string({ description: 'The name of the namespace; give this or `namespaces`.' }),
    namespaces: t.stringList({ description: 'The names of namespaces, at most 100.' }),
    name: t.string({ description: nameDescription }),
    after: t.field({
      type: 'SafeInt',
      description:
        'The `cursor` of the last event that was seen. 0: begin with the oldest event that is kept; left out: with the next one.',
    }),
  }));
}

/** Joins `namespace` and `namespaces` into one list. */
export function toFollowQuery<
  Args extends { namespace?: string | null; namespaces?: readonly string[] | null },
>({ namespace, namespaces, ...rest }: Args) {
  return { ...rest, namespaces: [namespace ?? [], namespaces ?? []].flat() };
}
