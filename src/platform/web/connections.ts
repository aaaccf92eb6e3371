/**
 * Limits for every connection: each is bounded in time, and input that Node refuses before it is a request (a header that is
 * too long, a line that is not HTTP) gets an error response like any other.
 *
 * A client that sends or receives a byte now and then resets every timeout of Node except the one for headers. So progress
 * is measured here, by one timer for all connections. A request costs an entry in a set.
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
import { toErrorResponse } from './error-response.ts';

export type ConnectionLimits = {
  /** From the first byte of a request, or from the opening of the connection, to the end of the headers. */
  headersMs: number;
  /** Between requests. Longer than the 60 s of nginx and haproxy, so that they close first and lose no request. */
  idleMs: number;
  /** For a whole body, unless its route accepts long bodies. */
  bodyMs: number;
  /** For the rest of a body that was answered early: its sender may have to send all of it first. */
  leftoverMs: number;
  /** How long a client may stay below `bytesPerSecond` while it sends a long body or receives a response. */
  slowMs: number;
  bytesPerSecond: number;
  checkMs: number;
};

const CONNECTION_LIMITS: ConnectionLimits = {
  headersMs: 30_000,
  idleMs: 75_000,
  bodyMs: 60_000,
  leftoverMs: 10_000,
  slowMs: 60_000,
  bytesPerSecond: 1_024,
  checkMs: 5_000,
};

/** Without any byte in either direction. Git and event streams send keepalives every few seconds. */
const SILENCE_MS = 120_000;
/** After the response to invalid input: time for the client to read it before the connection is reset. */
const LINGER_MS = 1_000;

const longBodies = new WeakSet<IncomingMessage>();

/** Allows a body of any duration at the minimum rate: a push, an upload. Must be called before the body is read. */
export function allowLongBody(req: IncomingMessage): void {
  longBodies.add(req);
}

/** Aborts when the response is closed: it was sent, or the client has disconnected, even before this call. */
export function closeSignal(res: ServerResponse): AbortSignal {
  const closed = new AbortController();
  res.once('close', () => closed.abort());
  // `close` is not emitted again.
  if (res.closed || res.destroyed) closed.abort();
  return closed.signal;
}

const answeredEarly = new WeakSet<IncomingMessage>();

/** Whether the request was answered here before its end, so that its handler's response comes too late. */
export function wasAnsweredEarly(req: IncomingMessage): boolean {
  return answeredEarly.has(req);
}

/** Returns headers for the response to an address that sent no valid request. */
export type HeadersFor = (address: string) => Promise<Record<string, string | number>>;

type Exchange = { req: IncomingMessage; res: ServerResponse; since: number; answered?: number };
/** When the client was last fast enough, and the bytes until then. */
type Progress = { since: number; bytes: number };
type Connection = {
  /** Requests whose response or body is incomplete, oldest first: clients may pipeline. */
  exchanges: Set<Exchange>;
  idleSince: number;
  received: Progress;
  sent: Progress;
  refused: boolean;
};

/** Creates a server with these limits. Callers add the `request` listener. `isUpgrade`: whether to emit `upgrade`. */
export function createHttpServer(
  headersFor: HeadersFor,
  overrides: Partial<ConnectionLimits> = {},
  isUpgrade: (req: IncomingMessage) => boolean = () => false,
): Server {
  const limits = { ...CONNECTION_LIMITS, ...overrides };
  const server = createLimitedServer(limits, isUpgrade);
  const connections = new Map<Socket, Connection>();
  const abortRequest = (exchange: Exchange, error: AppError) => {
    answeredEarly.add(exchange.req);
    answerAndEnd(exchange, error, headersFor).catch(() => exchange.req.destroy());
  };
  const refuse = (socket: Socket, error: AppError) => {
    refuseAndEnd(socket, error, headersFor).catch(() => socket.destroy());
  };
  // Advances with each check, so that clients are not charged for time in which this process was blocked.
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
    // Writing to a response that has ended, or whose client has disconnected, emits `error`, which without a listener would
    // end the process. Handlers only need `close`.
    res.on('error', () => {});
    res.once('close', () => {
      connection.idleSince = exchange.answered = now;
      if (req.complete) connection.exchanges.delete(exchange);
    });
  });
  // The handler of the upgrade is responsible for the connection.
  server.on('upgrade', (_req, socket) => {
    connections.delete(socket as Socket);
    (socket as Socket).setTimeout(0);
  });
  // A request with an unknown expectation is answered like any other.
  server.on('checkExpectation', (req, res) => server.emit('request', req, res));
  server.on('connect', (_req, socket) => {
    refuse(socket as Socket, connectRefusal());
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const connection = connections.get(socket as Socket);
    if (connection?.refused) return;
    if (!connection || !socket.writable || error.code === 'ECONNRESET')
      return void socket.destroy();
    connection.refused = true;
    const refusal = toAppError(error);
    const open = [...connection.exchanges].filter(({ res }) => !res.closed);
    const last = open.at(-1);
    if (last && !last.req.complete) return abortRequest(last, refusal);
    // Earlier valid requests on the connection are answered first.
    const answers = open.map(({ res }) => new Promise((done) => res.once('close', done)));
    Promise.all(answers).then(() => refuse(socket as Socket, refusal));
  });

  const timer = setInterval(() => {
    now += limits.checkMs;
    for (const [socket, connection] of connections) {
      const slow = check(socket, connection, limits, now);
      if (slow) abortRequest(slow, tooSlowError('The body'));
    }
  }, limits.checkMs);
  timer.unref();
  server.on('close', () => clearInterval(timer));
  return server;
}

function createLimitedServer(
  limits: ConnectionLimits,
  isUpgrade: (req: IncomingMessage) => boolean,
): Server {
  const server = createServer({
    headersTimeout: limits.headersMs,
    connectionsCheckingInterval: limits.checkMs,
    keepAliveTimeout: limits.idleMs,
    // Node would apply it to pushes; body times are checked below.
    requestTimeout: 0,
    // Node would answer without a body; server.ts refuses with the usual error body.
    requireHostHeader: false,
    // Other upgrade requests are answered as normal requests.
    shouldUpgradeCallback: isUpgrade,
  });
  server.timeout = SILENCE_MS;
  return server;
}

function connectRefusal(): AppError {
  return new AppError('invalid_request', 'CONNECT is not supported: this server is not a proxy', {
    status: 405,
    headers: { Allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' },
  });
}

/**
 * Path and query of a request target, which may be an absolute URL (RFC 9112 section 3.2.2). Express and Yoga parse it in
 * different ways, and answer unusual targets with pages of their own.
 */
function originForm(target: string): string {
  if (target.startsWith('/') || target === '*') return target;
  const path = target.replace(/^https?:\/\/[^/?#]*/i, '');
  return path.startsWith('/') ? path : `/${path}`;
}

/** Closes a connection that exceeds a limit. @returns the request whose body exceeds one, which must be answered first */
function check(
  socket: Socket,
  connection: Connection,
  limits: ConnectionLimits,
  now: number,
): Exchange | undefined {
  const { exchanges, idleSince } = connection;
  for (const exchange of exchanges)
    if (exchange.req.complete && exchange.res.closed) exchanges.delete(exchange);
  // Empty lines between requests reset Node's timeout; they have no effect here.
  if (exchanges.size === 0 && now - idleSince > limits.idleMs + limits.headersMs) socket.destroy();

  const pending = socket.writableLength;
  const sentState = { now, bytes: socket.bytesWritten - pending, waiting: pending > 0 };
  // A large piece counts as received only when all of it was.
  if (isTooSlow(connection.sent, sentState, limits, (pending / limits.bytesPerSecond) * 1_000))
    socket.destroy();

  const last = [...exchanges].at(-1);
  if (!last || last.req.complete || socket.destroyed) return undefined;
  const { req, since, answered } = last;
  if (answered !== undefined) {
    if (now - answered > limits.leftoverMs) socket.destroy();
    return undefined;
  }
  // While received bytes wait to be read, the handler is slow, not the client.
  const receivedState = { now, bytes: socket.bytesRead, waiting: req.readableLength === 0 };
  const isLate = longBodies.has(req)
    ? isTooSlow(connection.received, receivedState, limits)
    : now - since > limits.bodyMs;
  return isLate ? last : undefined;
}

/** Whether the client has been too slow for too long. Otherwise updates `progress`. */
function isTooSlow(
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

/** Answers a request whose body is not read to its end, and closes the connection, whose framing is then lost. */
async function answerAndEnd(
  { req, res }: Exchange,
  error: AppError,
  headersFor: HeadersFor,
): Promise<void> {
  const counted = res.hasHeader('X-RateLimit-Limit');
  const rateLimitHeaders = counted ? {} : await headersFor(req.socket.remoteAddress ?? '');
  if (res.headersSent) return void req.destroy();
  // The reader of the body gets an error, and later writes of the handler are dropped.
  res.once('close', () => req.destroy());
  const id = String(res.getHeader('X-Request-Id') ?? randomUUID());
  const { status, headers, body } = toErrorResponse(error, id);
  const json = JSON.stringify(body);
  res.writeHead(status, {
    ...rateLimitHeaders,
    ...headers,
    ...bodyHeaders(json),
    'X-Request-Id': id,
  });
  res.end(json);
}

/** Answers input that is not a request, so that there is no response object, and closes the connection. */
async function refuseAndEnd(
  socket: Socket,
  error: AppError,
  headersFor: HeadersFor,
): Promise<void> {
  // The client has disconnected, so there is nobody to answer.
  socket.on('error', () => socket.destroy());
  const id = randomUUID();
  const rateLimitHeaders = await headersFor(socket.remoteAddress ?? '');
  if (!socket.writable) return void socket.destroy();
  const { status, headers, body } = toErrorResponse(error, id);
  const json = JSON.stringify(body);
  const lines = Object.entries({
    Date: new Date().toUTCString(),
    ...rateLimitHeaders,
    ...headers,
    ...bodyHeaders(json),
    'X-Request-Id': id,
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${json}`);
  socket.resume();
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}

function bodyHeaders(json: string) {
  return {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': Buffer.byteLength(json),
    'Cache-Control': 'no-store',
    Connection: 'close',
  };
}

function toAppError({ code, message }: NodeJS.ErrnoException): AppError {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return new AppError(
        'invalid_request',
        'The request line and the headers are larger than 16 KiB',
        { status: 431 },
      );
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return tooSlowError('The headers');
    default:
      return invalid(null, `This is not valid HTTP: ${message.replace(/^Parse Error: /, '')}`);
  }
}

function tooSlowError(what: string): AppError {
  return new AppError('invalid_request', `${what} came too slowly; the connection is closed`, {
    status: 408,
  });
}
