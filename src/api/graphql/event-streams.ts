/**
 * What Loam adds to the event streams of graphql-sse: results wait for their client, and streams belong to the caller who
 * reserved them and are limited in number.
 *
 * The handler of graphql-sse puts every result into a queue without a limit, also for a stream that nobody connects to. So each
 * operation hands it its next result only when no other result is in the queue: one of each operation and one of the stream are
 * held, however slow the client is.
 */
import { randomUUID } from 'node:crypto';
import type { ExecutionResult, GraphQLError } from 'graphql';
import { AppError } from '../../base/errors.ts';

/** Streams of a caller: a tab of a browser has one. */
const MAX_STREAMS = 100;
/** Operations of a stream that have not ended. */
const MAX_OPERATIONS = 100;
/** Far more than a client takes from the reservation to its connection. */
const UNCLAIMED_MS = 60_000;

export type Result = ExecutionResult | AsyncIterable<ExecutionResult>;
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

  /** Aborts when the stream is over. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  get isConnected(): boolean {
    return this.#messages !== undefined;
  }

  /** Limits the operations of the stream while one is being prepared. @throws AppError 429 */
  admit(): Disposable {
    if (this.#starting + this.#operations.size >= MAX_OPERATIONS)
      throw tooMany(`${MAX_OPERATIONS} operations are under way on this stream; end one`);
    this.#starting++;
    return { [Symbol.dispose]: () => void this.#starting-- };
  }

  /** The results in the form and at the pace of the client. `show` decides what it sees of an error that ends them. */
  start(result: Result, show: Show): AsyncIterable<ExecutionResult> {
    const results = Symbol.asyncIterator in result ? result[Symbol.asyncIterator]() : once(result);
    const operation = new Operation(this, results, show);
    this.#operations.add(operation);
    if (this.closed.aborted) void operation.return();
    return operation;
  }

  /** The messages of graphql-sse, as the body of a response. To be called once. */
  connect(messages: Messages, client: AbortSignal): ReadableStream<Uint8Array> {
    this.#messages = messages;
    this.#next();
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

  /** The stream is over when all its operations are. */
  finish(): void {
    this.#isFinishing = true;
    this.operationEnded();
  }

  /** To be called when the end of an operation has been told. */
  operationEnded(): void {
    if (this.#isFinishing && this.#operations.size === 0) void this.#messages?.return();
  }

  close(): void {
    if (this.closed.aborted) return;
    this.#closed.abort();
    void this.#messages?.return();
    for (const operation of this.#operations) void operation.return();
  }

  /** @returns false when the operation was ended meanwhile, else true, and its result must be queued or `resultTaken` called. */
  turn(operation: Operation): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#waiting.set(operation, resolve);
    this.#next();
    return promise;
  }

  resultTaken(): void {
    this.#isResultQueued = false;
    this.#next();
  }

  leave(operation: Operation): void {
    this.#operations.delete(operation);
    this.#waiting.get(operation)?.(false);
    this.#waiting.delete(operation);
  }

  #next(): void {
    const [first] = this.#waiting;
    if (!this.isConnected || this.#isResultQueued || !first) return;
    const [operation, proceed] = first;
    this.#isResultQueued = true;
    this.#waiting.delete(operation);
    proceed(true);
  }
}

/** An object with these methods, and no generator: `return` of a generator waits until its `next` has settled. */
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
    // graphql-sse breaks off the whole stream for an operation that throws.
    const next = await this.#results
      .next()
      .catch((error) => ({ done: false, value: { errors: [this.#show(error)] } }));
    if (next.done) return this.return();
    const isTurn = await this.#stream.turn(this);
    if (!this.#isOver) return { done: false, value: withoutHttp(next.value) };
    if (isTurn) this.#stream.resultTaken();
    return DONE;
  }

  async return(): Promise<IteratorReturnResult<undefined>> {
    if (this.#isOver) return DONE;
    this.#isOver = true;
    this.#stream.leave(this);
    this.#results.return?.().catch(() => {});
    return DONE;
  }

  /** graphql-sse takes only what has it for something that it can end. */
  async throw(): Promise<IteratorReturnResult<undefined>> {
    return this.return();
  }
}

/** Streams that a client reserves before it connects (the "single connection mode" of graphql-sse). */
export class ReservedStreams {
  readonly #streams = new Map<string, { caller: string; stream: EventStream }>();
  readonly #drop: (stream: EventStream) => void;

  /**
   * When `stopping` aborts, streams end as soon as their operations have.
   * @param drop makes graphql-sse forget a stream that nobody has connected to
   */
  constructor(drop: (stream: EventStream) => void, stopping: AbortSignal) {
    this.#drop = drop;
    stopping.addEventListener('abort', () => {
      for (const { stream } of this.#streams.values()) stream.finish();
    });
  }

  /** @throws AppError 429 */
  reserve(caller: string): EventStream {
    let own = 0;
    for (const each of this.#streams.values()) if (each.caller === caller) own++;
    if (own >= MAX_STREAMS)
      throw tooMany(`${MAX_STREAMS} event streams are open or reserved; close one`);
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

  /** The stream that `caller` has reserved under the token. */
  find(caller: string, token: string): EventStream | undefined {
    const found = this.#streams.get(token);
    return found?.caller === caller ? found.stream : undefined;
  }
}

async function* once<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Yoga keeps the status and headers of an answer in `extensions.http` of its errors. On a stream they mean nothing. */
function withoutHttp(result: ExecutionResult): ExecutionResult {
  const { errors, ...rest } = result;
  if (!errors) return rest;
  const shown = errors.map((error) => {
    const { extensions: { http: _, ...extensions } = {}, ...formatted } = error.toJSON();
    return { ...formatted, ...(Object.keys(extensions).length > 0 && { extensions }) };
  });
  // Their form in JSON, which is all that becomes of them.
  return { errors: shown as never, ...rest };
}

function tooMany(problem: string): AppError {
  return new AppError('rate_limit_exceeded', problem, { retryAfter: 1 });
}
