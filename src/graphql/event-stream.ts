/**
 * One connection of the graphql-sse protocol: an event stream with the results of one operation or several.
 *
 * An operation goes on when the client has taken its last result, and does not begin before there is a client.
 * So one result of each operation is held here, however slow the client is and however much there is to
 * send. (The library of that name reads ahead without a limit, also for a stream that nobody connects to:
 * one subscription to a long log took all of the server's memory.)
 */
import { Repeater } from '@repeaterjs/repeater';
import type { ExecutionResult, FormattedExecutionResult, GraphQLError } from 'graphql';

export type Result = ExecutionResult | AsyncIterable<ExecutionResult>;

/** How often a comment is sent, so that no proxy closes a stream on which nothing happens. */
const SIGN_OF_LIFE_MS = 12_000;
const SIGN_OF_LIFE = ':\n\n';

type Push = (message: string) => Promise<unknown>;

export class EventStream {
  readonly #operations = new Map<string, AsyncIterator<ExecutionResult> | undefined>();
  readonly #client = Promise.withResolvers<Push>();
  readonly #closed = new AbortController();
  readonly #show: (error: unknown) => GraphQLError;
  #connected = false;
  #finishing = false;

  /** `show` decides what a client sees of an error that ends an operation. */
  constructor(show: (error: unknown) => GraphQLError) {
    this.#show = show;
  }

  /** Whether there is, or was, a client. */
  get connected(): boolean {
    return this.#connected;
  }

  /** How many operations are not over. */
  get size(): number {
    return this.#operations.size;
  }

  /** Aborts when the stream is over. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  has(id: string): boolean {
    return this.#operations.has(id);
  }

  /** Keeps the id for an operation that is being prepared. */
  reserve(id: string): void {
    this.#operations.set(id, undefined);
  }

  /** Sends the results of an operation and then its end, unless it was ended while it was prepared. */
  start(id: string, result: Result): void {
    const results = Symbol.asyncIterator in result ? result[Symbol.asyncIterator]() : once(result);
    if (this.#operations.has(id)) {
      this.#operations.set(id, results);
      void this.#send(id, results);
    } else leave(results);
  }

  /** Ends an operation before it has finished; nothing more is sent of it. */
  end(id: string): void {
    const results = this.#operations.get(id);
    this.#operations.delete(id);
    if (results) leave(results);
    this.#look();
  }

  /** The stream is over when all its operations are. */
  finish(): void {
    this.#finishing = true;
    this.#look();
  }

  /** The stream is over, because its client is gone. */
  close(): void {
    if (this.#closed.signal.aborted) return;
    this.#closed.abort();
    // Operations that wait for a client that never came go on, and find that they are over.
    this.#client.resolve(async () => {});
    for (const results of this.#operations.values()) if (results) leave(results);
    this.#operations.clear();
  }

  /** What the client is sent. To be called once. */
  messages(): AsyncIterableIterator<string> {
    this.#connected = true;
    return new Repeater<string>(async (push, stop) => {
      this.#closed.signal.addEventListener('abort', () => stop());
      if (this.#closed.signal.aborted) stop();
      let signs = 0;
      const sign = () => {
        // For a client that does not read, comments would collect in memory.
        if (signs > 0) return;
        signs++;
        void push(SIGN_OF_LIFE).then(() => signs--);
      };
      // Some browsers take the headers only with the first bytes after them.
      sign();
      this.#client.resolve((message) => Promise.resolve(push(message)));
      const timer = setInterval(sign, SIGN_OF_LIFE_MS);
      await stop;
      clearInterval(timer);
      this.close();
    });
  }

  async #send(id: string, results: AsyncIterator<ExecutionResult>): Promise<void> {
    const push = await this.#client.promise;
    const current = () => this.#operations.get(id) === results;
    const send = (result: ExecutionResult) => {
      const payload = withoutHttp(result);
      return push(message('next', id ? { id, payload } : payload));
    };
    try {
      for (let next = await results.next(); !next.done && current(); next = await results.next())
        await send(next.value);
    } catch (error) {
      if (current()) await send({ errors: [this.#show(error)] });
    }
    if (!current()) return;
    await push(message('complete', id ? { id } : undefined));
    if (current()) this.end(id);
  }

  #look(): void {
    if (this.#finishing && this.#operations.size === 0) this.close();
  }
}

async function* once<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Yoga keeps the status and headers of an answer in `extensions.http` of its errors. On a stream they mean nothing. */
function withoutHttp(result: ExecutionResult): FormattedExecutionResult {
  const { errors, ...rest } = result;
  if (!errors) return rest;
  const shown = errors.map((error) => {
    const { extensions: { http: _, ...extensions } = {}, ...formatted } = error.toJSON();
    return { ...formatted, ...(Object.keys(extensions).length > 0 && { extensions }) };
  });
  return { errors: shown, ...rest };
}

function leave(results: AsyncIterator<unknown>): void {
  results.return?.().catch(() => {});
}

function message(event: 'next' | 'complete', data?: unknown): string {
  return `event: ${event}\ndata:${data === undefined ? '' : ` ${JSON.stringify(data)}`}\n\n`;
}
