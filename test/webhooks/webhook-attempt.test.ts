/** Single attempts without a database: the request that is sent, and the outcome of each way in which an endpoint can fail. */
import { createHmac } from 'node:crypto';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer, type TLSSocket } from 'node:tls';
import { Webhook } from 'standardwebhooks';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  type AttemptDeps,
  attemptDelivery,
  type OutgoingMessage,
} from '../../src/webhooks/delivery/attempt.ts';
import { type Connector, createConnector } from '../../src/webhooks/delivery/connector.ts';
import type { Lookup } from '../../src/webhooks/delivery/guard.ts';
import { createGuard } from '../../src/webhooks/delivery/guard.ts';
import { DELAYS, nextDelay, readRetryAfter } from '../../src/webhooks/delivery/schedule.ts';
import {
  type Authority,
  makeAuthority,
  type Receiver,
  startReceiver,
} from '../support/webhook-receiver.ts';

let authority: Authority;
let receiver: Receiver;
let connector: Connector;
const running = new AbortController();
/** The response, set by tests. */
const names = new Map<string, string[]>();
const lookup: Lookup = async (host) => {
  const addresses = names.get(host);
  if (!addresses) throw new Error('no such name');
  return addresses;
};

beforeAll(async () => {
  authority = await makeAuthority();
  receiver = await startReceiver(authority);
  const guard = createGuard(['127.0.0.0/8']);
  connector = createConnector({ guard, lookup, authorities: [authority.pem] });
});
afterAll(async () => {
  await connector[Symbol.asyncDispose]();
  await receiver[Symbol.asyncDispose]();
  await authority[Symbol.asyncDispose]();
});

const BODY = '{"id":"evt_1","type":"ping","data":{"text":"ümlaut"}}';

function send(
  url: string,
  message: Partial<OutgoingMessage> = {},
  means: Partial<AttemptDeps> = {},
  signal = running.signal,
) {
  const whole = { webhookId: 'wh_1', url, secrets: [], id: 'evt_1', body: BODY, ...message };
  return attemptDelivery({ connector, userAgent: 'Loam/test', ...means }, whole, signal);
}

/** The last request that the receiver got. */
const last = () => receiver.received.at(-1) ?? expect.fail('nothing was received');

test('signatures are valid for standardwebhooks, and for node:crypto on the raw body', async () => {
  const secret = `whsec_${Buffer.from('a secret of twenty-four bytes').toString('base64')}`;
  const result = await send(`${receiver.url}/hook?a=b`, { secrets: [secret] });
  expect(result).toMatchObject({
    outcome: 'status_204',
    status: 204,
    answer: '',
    retryAfter: null,
  });
  const { path, headers, body } = last();
  expect(path).toBe('/hook?a=b');
  expect(headers).toMatchObject({
    'user-agent': 'Loam/test',
    'content-type': 'application/json',
    'webhook-id': 'evt_1',
    'content-length': `${Buffer.byteLength(BODY)}`,
  });
  expect(new Webhook(secret).verify(body, headers as Record<string, string>)).toEqual(
    JSON.parse(BODY),
  );
  const expected = createHmac('sha256', secret).update(body).digest('hex');
  expect(headers['x-service-signature']).toBe(`sha256=${expected}`);
  expect(() => new Webhook(secret).verify(`${body} `, headers as Record<string, string>)).toThrow();
});

test('a secret that is not base64 signs with the bytes of its text, and the previous secret signs as well', async () => {
  const before = Math.floor(Date.now() / 1_000);
  await send(receiver.url, { secrets: ['new secret', 'former secret'] });
  const { headers, body } = last();
  for (const secret of ['new secret', 'former secret'])
    new Webhook(secret, { format: 'raw' }).verify(body, headers as Record<string, string>);
  const hmac = (secret: string) =>
    `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;
  expect(headers['x-service-signature']).toBe(hmac('new secret'));
  expect(headers['x-service-signature-former']).toBe(hmac('former secret'));
  const at = Number(headers['webhook-timestamp']);
  expect(at).toBeGreaterThanOrEqual(before);
  const own = createHmac('sha256', 'new secret').update(`evt_1.${at}.${body}`).digest('base64');
  expect(headers['webhook-signature']?.toString().split(' ')[0]).toBe(`v1,${own}`);
  expect(at).toBeLessThanOrEqual(Date.now() / 1_000);
});

test('without a secret there are no signatures', async () => {
  await send(receiver.url);
  expect(last().headers).toMatchObject({ 'webhook-id': 'evt_1' });
  expect(Object.keys(last().headers).filter((name) => name.includes('signature'))).toEqual([]);
});

test('a connection is reused, also after a response of up to 64 kB', async () => {
  await send(receiver.url);
  const before = receiver.connections;
  receiver.answer = (response) => void response.writeHead(200).end('ü'.repeat(30_000));
  for (let i = 0; i < 6; i++)
    expect(await send(receiver.url)).toMatchObject({ outcome: 'status_200' });
  // A request right after a response may need a second connection: undici frees the first one a moment later.
  expect(receiver.connections).toBeLessThanOrEqual(before + 1);
});

test('one kilobyte of the response is recorded, and an endless response is cut off', async () => {
  let wasCut = Promise.resolve();
  receiver.answer = (response) => {
    const { promise, resolve } = Promise.withResolvers<void>();
    wasCut = promise;
    response.on('close', resolve);
    response.writeHead(200);
    const more = () => {
      while (!response.destroyed && response.write('\0abcdefghijklmno'.repeat(1_024)));
      if (!response.destroyed) response.once('drain', more);
    };
    more();
  };
  const result = await send(receiver.url);
  expect(result.outcome).toBe('status_200');
  expect(result.answer).toBe('\ufffdabcdefghijklmno'.repeat(64));
  await wasCut;
});

test.each([
  [500, 'status_500'],
  [301, 'status_301'],
  [410, 'status_410'],
  [200, 'status_200'],
])('a status of %s is the outcome, and a redirect is not followed', async (code, outcome) => {
  receiver.answer = (response) =>
    void response.writeHead(code, { location: `${receiver.url}/elsewhere` }).end('text');
  expect(await send(receiver.url)).toMatchObject({ outcome, status: code, answer: 'text' });
  expect(receiver.received.filter(({ path }) => path === '/elsewhere')).toEqual([]);
});

test('interim responses are skipped', async () => {
  receiver.answer = (response) => {
    response.writeProcessing();
    response.writeEarlyHints({ link: '</a>; rel=preload' });
    response.writeHead(503, { 'retry-after': '120' }).end();
  };
  expect(await send(receiver.url)).toMatchObject({ outcome: 'status_503', retryAfter: 120_000 });
});

/** Responds to each connection with this text after the TLS handshake, or never responds. */
async function startRaw(act: (socket: TLSSocket, raw: Socket) => void) {
  let raw: Socket | undefined;
  const server = createTlsServer(await authority.certify('IP:127.0.0.1'), (socket) => {
    socket.on('error', () => {});
    if (raw) act(socket, raw);
  });
  server.on('connection', (socket) => {
    raw = socket;
  });
  return listening(server);
}

async function listening(server: Server) {
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
  });
  server.on('tlsClientError', () => {});
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    port,
    url: `https://127.0.0.1:${port}`,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

test('invalid HTTP and broken connections have their own outcomes', async () => {
  await using nonsense = await startRaw((socket) => socket.end('SSH-2.0-OpenSSH_9.2\r\n'));
  await using large = await startRaw((socket) =>
    socket.write(`HTTP/1.1 200 OK\r\nx: ${'a'.repeat(40_000)}\r\n`),
  );
  await using upgrade = await startRaw((socket) =>
    socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n'),
  );
  await using unasked = await startRaw((socket) => socket.write('HTTP/1.1 100 Continue\r\n\r\n'));
  await using reset = await startRaw((socket, raw) =>
    socket.once('data', () => raw.resetAndDestroy()),
  );
  await using closing = await startRaw((socket) => socket.once('data', () => socket.end()));
  await using half = await startRaw((socket) =>
    socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun')),
  );
  await using plain = await listening(
    createServer((socket) => socket.end('HTTP/1.1 200 OK\r\n\r\n')),
  );
  const outcomes = await Promise.all(
    [nonsense, large, upgrade, unasked, reset, closing, half, plain].map(({ url }) => send(url)),
  );
  expect(outcomes.map(({ outcome }) => outcome)).toEqual([
    ...['bad_answer', 'bad_answer', 'bad_answer', 'bad_answer'],
    ...['reset', 'reset', 'status_200', 'tls_failed'],
  ]);
  expect(outcomes[6]).toMatchObject({ answer: 'begun' });
});

test('the total size of a response is limited, including interim responses, chunk extensions and trailers', async () => {
  const flood = (begin: string, more: string) =>
    startRaw((socket) => {
      const on = () => {
        while (!socket.destroyed && socket.write(more));
      };
      socket.once('data', () => {
        socket.write(begin);
        socket.on('drain', on);
        on();
      });
    });
  const chunked = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';
  const interim = 'HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n';
  await using hints = await flood('', interim.repeat(500));
  await using extension = await flood(`${chunked}1;`, 'x'.repeat(30_000));
  // Without the limit, neither would end before the test does.
  const timeoutMs = 3_600_000;
  expect(await send(hints.url, {}, { timeoutMs })).toMatchObject({
    outcome: 'bad_answer',
    status: null,
  });
  // The status has decided the result of the message.
  expect(await send(extension.url, {}, { timeoutMs })).toMatchObject({ outcome: 'status_200' });
});

test('the size limit applies to each response, not to a connection', async () => {
  receiver.answer = (response) => void response.writeHead(200).end('x'.repeat(60_000));
  await send(receiver.url);
  const before = receiver.connections;
  for (let i = 0; i < 8; i++)
    expect(await send(receiver.url)).toMatchObject({ outcome: 'status_200' });
  // A request right after a response may need a second connection: undici frees the first one a moment later.
  expect(receiver.connections).toBeLessThanOrEqual(before + 1);
});

test('the certificate must be valid for the host, by name or by address', async () => {
  receiver.answer = (response) => void response.writeHead(204).end();
  for (const name of ['right.hooks.test', 'right.hooks.test.', 'wrong.example'])
    names.set(name, ['127.0.0.1']);
  const at = (host: string) => send(`https://${host}:${receiver.port}/`);
  expect(await at('right.hooks.test')).toMatchObject({ outcome: 'status_204' });
  expect(await at('right.hooks.test.')).toMatchObject({ outcome: 'status_204' });
  expect(await at('wrong.example')).toMatchObject({
    outcome: 'tls_failed',
    reason: expect.stringMatching(/wrong\.example.* not in the cert/),
  });
  expect(await at('unknown.example')).toMatchObject({ outcome: 'dns_failed', status: null });
  await using other = await startReceiver(authority, '127.0.0.2');
  names.set('moved.hooks.test', ['127.0.0.2']);
  expect(await send(other.url)).toMatchObject({ outcome: 'status_204' });
  await using stranger = await makeAuthority();
  await using unknown = await startReceiver(stranger);
  expect(await send(unknown.url)).toMatchObject({
    outcome: 'tls_failed',
    reason: expect.stringContaining('unable to verify'),
  });
  // Other outcomes have no reason, because it could reveal the operator's network.
  expect(await at('unknown.example')).not.toHaveProperty('reason');
});

test('the next address is tried if an address does not answer', async () => {
  names.set('two.hooks.test', ['127.0.0.9', '127.0.0.1']);
  expect(await send(`https://two.hooks.test:${receiver.port}/`)).toMatchObject({
    outcome: 'status_204',
  });
  names.set('none.hooks.test', ['127.0.0.8', '127.0.0.9']);
  expect(await send(`https://none.hooks.test:${receiver.port}/`)).toMatchObject({
    outcome: 'connect_failed',
  });
});

test('an attempt ends at its timeout, in every phase', async () => {
  await using silent = await listening(createServer(() => {}));
  await using mute = await startRaw(() => {});
  await using slow = await startRaw((socket) =>
    socket.once('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n');
      const writing = setInterval(() => socket.write('.'), 200);
      socket.on('close', () => clearInterval(writing));
    }),
  );
  const hanging: Lookup = (_, signal) =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  const guard = createGuard(['127.0.0.0/8']);
  await using unanswered = createConnector({ guard, lookup: hanging, authorities: [] });
  // Long enough for a TLS handshake and a status on a busy machine.
  const timeoutMs = 5_000;
  const started = performance.now();
  const [tls, answer, body, name] = await Promise.all([
    send(silent.url, {}, { timeoutMs }),
    send(mute.url, {}, { timeoutMs }),
    send(slow.url, {}, { timeoutMs }),
    send('https://hanging.example/', {}, { timeoutMs, connector: unanswered }),
  ]);
  expect(tls.outcome).toBe('timeout');
  expect(answer.outcome).toBe('timeout');
  expect(name.outcome).toBe('timeout');
  // The status has decided the result of the message.
  expect(body.outcome).toBe('status_200');
  expect(performance.now() - started).toBeGreaterThan(timeoutMs - 100);
});

test('an attempt that the server aborts has no outcome', async () => {
  await using mute = await startRaw(() => {});
  const stop = new AbortController();
  const sending = send(mute.url, {}, {}, stop.signal);
  setImmediate(() => stop.abort());
  await expect(sending).rejects.toThrow('aborted');
});

test('the delays follow the schedule, plus up to a fifth', () => {
  expect(DELAYS.map((ms) => ms / 60_000)).toEqual([
    0,
    5 / 60,
    5,
    30,
    120,
    300,
    600,
    840,
    1_200,
    1_440,
  ]);
  expect(nextDelay(1, null, () => 0)).toBe(5_000);
  expect(nextDelay(1, null, () => 0.999)).toBeCloseTo(6_000, -1);
  expect(nextDelay(9, null, () => 0)).toBe(24 * 3_600_000);
  expect(nextDelay(10, null, () => 0)).toBeNull();
  expect(nextDelay(1, 60_000, () => 0)).toBe(60_000);
  expect(nextDelay(2, 60_000, () => 0)).toBe(300_000);
  expect(nextDelay(1, 90 * 24 * 3_600_000, () => 0)).toBe(24 * 3_600_000);
  expect(nextDelay(10, 60_000, () => 0)).toBeNull();
});

test('Retry-After is seconds or a date, and other values are ignored', () => {
  const now = Date.parse('2026-01-01T00:00:00Z');
  expect(readRetryAfter('120', now)).toBe(120_000);
  expect(readRetryAfter('0', now)).toBe(0);
  expect(readRetryAfter('Thu, 01 Jan 2026 00:01:00 GMT', now)).toBe(60_000);
  expect(readRetryAfter('Thursday, 01-Jan-26 00:01:00 GMT', now)).toBe(60_000);
  expect(readRetryAfter('Wed, 31 Dec 2025 23:59:00 GMT', now)).toBe(0);
  for (const text of [undefined, '', '-5', '1.5', '1e9', 'soon', 'Mon, never', '9'.repeat(400)])
    expect(readRetryAfter(text, now)).toBeNull();
});
