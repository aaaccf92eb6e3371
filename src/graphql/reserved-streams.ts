/**
 * Event streams that a client reserves before it connects (graphql-sse's "single connection mode"): by a token that
 * works for whoever has reserved it alone. They are bounded in number, and one that nobody connects to is dropped.
 */
import { randomUUID } from 'node:crypto';
import type { GraphQLError } from 'graphql';
import { AppError } from '../errors.ts';
import { EventStream } from './event-stream.ts';

/** Streams of a caller: a tab of a browser has one. */
const MAX_STREAMS = 100;
/** Operations of a stream that are not over. */
const MAX_OPERATIONS = 100;
/** Far more than a client takes from the reservation to its connection. */
const UNCLAIMED_MS = 60_000;

type Reserved = { caller: string; stream: EventStream };

export class ReservedStreams {
  readonly #streams = new Map<string, Reserved>();
  readonly #show: (error: unknown) => GraphQLError;

  /** When `stopping` aborts, streams end as soon as their operations have. */
  constructor(show: (error: unknown) => GraphQLError, stopping: AbortSignal) {
    this.#show = show;
    stopping.addEventListener('abort', () => {
      for (const { stream } of this.#streams.values()) stream.finish();
    });
  }

  /** @returns the token. @throws AppError 429 */
  reserve(caller: string): string {
    let own = 0;
    for (const each of this.#streams.values()) if (each.caller === caller) own++;
    if (own >= MAX_STREAMS)
      throw tooMany(`${MAX_STREAMS} event streams are open or reserved; close one`);
    const token = randomUUID();
    const stream = new EventStream(this.#show);
    this.#streams.set(token, { caller, stream });
    const unclaimed = setTimeout(() => {
      if (!stream.connected) stream.close();
    }, UNCLAIMED_MS).unref();
    stream.closed.addEventListener('abort', () => {
      clearTimeout(unclaimed);
      this.#streams.delete(token);
    });
    return token;
  }

  /** The stream that `caller` has reserved under the token. */
  find(caller: string, token: string): EventStream | undefined {
    const found = this.#streams.get(token);
    return found?.caller === caller ? found.stream : undefined;
  }
}

/** Keeps a place for an operation. @throws AppError 409, 429 */
export function reserveOperation(stream: EventStream, id: string): void {
  if (stream.has(id))
    throw new AppError('conflict', `An operation with the id ${id} is under way already`);
  if (stream.size >= MAX_OPERATIONS)
    throw tooMany(`${MAX_OPERATIONS} operations are under way on this stream; end one`);
  stream.reserve(id);
}

function tooMany(problem: string): AppError {
  return new AppError('rate_limit_exceeded', problem, { retryAfter: 1 });
}
