/** A visitor of the hosts on which programs of jobs are opened, as a browser without a name server for them. */
import { readFileSync } from 'node:fs';
import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { expect } from 'vitest';
import { WebSocket } from 'ws';
import { eventually } from './eventually.ts';
import type { Client } from './harness.ts';
import { untilShell } from './shell-socket.ts';
import { lines, submit, until } from './submit.ts';

const PROGRAM = readFileSync(join(import.meta.dirname, 'app-program.py'), 'utf8');

/** Starts a job that serves `app-program.py` on this port. */
export async function serveApp(client: Client, name: string, port: number) {
  const command = `cat > app.py <<'END'\n${PROGRAM}\nEND\nexec /usr/bin/python3 app.py ${port}`;
  const job = await submit(client, { namespace: 'ada', repo: 'ada/code', name, command });
  await until(client, 'ada', name, 'RUNNING');
  await eventually(async () => expect(await lines(client, 'ada', name)).toContain('begun'));
  await untilShell(client, `ada/${name}`);
  return job;
}

/** @returns the URL with the ticket */
export async function openPort(client: Client, name: string, port: number): Promise<string> {
  const { openJobPort } = await client.gql(
    'mutation ($input: OpenJobPortInput!) { openJobPort(input: $input) { url expiresAt } }',
    { input: { namespace: 'ada', name, port } },
  );
  return openJobPort.url;
}

type Init = {
  method?: string;
  headers?: Record<string, string | string[]>;
  body?: string | Buffer;
};
type Answer = { status: number; headers: IncomingMessage['headers']; text: string; bytes: Buffer };

export class AppVisitor {
  readonly url: URL;
  cookie = '';

  /** @param url any URL of the host */
  constructor(url: string) {
    this.url = new URL(url);
  }

  /** Signs in with a ticket. */
  static async signIn(url: string): Promise<AppVisitor> {
    const visitor = new AppVisitor(url);
    const { status, headers } = await visitor.redeem();
    expect([status, headers.location]).toEqual([303, '/']);
    visitor.cookie = headers['set-cookie']?.[0]?.split(';')[0] ?? '';
    return visitor;
  }

  redeem(init?: Init): Promise<Answer> {
    return this.get(this.url.pathname + this.url.search, init);
  }

  async get(path: string, init: Init = {}): Promise<Answer> {
    const req = this.send(path, init);
    req.end(init.body);
    const response = await responseOf(req);
    const bytes = await buffer(response);
    const { statusCode: status = 0, headers } = response;
    return { status, headers, bytes, text: bytes.toString('latin1') };
  }

  send(path: string, { method = 'GET', headers = {} }: Init = {}): ClientRequest {
    const cookie = this.cookie && { cookie: this.cookie };
    const { port, host } = this.url;
    return request({
      host: '127.0.0.1',
      agent: false,
      port,
      method,
      path,
      headers: { host, ...cookie, ...headers },
    });
  }

  /** Resolves when it is open. */
  async webSocket(headers: Record<string, string> = {}): Promise<WebSocket> {
    const { port, host, origin } = this.url;
    const socket = new WebSocket(`ws://127.0.0.1:${port}/ws`, {
      headers: { host, origin, cookie: this.cookie, ...headers },
    });
    await new Promise((resolve, reject) => {
      socket.once('open', resolve).once('error', reject);
    });
    socket.on('error', () => {});
    return socket;
  }
}

export function responseOf(req: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    req.once('response', resolve).once('error', reject);
  });
}
