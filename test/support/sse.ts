/** A client of server-sent events that can stop in the middle, like a client whose connection is cut. */
import type { Client } from './harness.ts';

// biome-ignore lint/suspicious/noExplicitAny: data is asserted on, field by field.
export type StreamEvent = { id?: string; event: string; data: any };

export type Stream = AsyncDisposable & {
  /** Reads events until it has `count` log lines. */
  take(count: number): Promise<StreamEvent[]>;
  /** Reads all remaining events, to the end of the response. */
  all(): Promise<StreamEvent[]>;
  /** The same, one by one; rejects when the connection breaks. */
  each(use: (event: StreamEvent) => void): Promise<void>;
};

export function followStream(client: Client, path: string, lastEventId?: string): Stream {
  const abort = new AbortController();
  const events = read(client, path, lastEventId, abort.signal);
  return {
    async take(count) {
      const seen: StreamEvent[] = [];
      while (seen.filter(({ event }) => event === 'log').length < count) {
        const { value, done } = await events.next();
        if (done) throw new Error(`the stream ended after ${JSON.stringify(seen)}`);
        seen.push(value);
      }
      return seen;
    },
    async all() {
      const seen: StreamEvent[] = [];
      for await (const event of events) seen.push(event);
      return seen;
    },
    async each(use) {
      for await (const event of events) use(event);
    },
    async [Symbol.asyncDispose]() {
      abort.abort();
      await events.return(undefined).catch(() => {});
    },
  };
}

async function* read(
  client: Client,
  path: string,
  lastEventId: string | undefined,
  signal: AbortSignal,
): AsyncGenerator<StreamEvent> {
  const response = await fetch(client.base + path, {
    signal,
    headers: {
      accept: 'text/event-stream',
      ...(client.authorization && { authorization: client.authorization }),
      ...(lastEventId !== undefined && { 'last-event-id': lastEventId }),
    },
  });
  if (response.status !== 200 || !response.body)
    throw new Error(`${response.status} ${await response.text()}`);
  yield* parseEvents(response.body);
}

/** The events of a stream, without comments. */
export async function* parseEvents(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
): AsyncGenerator<StreamEvent> {
  let text = '';
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const blocks = text.split('\n\n');
    text = blocks.pop() ?? '';
    for (const block of blocks) {
      const fields = new Map<string, string>();
      for (const line of block.split('\n')) {
        const at = line.indexOf(':');
        if (at > 0) fields.set(line.slice(0, at), line.slice(at + 1).trimStart());
      }
      const data = fields.get('data');
      if (!fields.has('event')) continue;
      yield {
        ...(fields.has('id') && { id: fields.get('id') }),
        event: fields.get('event') ?? '',
        data: data ? JSON.parse(data) : undefined,
      };
    }
  }
}
