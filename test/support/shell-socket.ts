/** A client of shells over WebSockets, which sends what it is told to. */
import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { expect } from 'vitest';
import { WebSocket } from 'ws';
import { encodeFrame, encodeJsonFrame, FrameReader } from '../../src/platform/frames.ts';
import { eventually } from './eventually.ts';
import type { Client } from './harness.ts';

export type Refusal = {
  status: number;
  headers: IncomingMessage['headers'];
  body: { error: { code: string; message: string } };
};

/** The server refuses messages beyond 128 KiB. */
const MAX_PIECE = 2 ** 16;

export class ShellSocket implements Disposable {
  readonly socket: WebSocket;
  stdout = Buffer.alloc(0);
  stderr = '';
  code: number | undefined;
  /** Gets the output instead of `stdout`. */
  onOutput: ((piece: Buffer) => void) | undefined;
  /** The code and the reason of the close frame. */
  readonly closed: Promise<{ code: number; reason: string }>;

  constructor(socket: WebSocket) {
    this.socket = socket;
    const reader = new FrameReader({
      bytes: (kind, piece) => {
        if (kind === 'data' && this.onOutput) this.onOutput(piece);
        else if (kind === 'data') this.stdout = Buffer.concat([this.stdout, piece]);
        else this.stderr += piece;
      },
      json: (kind, value) => {
        if (kind === 'exit') this.code = (value as { code: number }).code;
      },
    });
    socket.on('error', () => {});
    socket.on('message', (data: Buffer) => reader.push(data));
    this.closed = new Promise((resolve) =>
      socket.once('close', (code, reason) => resolve({ code, reason: String(reason) })),
    );
  }

  exec(spec: object): this {
    return this.send(encodeJsonFrame('exec', { command: null, env: {}, terminal: null, ...spec }));
  }

  data(bytes: string | Uint8Array): this {
    const content = Buffer.from(bytes);
    for (let at = 0; at < content.length; at += MAX_PIECE)
      for (const part of encodeFrame('data', content.subarray(at, at + MAX_PIECE)))
        this.socket.send(part);
    return this;
  }

  end(): this {
    return this.send(Buffer.concat(encodeFrame('end', Buffer.alloc(0))));
  }

  pause(): this {
    return this.send(encodeJsonFrame('pause', null));
  }

  resume(): this {
    return this.send(encodeJsonFrame('resume', null));
  }

  resize(size: unknown): this {
    return this.send(encodeJsonFrame('resize', size));
  }

  send(bytes: Uint8Array | string): this {
    this.socket.send(bytes);
    return this;
  }

  [Symbol.dispose](): void {
    this.socket.terminate();
  }
}

/** @param job `namespace/name` @returns the response when the handshake is refused */
export function openShellSocket(
  { base, authorization }: Client,
  job: string,
  headers: Record<string, string> = {},
  ca?: Buffer,
): Promise<ShellSocket | Refusal> {
  const socket = new WebSocket(`${base.replace('http', 'ws')}/-/shells/${job}`, {
    headers: { ...(authorization && { authorization }), ...headers },
    ...(ca && { ca }),
  });
  return new Promise((resolve, reject) => {
    socket.once('open', () => resolve(new ShellSocket(socket)));
    socket.once('error', reject);
    socket.once('unexpected-response', (_req, res) => {
      const refuse = async () => {
        const body = JSON.parse(await text(res));
        return { status: res.statusCode ?? 0, headers: res.headers, body };
      };
      refuse().then(resolve, reject);
    });
  });
}

/** As `openShellSocket`, which must succeed. */
export async function shellSocket(...about: Parameters<typeof openShellSocket>) {
  const opened = await openShellSocket(...about);
  if (opened instanceof ShellSocket) return opened;
  throw new Error(`refused with ${opened.status}: ${opened.body.error.message}`);
}

/** As `openShellSocket`, which must be refused. */
export async function refusedShell(...about: Parameters<typeof openShellSocket>): Promise<Refusal> {
  const opened = await openShellSocket(...about);
  if (!(opened instanceof ShellSocket)) return opened;
  opened[Symbol.dispose]();
  throw new Error('the handshake was not refused');
}

/** Waits until commands run in the job: its command may begin to run before the runner can run others beside it. */
export async function untilShell(client: Client, job: string): Promise<void> {
  await eventually(async () => {
    using shell = await shellSocket(client, job);
    shell.exec({ command: 'true' });
    await shell.closed;
    expect([shell.stderr, shell.code]).toEqual(['', 0]);
  });
}
