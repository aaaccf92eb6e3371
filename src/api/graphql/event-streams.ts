/**
 * Adds to the event streams of graphql-sse: backpressure, an owner for each reserved stream, and limits on their number.
 *
 * The handler of graphql-sse puts every result into an unbounded queue, even if no client is connected. So each
 * operation passes on its next result only while no result is in the queue. However slow the client is, memory holds one
 * result per operation and one per stream.
 */
import { randomUUID } from 'node:crypto';
import type { ExecutionResult, GraphQLError } from 'graphql';
import { AppError } from '../../base/errors.ts';

/** Per caller. A browser tab has one stream. */
const MAX_STREAMS = 100;
/** Running operations per stream. */
const MAX_OPERATIONS = 100;
/** Clients connect to a reserved stream within a fraction of this time. */
const UNCLAIMED_MS = 60_000;

export type OperationResult = ExecutionResult | AsyncIterable<ExecutionResult>;
type Messages = AsyncGenerator<string, void>;
type Show = (error: unknown) => GraphQLError;

const DONE = { done: true, value: undefined } as const;

export class EventStream {
  readonly token: string = randomUUID();
  readonly #operations = new Set<Operation>();
  readonly #waiting = new Map<Operation, (isTurn: boolean) => void>();
  readonly #closed = new AbortController();
  /** Operations that are being prepared. */
  #starting = 0;
  #isResultQueued = false;
  #isFinishing = false;
  #messages: Messages | undefined;

  /** Aborts when the stream ends. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  get isConnected(): boolean {
    return this.#messages !== undefined;
  }

  /** Limits the operations of the stream while one is being prepared. @throws AppError 429 */
  admit(): Disposable {
    if (this.#starting + this.#operations.size >= MAX_OPERATIONS)
      throw tooMany(`${MAX_OPERATIONS} operations are running on this stream. End one first.`);
    this.#starting++;
    return { [Symbol.dispose]: () => void this.#starting-- };
  }

  /** Delivers the results at the pace of the client. `show` converts an error that ends them. */
  start(result: OperationResult, show: Show): AsyncIterable<ExecutionResult> {
    const results = Symbol.asyncIterator in result ? result[Symbol.asyncIterator]() : once(result);
    const operation = new Operation(this, results, show);
    this.#operations.add(operation);
    if (this.closed.aborted) void operation.return();
    return operation;
  }

  /** Returns the messages of graphql-sse as a response body. Call it once. */
  connect(messages: Messages, client: AbortSignal): ReadableStream<Uint8Array> {
    this.#messages = messages;
    this.#admitNext();
    client.addEventListener('abort', () => this.close());
    if (client.aborted) this.close();
    const encoder = new TextEncoder();
    const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
      const { done, value } = await messages.next();
      if (done) {
        controller.close();
        return this.close();
      }
      controller.enqueue(encoder.encode(value));
      if (value.startsWith('event: next')) this.resultTaken();
    };
    return new ReadableStream({ pull, cancel: () => this.close() }, { highWaterMark: 0 });
  }

  /** Ends the stream as soon as all its operations have ended. */
  finish(): void {
    this.#isFinishing = true;
    this.operationEnded();
  }

  /** Must be called after the client has been told that an operation ended. */
  operationEnded(): void {
    if (this.#isFinishing && this.#operations.size === 0) void this.#messages?.return();
  }

  close(): void {
    if (this.closed.aborted) return;
    this.#closed.abort();
    void this.#messages?.return();
    for (const operation of this.#operations) void operation.return();
  }

  /**
   * Waits until the queue is empty.
   * @returns true if the operation must now queue a result or call `resultTaken`; false if it was ended meanwhile
   */
  waitForTurn(operation: Operation): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#waiting.set(operation, resolve);
    this.#admitNext();
    return promise;
  }

  resultTaken(): void {
    this.#isResultQueued = false;
    this.#admitNext();
  }

  remove(operation: Operation): void {
    this.#operations.delete(operation);
    this.#waiting.get(operation)?.(false);
    this.#waiting.delete(operation);
  }

  #admitNext(): void {
    const [first] = this.#waiting;
    if (!this.isConnected || this.#isResultQueued || !first) return;
    const [operation, proceed] = first;
    this.#isResultQueued = true;
    this.#waiting.delete(operation);
    proceed(true);
  }
}

/** Not a generator: `return` of a generator waits until its pending `next` settles. */
class Operation implements AsyncIterableIterator<ExecutionResult> {
  readonly #stream: EventStream;
  readonly #results: AsyncIterator<ExecutionResult>;
  readonly #show: Show;
  #isOver = false;

  constructor(stream: EventStream, results: AsyncIterator<ExecutionResult>, show: Show) {
    this.#stream = stream;
    this.#results = results;
    this.#show = show;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<ExecutionResult>> {
    if (this.#isOver) return DONE;
    // If an operation throws, graphql-sse breaks off the whole stream.
    const next = await this.#results
      .next()
      .catch((error) => ({ done: false, value: { errors: [this.#show(error)] } }));
    if (next.done) return this.return();
    const isTurn = await this.#stream.waitForTurn(this);
    if (!this.#isOver) return { done: false, value: withoutHttp(next.value) };
    if (isTurn) this.#stream.resultTaken();
    return DONE;
  }

  async return(): Promise<IteratorReturnResult<undefined>> {
    if (this.#isOver) return DONE;
    this.#isOver = true;
    this.#stream.remove(this);
    this.#results.return?.().catch(() => {});
    return DONE;
  }

  /** graphql-sse ends only iterators that have this method. */
  async throw(): Promise<IteratorReturnResult<undefined>> {
    return this.return();
  }
}

/** Streams that a client reserves before it connects (the "single connection mode" of graphql-sse). */
export class ReservedStreams {
  readonly #streams = new Map<string, { caller: string; stream: EventStream }>();
  readonly #drop: (stream: EventStream) => void;

  /**
   * When `stopping` aborts, each stream ends as soon as its operations have ended.
   * @param drop makes graphql-sse forget a stream that no client connected to
   */
  constructor(drop: (stream: EventStream) => void, stopping: AbortSignal) {
    this.#drop = drop;
    stopping.addEventListener('abort', () => {
      for (const { stream } of this.#streams.values()) stream.finish();
    });
  }

  /** @throws AppError 429 */
  reserve(caller: string): EventStream {
    let count = 0;
    for (const reservation of this.#streams.values()) if (reservation.caller === caller) count++;
    if (count >= MAX_STREAMS)
      throw tooMany(`${MAX_STREAMS} event streams are open or reserved. Close one first.`);
    const stream = new EventStream();
    this.#streams.set(stream.token, { caller, stream });
    const unclaimed = setTimeout(() => {
      if (!stream.isConnected) this.#drop(stream);
    }, UNCLAIMED_MS).unref();
    stream.closed.addEventListener('abort', () => {
      clearTimeout(unclaimed);
      this.#streams.delete(stream.token);
    });
    return stream;
  }

  /** Finds a stream by its token, if `caller` reserved it. */
  find(caller: string, token: string): EventStream | undefined {
    const found = this.#streams.get(token);
    return found?.caller === caller ? found.stream : undefined;
  }
}

async function* once<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Removes `extensions.http`, where Yoga keeps the status and headers of a response: a stream has no use for them. */
function withoutHttp(result: ExecutionResult): ExecutionResult {
  const { errors, ...rest } = result;
  if (!errors) return rest;
  const shown = errors.map((error) => {
    const { extensions: { http: _, ...extensions } = {}, ...formatted } = error.toJSON();
    return { ...formatted, ...(Object.keys(extensions).length > 0 && { extensions }) };
  });
  // Plain objects instead of GraphQLErrors: graphql-sse only serializes them.
  return { errors: shown as never, ...rest };
}

function tooMany(problem: string): AppError {
  return new AppError('rate_limit_exceeded', problem, { retryAfter: 1 });
}
