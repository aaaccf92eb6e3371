/** Runs a command or a shell in a running job, beside the job's own command, over a WebSocket. */
import type { Readable, Writable } from 'node:stream';
import type { WebSocket } from 'ws';
import type { Connection } from './connection.ts';
import { SessionLost } from './exit.ts';
import { encodeFrame, encodeJsonFrame, FrameReader } from './frames.ts';
import { openNetworkOptions } from './network.ts';
import { LoamError } from './sdk/errors.ts';
import { authorizationOf, readError, unreachable } from './sdk/transport.ts';
import { VERSION } from './version.ts';

export type TerminalSize = { columns: number; rows: number };
export type JobCommand = {
  /** A command for `/bin/sh`; null: a shell for people. */
  command: string | null;
  /** Only those that SSH passes on, too: TERM, LANG, LC_*, COLORTERM, NO_COLOR. */
  env?: Record<string, string>;
  /** The command has a terminal of this size. */
  terminal?: TerminalSize | null;
};
/** A connection to a port of the job. The first byte of its output shows that something listens. */
export type JobPort = { port: number };
export type SessionStreams = {
  /** Its end is the end of the command's input. */
  stdin: Readable;
  stdout: Writable;
  stderr: Writable;
  signal?: AbortSignal;
  /** Called for bytes of the input and of the outputs. */
  onActivity?(): void;
  /** Called once, with a function that changes the size of the terminal. */
  onOpen?(resize: (size: TerminalSize) => void): void;
};

const HANDSHAKE_MS = 30_000;
const MAX_MESSAGE_BYTES = 4 * 2 ** 20;
/** The server refuses messages beyond 128 KiB. */
const PIECE_BYTES = 64 * 1024;
const MAX_ERROR_BYTES = 2 ** 20;
/** The server sends a ping every 30 s. */
const MAX_SILENCE_MS = 95_000;
const CHECK_MS = 5_000;
/** For the server's part of the end. */
const CLOSE_MS = 2_000;

/**
 * @returns the exit code of the command
 * @throws LoamError when the server refuses; SessionLost when the connection breaks; the reason of the signal
 */
export async function runInJob(
  connection: Connection,
  job: { namespace: string; name: string },
  what: JobCommand | JobPort,
  streams: SessionStreams,
): Promise<number> {
  const socket = await openSocket(connection, job);
  const session = new JobSession(socket, streams);
  const request = 'port' in what ? what : { env: {}, terminal: null, ...what };
  socket.send(encodeJsonFrame('exec', request));
  return session.run();
}

/** @throws LoamError when the server refuses sessions in the job */
export async function demandSession(
  connection: Connection,
  job: { namespace: string; name: string },
): Promise<void> {
  const socket = await openSocket(connection, job);
  socket.terminate();
}

async function openSocket(
  { server, token }: Connection,
  { namespace, name }: { namespace: string; name: string },
): Promise<WebSocket> {
  const { WebSocket } = await import('ws');
  const path = `/-/shells/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const url = new URL(path, server);
  const network = await openNetworkOptions(url);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const socket = new WebSocket(url, {
    headers: { authorization: authorizationOf(token), 'user-agent': `loam/${VERSION}` },
    perMessageDeflate: false,
    maxPayload: MAX_MESSAGE_BYTES,
    handshakeTimeout: HANDSHAKE_MS,
    ...network,
  });
  await new Promise<void>((resolve, reject) => {
    socket.once('open', resolve);
    socket.on('error', (error) => reject(unreachable(server, error)));
    socket.once('unexpected-response', async (_request, response) => {
      const refuse = async () => {
        let text = '';
        for await (const chunk of response) {
          text += chunk;
          if (text.length > MAX_ERROR_BYTES) break;
        }
        const { statusCode: status = 500, headers } = response;
        const id = headers['x-request-id'];
        const shown = { status, headers: { ...(id && { 'x-request-id': `${id}` }) } };
        throw await readError(new Response(text, shown), server);
      };
      refuse().catch(reject);
    });
  });
  return socket;
}

export type Deferred<T> = {
  promise: Promise<T>;
  resolve: (value: T | PromiseLike<T>) => void;
  reject: (reason: unknown) => void;
};

/** Node 20 has no `Promise.withResolvers`. */
export function deferred<T>(): Deferred<T> {
  let resolve!: Deferred<T>['resolve'];
  let reject!: Deferred<T>['reject'];
  const promise = new Promise<T>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
}

class JobSession {
  readonly #socket: WebSocket;
  readonly #streams: SessionStreams;
  readonly #exit = deferred<number>();
  readonly #reader = new FrameReader();
  /** Outputs whose reader is slow. */
  readonly #full = new Set<Writable>();
  #heardAt = performance.now();
  #isOver = false;

  constructor(socket: WebSocket, streams: SessionStreams) {
    this.#socket = socket;
    this.#streams = streams;
  }

  async run(): Promise<number> {
    const socket = this.#socket;
    const { stdin, signal, onOpen } = this.#streams;
    const abort = () => this.#exit.reject(signal?.reason);
    const silence = setInterval(() => this.#checkSilence(), CHECK_MS);
    socket.on('message', (data: Buffer) => this.#receive(data));
    socket.on('ping', () => {
      this.#heardAt = performance.now();
    });
    socket.once('close', (_code, reason) => this.#exit.reject(new SessionLost(`${reason}`)));
    stdin.on('data', this.#send).once('end', this.#end).once('error', this.#exit.reject);
    signal?.addEventListener('abort', abort);
    if (signal?.aborted) abort();
    onOpen?.((size) => this.#write(encodeJsonFrame('resize', size)));
    try {
      return await this.#exit.promise;
    } finally {
      this.#isOver = true;
      clearInterval(silence);
      signal?.removeEventListener('abort', abort);
      stdin.off('data', this.#send).off('end', this.#end).pause();
      socket.close();
      setTimeout(() => socket.terminate(), CLOSE_MS).unref();
    }
  }

  /** Sends one chunk after the other, so that a slow command makes the input wait. */
  readonly #send = (chunk: Buffer): void => {
    const { stdin, onActivity } = this.#streams;
    onActivity?.();
    stdin.pause();
    for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
      const isLast = at + PIECE_BYTES >= chunk.length;
      const frame = encodeFrame('data', chunk.subarray(at, at + PIECE_BYTES));
      this.#write(frame, () => {
        if (isLast && !this.#isOver) stdin.resume();
      });
    }
  };

  readonly #end = (): void => this.#write(encodeFrame('end', Buffer.alloc(0)));

  #write(frame: Buffer, done?: () => void): void {
    // The error of a closed connection is reported by its `close`.
    this.#socket.send(frame, () => done?.());
  }

  #receive(data: Buffer): void {
    this.#heardAt = performance.now();
    try {
      for (const output of this.#reader.read(data))
        if (output.kind === 'exit') this.#exit.resolve(output.code);
        else this.#pass(this.#streams[output.kind === 'data' ? 'stdout' : 'stderr'], output.bytes);
    } catch (error) {
      this.#exit.reject(
        new LoamError('bad_answer', `The server sent no valid data: ${(error as Error).message}`),
      );
    }
  }

  #pass(to: Writable, bytes: Buffer): void {
    if (bytes.length > 0) this.#streams.onActivity?.();
    if (to.destroyed || to.write(bytes) || this.#full.has(to)) return;
    this.#full.add(to);
    this.#socket.pause();
    const resume = () => {
      to.off('drain', resume).off('close', resume);
      this.#full.delete(to);
      if (this.#full.size === 0) this.#socket.resume();
    };
    to.on('drain', resume).on('close', resume);
  }

  #checkSilence(): void {
    if (this.#socket.isPaused) this.#heardAt = performance.now();
    if (performance.now() - this.#heardAt > MAX_SILENCE_MS) this.#socket.terminate();
  }
}
