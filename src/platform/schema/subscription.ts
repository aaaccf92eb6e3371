/** Subscription fields over the async generators of the domain. */
import { Repeater } from '@repeaterjs/repeater';
import { builder } from './builder.ts';

/** The error that ended a subscription, as its last event. */
export type Failed = { failure: unknown };

/**
 * A generator that waits for the database does not end when its reader goes away; a repeater notices that, and then
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

/** An enum of event types, each with its description: `job.timed_out` becomes TIMED_OUT. */
export function eventTypes<Type extends string>(
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

/** Whose events are followed, and from where on. `one`: what a `name` is of. */
export function eventArgs(one: string) {
  return builder.args((t) => ({
    namespace: t.string({ description: 'The name of the namespace; give this or `namespaces`.' }),
    namespaces: t.stringList({ description: 'The names of namespaces, at most 100.' }),
    name: t.string({ description: one }),
    after: t.field({
      type: 'SafeInt',
      description:
        'The `cursor` of the last event that was seen. 0: begin with the oldest event that is kept; left out: with the next one.',
    }),
  }));
}

/** `namespace` and `namespaces` are one list for the domain. */
export function followQuery<
  Args extends { namespace?: string | null; namespaces?: readonly string[] | null },
>({ namespace, namespaces, ...rest }: Args) {
  return { ...rest, namespaces: [namespace ?? [], namespaces ?? []].flat() };
}
