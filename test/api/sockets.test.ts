/** Limits and protocol errors of connections, tested with raw sockets because HTTP clients cannot send such data. */

import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  allowLongBody,
  type ConnectionLimits,
  createHttpServer,
} from '../../src/platform/web/connections.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
/** A server with short limits, for clients that exceed them: others might do so too on a busy machine. */
let strict: TestApp;
/** The errors in the log of the server. */
const errors: string[] = [];

beforeAll(async () => {
  app = await startApp({
    overrides: {
      log: pino({ level: 'error' }, { write: (line) => void errors.push(line) }),
      connections: { checkMs: 50 },
    },
  });
  const connections = {
    headersMs: 2_000,
    idleMs: 2_000,
    bodyMs: 800,
    leftoverMs: 400,
    slowMs: 800,
    bytesPerSecond: 1_000,
    checkMs: 50,
  };
  strict = await startApp({ overrides: { connections } });
  await strict.admin.post('/auth/v1/repository/admin', { name: 'work' });
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await strict[Symbol.asyncDispose]();
});

type Raw = Disposable & {
  socket: Socket;
  /** All data received so far. */
  text(): string;
  closed: Promise<unknown>;
};

function open(sent: string, server = app): Raw {
  const { hostname, port } = new URL(server.base);
  const socket = connect(Number(port), hostname);
  const closed = once(socket, 'close');
  // A reset closes the connection too.
  socket.on('error', () => {});
  closed.catch(() => {});
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  socket.write(sent);
  return {
    socket,
    text: () => text,
    closed: closed.catch(() => {}),
    [Symbol.dispose]: () => socket.destroy(),
  };
}

const lines = (...all: string[]) => `${all.join('\r\n')}\r\n\r\n`;
const authorization = (server = app) => `Authorization: ${server.admin.authorization}`;

/** Writes one byte from time to time until the server ends the connection. */
async function trickle({ socket, closed }: Raw, byte: string): Promise<void> {
  const timer = setInterval(() => socket.write(byte), 60);
  await closed.finally(() => clearInterval(timer));
}

function parse(text: string) {
  const [head = '', body = ''] = text.split('\r\n\r\n');
  const [status = '', ...fields] = head.split('\r\n');
  const headers = new Map(
    fields.map((field) => {
      const [name = '', value = ''] = field.split(/: (.*)/);
      return [name.toLowerCase(), value];
    }),
  );
  return { status: Number(status.split(' ')[1]), headers, body };
}

function expectRefusal(text: string, status: number, message: RegExp) {
  const answer = parse(text);
  expect(answer.status, text).toBe(status);
  expect(JSON.parse(answer.body)).toEqual({
    error: {
      code: 'invalid_request',
      message: expect.stringMatching(message),
      request_id: answer.headers.get('x-request-id'),
    },
  });
  expect(answer.headers.get('connection')).toBe('close');
  return answer;
}

test.each([
  [
    'a long query',
    () => lines(`GET /auth/v1/whoami?${'q'.repeat(20_000)} HTTP/1.1`, 'Host: x'),
    431,
  ],
  ['long headers', () => lines('GET / HTTP/1.1', 'Host: x', `X-Long: ${'h'.repeat(20_000)}`), 431],
  ['no HTTP', () => 'hello there\r\n\r\n', 400],
  ['a bad header', () => lines('GET /auth/v1/health HTTP/1.1', 'Host: x', 'No colon here'), 400],
  ['a bad length', () => lines('POST /graphql HTTP/1.1', 'Host: x', 'Content-Length: 1x'), 400],
  [
    'two framings',
    () => lines('POST / HTTP/1.1', 'Host: x', 'Content-Length: 1', 'Transfer-Encoding: chunked'),
    400,
  ],
  [
    'a bad chunk',
    () =>
      `${lines('POST /auth/v1/repository/admin HTTP/1.1', 'Host: x', authorization(), 'Transfer-Encoding: chunked')}zz\r\n`,
    400,
  ],
  ['CONNECT', () => lines('CONNECT example.com:443 HTTP/1.1', 'Host: example.com'), 405],
])('%s is refused with the usual error body', async (_what, text, status) => {
  using raw = open(text());
  await raw.closed;
  const { headers } = expectRefusal(raw.text(), status, /./);
  expect(headers.get('access-control-allow-origin')).toBe('*');
  expect(Number(headers.get('x-ratelimit-limit'))).toBeGreaterThan(0);
  expect(Number(headers.get('x-ratelimit-reset'))).toBeGreaterThan(Date.now() / 1_000);
});

test('requests that Node rejects without a body get the usual error body', async () => {
  using without = open(lines('GET /auth/v1/health HTTP/1.1'));
  await eventually(() => expect(without.text()).toContain('request_id'));
  const { status, body, headers } = parse(without.text());
  expect([status, JSON.parse(body).error.message]).toEqual([400, 'The header Host is required']);
  expect(headers.get('x-ratelimit-limit')).toMatch(/^\d+$/);

  using expecting = open(lines('GET /auth/v1/health HTTP/1.1', 'Host: x', 'Expect: miracles'));
  await eventually(() => expect(expecting.text()).toContain('{"status":"ok"}'));
});

test.each(['[::', 'a b', 'a:99999', 'a/b', 'a@b', '%', 'ä'])(
  'the host %s is refused on every route',
  async (host) => {
    const body = '{"query":"{version{build}}"}';
    const head = [`Host: ${host}`, 'Connection: close', 'Content-Type: application/json'];
    for (const path of ['/graphql', '/graphql/stream', '/auth/v1/whoami', '/a/b/info/refs']) {
      const length = `Content-Length: ${path.startsWith('/graphql') ? body.length : 0}`;
      const method = length.endsWith(' 0') ? 'GET' : 'POST';
      using raw = open(`${lines(`${method} ${path} HTTP/1.1`, ...head, length)}${body}`);
      await raw.closed;
      const answer = parse(raw.text());
      expect(answer.status, path).toBe(400);
      expect(answer.body, path).toMatch(/The header Host is not a valid host|not valid HTTP/);
    }
  },
);

test.each([
  ['http://example.com/graphql?query=%7Bversion%7Bbuild%7D%7D', 200, /"build"/],
  ['HTTP://user@example.com:80/auth/v1/health?a=1', 200, /"ok"/],
  ['http://[::1/auth/v1/health', 200, /"ok"/],
  ['https://example.com', 404, /"not_found"/],
  ['ftp://example.com/graphql', 404, /"not_found"/],
  ['//example.com/graphql', 404, /"not_found"/],
])('of the target %s the path counts', async (target, status, body) => {
  using raw = open(lines(`GET ${target} HTTP/1.1`, 'Host: x', 'Connection: close'));
  await raw.closed;
  const answer = parse(raw.text());
  expect([answer.status, answer.body]).toEqual([status, expect.stringMatching(body)]);
  expect(answer.headers.get('x-request-id')).toBeTruthy();
});

test('requests that end early are not logged as server errors', async () => {
  errors.length = 0;
  const head = ['Host: x', authorization(), 'Content-Type: application/json'];
  for (const path of [
    '/auth/v1/pat',
    '/graphql',
    '/graphql/stream',
    '/admin/work/git-receive-pack',
  ])
    for (const rest of [
      'Content-Length: 500\r\n\r\n{"name"',
      'Transfer-Encoding: chunked\r\n\r\nzz\r\n',
    ]) {
      using raw = open(`${lines(`POST ${path} HTTP/1.1`, ...head).slice(0, -2)}${rest}`);
      raw.socket.end();
      await raw.closed;
      expect(parse(raw.text()).status, path).toBe(400);
    }
  // Requests are handled in order: after this response, the requests before it have ended.
  await app.admin.get('/auth/v1/whoami');
  expect(errors).toEqual([]);
});

test('valid requests before an invalid request get their responses first, in order', async () => {
  const whoami = lines('GET /auth/v1/whoami HTTP/1.1', 'Host: x', authorization());
  using raw = open(`${whoami}${whoami}no http\r\n\r\n`);
  await raw.closed;
  const statuses = [...raw.text().matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status);
  expect(statuses).toEqual(['200', '200', '400']);
  expect(raw.text().match(/"username":"admin"/g)).toHaveLength(2);
});

test.each([
  ['REST', '/auth/v1/repository/admin', 408],
  ['GraphQL', '/graphql', 408],
  ['git, which answers at once', '/admin/none.git/git-upload-pack', 404],
  ['no route at all', '/nowhere', 404],
])('a body that trickles into %s is cut', async (_what, path, status) => {
  const head = ['Host: x', authorization(strict), 'Content-Type: application/json'];
  const begun = `${lines(`POST ${path} HTTP/1.1`, ...head, 'Content-Length: 500')}{"name":`;
  using raw = open(begun, strict);
  await trickle(raw, ' ');
  if (status === 408) expectRefusal(raw.text(), 408, /^The body came too slowly/);
  else expect(parse(raw.text()).status).toBe(status);
  expect((await strict.admin.get('/auth/v1/whoami')).status).toBe(200);
});

test('a push whose body is too slow is cut off', async () => {
  const type = 'Content-Type: application/x-git-receive-pack-request';
  const head = ['Host: x', authorization(strict), type, 'Content-Length: 5000'];
  using raw = open(lines('POST /admin/work.git/git-receive-pack HTTP/1.1', ...head), strict);
  // The length of a pkt-line that never arrives.
  await trickle(raw, '1');
  expectRefusal(raw.text(), 408, /^The body came too slowly/);
});

test('a push may take long while its data flows, and is cut off when the data is too slow', async () => {
  await using workspace = await Workspace.open();
  await workspace.git('.', 'init', '-qb', 'main', 'work');
  await workspace.commit('work', { 'random.bin': randomBytes(8_000) });
  const push = async (bytes: number, everyMs: number) => {
    await using slow = await throttle(strict.base, bytes, everyMs);
    const url = `http://x:${strict.admin.token}@127.0.0.1:${slow.port}/admin/pushed.git`;
    const begun = performance.now();
    const result = await workspace.try('work', 'push', url, 'main');
    return { ...result, tookMs: performance.now() - begun };
  };
  await strict.admin.post('/auth/v1/repository/admin', { name: 'pushed', auto_init: false });
  // 200 bytes/s are too slow. The second push takes far longer than the limit for other bodies.
  expect((await push(20, 100)).code).not.toBe(0);
  const flowing = await push(200, 50);
  expect([flowing.code, flowing.stderr]).toEqual([0, expect.stringContaining('main -> main')]);
  expect(flowing.tookMs).toBeGreaterThan(1_600);
});

test('a request that the server reads slowly is not cut off', async () => {
  await using server = await bare({ slowMs: 200, bytesPerSecond: 1_000_000 }, async (req, res) => {
    allowLongBody(req);
    await delay(1_000);
    let size = 0;
    for await (const chunk of req) size += chunk.length;
    res.end(`${size} bytes`);
  });
  const response = await fetch(server.base, { method: 'POST', body: 'x'.repeat(300_000) });
  expect(await response.text()).toBe('300000 bytes');
});

test('a write to a response after its request was cut off has no effect', async () => {
  await using server = await bare({ bodyMs: 200 }, (_req, res) => {
    res.once('prefinish', () => res.write('late'));
  });
  const socket = connect(server.port, '127.0.0.1');
  let text = '';
  socket
    .on('error', () => {})
    .on('data', (chunk) => {
      text += chunk;
    });
  socket.write(`${lines('POST / HTTP/1.1', 'Host: x', 'Content-Length: 9')}slow`);
  await once(socket, 'close');
  expectRefusal(text, 408, /^The body came too slowly/);
  expect(text).not.toContain('late');
});

test('a write after the end of the response does not end the server', async () => {
  const late = Promise.withResolvers<void>();
  await using server = await bare({}, (_req, res) => {
    res.end('whole');
    res.write('late', () => late.resolve());
  });
  expect(await (await fetch(server.base)).text()).toBe('whole');
  // Vitest fails a file in which an `error` event had no listener.
  await late.promise;
  expect(await (await fetch(server.base)).text()).toBe('whole');
});

test('a client that reads a response too slowly is cut off', async () => {
  const ended = Promise.withResolvers<void>();
  await using server = await bare({ slowMs: 200, bytesPerSecond: 1_000_000 }, (_req, res) => {
    const more = () => {
      while (res.write('x'.repeat(65_536)));
    };
    res.on('drain', more).on('close', ended.resolve);
    more();
  });
  const socket = connect(server.port, '127.0.0.1').pause();
  socket.on('error', () => {});
  socket.write(lines('GET / HTTP/1.1', 'Host: x'));
  await ended.promise;
  socket.destroy();
});

test('the rest of a refused body may arrive for a limited time', async () => {
  const type = 'Content-Type: application/json';
  const sized = (bytes: number, server = app) => {
    const head = ['Host: x', authorization(server), type, `Content-Length: ${bytes}`];
    return lines('POST /auth/v1/repository/admin HTTP/1.1', ...head);
  };
  // Most clients send the whole body before they read the response. The connection stays open.
  using whole = open(sized(2 ** 21) + ' '.repeat(2 ** 21));
  whole.socket.write(lines('GET /auth/v1/health HTTP/1.1', 'Host: x'));
  await eventually(() => expect(whole.text()).toContain('{"status":"ok"}'));
  expect(whole.text()).toMatch(/^HTTP\/1.1 400/);
  expect(whole.text()).toContain('The body is larger than 1 MiB');

  using endless = open(sized(2 ** 40, strict), strict);
  await trickle(endless, ' '.repeat(1_000));
  expect(parse(endless.text()).status).toBe(400);
});

test.each([
  ['says nothing', '', '', 408],
  ['sends its headers byte by byte', 'GET /auth/v1/health HTTP/1.1\r\nX-Slow: ', 'x', 408],
  ['sends nothing but empty lines', lines('GET /auth/v1/health HTTP/1.1', 'Host: x'), '\r\n', 200],
])('a connection that %s is closed', async (_what, begin, byte, status) => {
  using raw = open(begin, strict);
  await trickle(raw, byte);
  expect(parse(raw.text()).status).toBe(status);
  if (status === 408) expectRefusal(raw.text(), 408, /^The headers came too slowly/);
});

test('an event stream stays open, and so does a connection with pauses between requests', async () => {
  const query = 'subscription { jobEvents(namespace: "admin") { type } }';
  const stream = await fetch(`${strict.base}/graphql`, {
    method: 'POST',
    headers: {
      authorization: strict.admin.authorization as string,
      accept: 'text/event-stream',
      'content-type': 'application/json',
    },
    body: JSON.stringify({ query }),
  });
  const reader = (stream.body as ReadableStream<Uint8Array>).getReader();
  let cut = false;
  const reading = (async () => {
    while (!(await reader.read()).done);
    cut = true;
  })();
  const whoami = lines('GET /auth/v1/whoami HTTP/1.1', 'Host: x', authorization());
  using raw = open(whoami);
  await delay(300);
  raw.socket.write(whoami);
  await eventually(() => expect(raw.text().match(/"username"/g)).toHaveLength(2));
  // Longer than every limit.
  await delay(2_500);
  expect(cut).toBe(false);
  await reader.cancel();
  await reading;
});

/** A server with these limits and one handler. */
async function bare(
  limits: Partial<ConnectionLimits>,
  handler: (req: IncomingMessage, res: ServerResponse) => void,
) {
  const server = createHttpServer(async () => ({}), { checkMs: 50, ...limits });
  server.on('request', handler);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    port,
    base: `http://127.0.0.1:${port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

/** A proxy to the server that forwards at most `bytes` every `everyMs`. */
async function throttle(base: string, bytes: number, everyMs: number) {
  const { hostname, port: target } = new URL(base);
  const open = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(target), hostname);
    let waiting = Buffer.alloc(0);
    const timer = setInterval(() => {
      far.write(waiting.subarray(0, bytes));
      waiting = waiting.subarray(bytes);
    }, everyMs);
    near.on('data', (chunk: Buffer) => {
      waiting = Buffer.concat([waiting, chunk]);
    });
    far.pipe(near);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      open.add(one);
      one.on('error', () => {});
      one.on('close', () => {
        clearInterval(timer);
        other.destroy();
      });
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      for (const socket of open) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

/** Opens connections at the same time, and ends when all are open. */
const MANY_CONNECTIONS = `
const { connect } = require('node:net');
const [port, count] = process.argv.slice(1).map(Number);
let open = 0;
for (let i = 0; i < count; i++)
  connect(port, '127.0.0.1', () => ++open === count && process.exit(0)).on('error', () => process.exit(1));
`;

test('a thousand connections are kept while the server is busy', async (ctx) => {
  const longest = Number(readFileSync('/proc/sys/net/core/somaxconn', 'utf8'));
  ctx.skip(longest < 1_000, 'net.core.somaxconn is below 1000');
  await using app = await startApp();
  const { port } = new URL(app.base);
  // Blocks this thread, so that no connection is accepted.
  execFileSync(process.execPath, ['-e', MANY_CONNECTIONS, port, '1000'], { timeout: 60_000 });
});
