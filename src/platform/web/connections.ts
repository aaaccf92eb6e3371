/**
 * What holds for every connection, whatever is asked on it: each is bounded in time, and what Node refuses
 * before it is a request (a header that is too long, a line that is no HTTP) is answered like any other error.
 *
 * A client that sends or takes a byte now and then resets every timeout of Node's but the one for headers, so
 * its progress is measured here, by one timer for all connections. A request costs an entry in a set.
 */
import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import type { Socket } from 'node:net';
import { AppError, invalid } from '../../base/errors.ts';
import { answerOf } from './error-response.ts';

export type ConnectionLimits = {
  /** From the first byte of a request, or the opening of the connection, to the end of the headers. */
  headersMs: number;
  /** Between requests. Longer than the 60 s of nginx and haproxy, so that they close first and lose no request. */
  idleMs: number;
  /** For a whole body, unless its route takes long ones. */
  bodyMs: number;
  /** For the rest of a body that was answered before its end: its sender may need to send it all first. */
  leftoverMs: number;
  /** How long a client may stay below `bytesPerSecond`, with a long body or with taking an answer. */
  slowMs: number;
  bytesPerSecond: number;
  checkMs: number;
};

export const CONNECTION_LIMITS: ConnectionLimits = {
  headersMs: 30_000,
  idleMs: 75_000,
  bodyMs: 60_000,
  leftoverMs: 10_000,
  slowMs: 60_000,
  bytesPerSecond: 1_024,
  checkMs: 5_000,
};

/** Nothing at all moved in either direction. Git and event streams give a sign of life every few seconds. */
const SILENCE_MS = 120_000;
/** After an answer to what was no request: time for the client to read it before the connection is reset. */
const LINGER_MS = 1_000;

const long = new WeakSet<IncomingMessage>();

/** The body may take as long as it flows at the least rate: a push, an upload. To be called before it is read. */
export function takesLong(req: IncomingMessage): void {
  long.add(req);
}

/** Aborts when the answer is closed: it was sent, or its client is gone, perhaps before this was called. */
export function closingOf(res: ServerResponse): AbortSignal {
  const closed = new AbortController();
  res.once('close', () => closed.abort());
  // `close` does not come again.
  if (res.closed || res.destroyed) closed.abort();
  return closed.signal;
}

const cutOff = new WeakSet<IncomingMessage>();

/** Whether it was answered here before its end, so that whatever its handler still tries to say comes too late. */
export function wasCutOff(req: IncomingMessage): boolean {
  return cutOff.has(req);
}

/** Headers for the answer to an address that sent no proper request. */
export type HeadersFor = (address: string) => Promise<Record<string, string | number>>;

type Exchange = { req: IncomingMessage; res: ServerResponse; since: number; answered?: number };
/** When a client was last fast enough, and the bytes until then. */
type Progress = { since: number; bytes: number };
type Connection = {
  /** Requests whose answer or body is not complete, oldest first: clients may send several at once. */
  exchanges: Set<Exchange>;
  idleSince: number;
  received: Progress;
  sent: Progress;
  refused: boolean;
};

/** A server without a listener for `request`, which keeps all of the above. `isUpgrade`: whether `upgrade` is emitted. */
export function openServer(
  headersFor: HeadersFor,
  changes: Partial<ConnectionLimits> = {},
  isUpgrade: (req: IncomingMessage) => boolean = () => false,
): Server {
  const limits = { ...CONNECTION_LIMITS, ...changes };
  const server = createServer({
    headersTimeout: limits.headersMs,
    connectionsCheckingInterval: limits.checkMs,
    keepAliveTimeout: limits.idleMs,
    // Node would measure a push by it; bodies are measured below.
    requestTimeout: 0,
    // Answered without a body by Node; server.ts refuses in the form of all errors.
    requireHostHeader: false,
    // Others are answered as if they had not asked for another protocol.
    shouldUpgradeCallback: isUpgrade,
  });
  server.timeout = SILENCE_MS;
  const connections = new Map<Socket, Connection>();
  const breakOff = (exchange: Exchange, error: AppError) => {
    cutOff.add(exchange.req);
    answerAndEnd(exchange, error, headersFor).catch(() => exchange.req.destroy());
  };
  const refuse = (socket: Socket, error: AppError) => {
    refuseAndEnd(socket, error, headersFor).catch(() => socket.destroy());
  };
  // It advances with each check, so that no client pays for a time in which this process stood still.
  let now = 0;

  server.on('connection', (socket) => {
    connections.set(socket, {
      exchanges: new Set(),
      idleSince: now,
      received: { since: now, bytes: 0 },
      sent: { since: now, bytes: 0 },
      refused: false,
    });
    socket.once('close', () => connections.delete(socket));
  });
  server.on('request', (req, res) => {
    req.url = originForm(req.url ?? '');
    const connection = connections.get(req.socket);
    if (!connection) return;
    const exchange: Exchange = { req, res, since: now };
    connection.received = { since: now, bytes: req.socket.bytesRead };
    connection.exchanges.add(exchange);
    // A write to an answer that has ended, or whose client has gone, is an `error`, and one without a listener
    // would end the server. Handlers need `close` alone.
    res.on('error', () => {});
    res.once('close', () => {
      connection.idleSince = exchange.answered = now;
      if (req.complete) connection.exchanges.delete(exchange);
    });
  });
  // Whoever takes such a connection looks after it.
  server.on('upgrade', (_req, socket) => {
    connections.delete(socket as Socket);
    (socket as Socket).setTimeout(0);
  });
  // A request with an unknown expectation is answered like any other.
  server.on('checkExpectation', (req, res) => server.emit('request', req, res));
  server.on('connect', (_req, socket) => {
    const refusal = new AppError('invalid_request', 'This server is no proxy: CONNECT is refused', {
      status: 405,
      headers: { Allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' },
    });
    refuse(socket as Socket, refusal);
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const connection = connections.get(socket as Socket);
    if (connection?.refused) return;
    if (!connection || !socket.writable || error.code === 'ECONNRESET')
      return void socket.destroy();
    connection.refused = true;
    const refusal = refusalOf(error);
    const open = [...connection.exchanges].filter(({ res }) => !res.closed);
    const last = open.at(-1);
    if (last && !last.req.complete) return breakOff(last, refusal);
    // What was asked properly before is answered first.
    const answers = open.map(({ res }) => new Promise((done) => res.once('close', done)));
    Promise.all(answers).then(() => refuse(socket as Socket, refusal));
  });

  const timer = setInterval(() => {
    now += limits.checkMs;
    for (const [socket, connection] of connections) {
      const slow = check(socket, connection, limits, now);
      if (slow) breakOff(slow, tooSlow('The body'));
    }
  }, limits.checkMs);
  timer.unref();
  server.on('close', () => clearInterval(timer));
  return server;
}

/**
 * The path and query of a target, which may be a whole address (RFC 9112 section 3.2.2). Express and Yoga take their
 * paths from it in ways of their own, and answer one that is neither with pages of theirs.
 */
function originForm(target: string): string {
  if (target.startsWith('/') || target === '*') return target;
  const path = target.replace(/^https?:\/\/[^/?#]*/i, '');
  return path.startsWith('/') ? path : `/${path}`;
}

/** Ends a connection that is past a limit. @returns the request whose body is, which is to be answered first. */
function check(
  socket: Socket,
  connection: Connection,
  limits: ConnectionLimits,
  now: number,
): Exchange | undefined {
  const { exchanges, idleSince } = connection;
  for (const exchange of exchanges)
    if (exchange.req.complete && exchange.res.closed) exchanges.delete(exchange);
  // Empty lines between requests reset Node's timeout, and count for nothing here.
  if (exchanges.size === 0 && now - idleSince > limits.idleMs + limits.headersMs) socket.destroy();

  const pending = socket.writableLength;
  const taken = { now, bytes: socket.bytesWritten - pending, waiting: pending > 0 };
  // One large piece counts as taken at its end only.
  if (lags(connection.sent, taken, limits, (pending / limits.bytesPerSecond) * 1_000))
    socket.destroy();

  const last = [...exchanges].at(-1);
  if (!last || last.req.complete || socket.destroyed) return undefined;
  const { req, since, answered } = last;
  if (answered !== undefined) {
    if (now - answered > limits.leftoverMs) socket.destroy();
    return undefined;
  }
  // While bytes wait to be read, it is the reader who is slow.
  const given = { now, bytes: socket.bytesRead, waiting: req.readableLength === 0 };
  const isLate = long.has(req)
    ? lags(connection.received, given, limits)
    : now - since > limits.bodyMs;
  return isLate ? last : undefined;
}

/** Whether a client that we wait for has been too slow for too long. Notes in `progress` when it was not. */
function lags(
  progress: Progress,
  { now, bytes, waiting }: { now: number; bytes: number; waiting: boolean },
  { bytesPerSecond, slowMs }: ConnectionLimits,
  extraMs = 0,
): boolean {
  const elapsed = now - progress.since;
  if (!waiting || (bytes - progress.bytes) * 1_000 >= elapsed * bytesPerSecond) {
    progress.since = now;
    progress.bytes = bytes;
    return false;
  }
  return elapsed > slowMs + extraMs;
}

/** Answers a request whose body will not be read to its end, and ends the connection, which is out of step. */
async function answerAndEnd(
  { req, res }: Exchange,
  error: AppError,
  headersFor: HeadersFor,
): Promise<void> {
  const counted = res.hasHeader('X-RateLimit-Limit');
  const shown = counted ? {} : await headersFor(req.socket.remoteAddress ?? '');
  if (res.headersSent) return void req.destroy();
  // The reader of the body gets its end, and what is then written to the answer is dropped.
  res.once('close', () => req.destroy());
  const id = String(res.getHeader('X-Request-Id') ?? randomUUID());
  const { status, headers, body } = answerOf(error, id);
  const text = JSON.stringify(body);
  res.writeHead(status, { ...shown, ...headers, ...framed(text), 'X-Request-Id': id });
  res.end(text);
}

/** Answers what was no request, and so has nothing to answer with, and ends the connection. */
async function refuseAndEnd(
  socket: Socket,
  error: AppError,
  headersFor: HeadersFor,
): Promise<void> {
  // The client has gone, so there is nothing to answer.
  socket.on('error', () => socket.destroy());
  const id = randomUUID();
  const shown = await headersFor(socket.remoteAddress ?? '');
  if (!socket.writable) return void socket.destroy();
  const { status, headers, body } = answerOf(error, id);
  const text = JSON.stringify(body);
  const lines = Object.entries({
    Date: new Date().toUTCString(),
    ...shown,
    ...headers,
    ...framed(text),
    'X-Request-Id': id,
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${text}`);
  socket.resume();
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}

function framed(text: string) {
  return {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': Buffer.byteLength(text),
    'Cache-Control': 'no-store',
    Connection: 'close',
  };
}

function refusalOf({ code, message }: NodeJS.ErrnoException): AppError {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return new AppError(
        'invalid_request',
        'The request line and the headers are larger than 16 KiB',
        { status: 431 },
      );
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return tooSlow('The headers');
    default:
      return invalid(null, `This is not valid HTTP: ${message.replace(/^Parse Error: /, '')}`);
  }
}

function tooSlow(what: string): AppError {
  return new AppError('invalid_request', `${what} came too slowly; the connection is closed`, {
    status: 408,
  });
}
