/**
 * The HTTP server with time limits for every connection. It also responds with the usual error body to input that Node's
 * parser rejects (headers that are too long, a line that is not HTTP).
 *
 * A client that transfers one byte from time to time keeps resetting every timeout of Node, except the timeout for headers.
 * So progress is measured here, by one timer for all connections. The overhead per request is one entry in a set.
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
  /** Time until the end of the headers: from the opening of the connection, or from the first byte of a further request. */
  headersMs: number;
  /** Time between requests. Longer than the 60 s of nginx and haproxy, so that they close first and lose no request. */
  idleMs: number;
  /** Time for a whole body, unless its route accepts long bodies. */
  bodyMs: number;
  /** Time for the rest of a body after the response: a client may read the response only after it has sent the body. */
  leftoverMs: number;
  /** How long a client may stay below `bytesPerSecond` while it sends a long body or receives a response. */
  slowMs: number;
  bytesPerSecond: number;
  /** Interval of the checks. */
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

/** Node closes a connection without a byte in either direction for this long. Git and event streams send keepalives. */
const SILENCE_MS = 120_000;
/** Time for the client to read the response to invalid input before the connection is reset. */
const LINGER_MS = 1_000;

const longBodies = new WeakSet<IncomingMessage>();

/** Allows a body of any duration at the minimum rate: a push, an upload. Must be called before the body is read. */
export function allowLongBody(req: IncomingMessage): void {
  longBodies.add(req);
}

/** Aborts when the response is sent or the client has disconnected, also if that was before this call. */
export function closeSignal(res: ServerResponse): AbortSignal {
  const closed = new AbortController();
  res.once('close', () => closed.abort());
  // `close` is not emitted again.
  if (res.closed || res.destroyed) closed.abort();
  return closed.signal;
}

const answeredEarly = new WeakSet<IncomingMessage>();

/** Whether this module has already responded to the request (400, 408), so that later errors of its handler do not matter. */
export function wasAnsweredEarly(req: IncomingMessage): boolean {
  return answeredEarly.has(req);
}

/** Returns the rate limit headers for the response to an address that sent no valid request. */
export type RateLimitHeaders = (address: string) => Promise<Record<string, string | number>>;

/** A request and its response. Times are in ms of the clock of the checks (`checkTime`). */
type Exchange = {
  req: IncomingMessage;
  res: ServerResponse;
  startedAt: number;
  /** When the response was closed. */
  respondedAt?: number;
};
/** When the client was last fast enough, and the number of bytes until then. */
type Progress = { since: number; bytes: number };
type Connection = {
  /** Requests whose response or body is incomplete, oldest first: clients may pipeline. */
  exchanges: Set<Exchange>;
  idleSince: number;
  received: Progress;
  sent: Progress;
  isRefused: boolean;
};

/**
 * Creates a server with these limits. The caller adds the listener that responds to requests.
 * @param isUpgrade whether to emit `upgrade` for a request
 */
export function createHttpServer(
  headersFor: RateLimitHeaders,
  overrides: Partial<ConnectionLimits> = {},
  isUpgrade: (req: IncomingMessage) => boolean = () => false,
): Server {
  const limits = { ...CONNECTION_LIMITS, ...overrides };
  const server = createLimitedServer(limits, isUpgrade);
  const connections = new Map<Socket, Connection>();
  const refuseRequest = (exchange: Exchange, error: AppError) => {
    answeredEarly.add(exchange.req);
    respondAndClose(exchange, error, headersFor).catch(() => exchange.req.destroy());
  };
  const refuseSocket = (socket: Socket, error: AppError) => {
    respondRawAndClose(socket, error, headersFor).catch(() => socket.destroy());
  };
  // A clock that advances with each check, so that clients are not charged for time in which this process was blocked.
  let checkTime = 0;

  server.on('connection', (socket) => {
    connections.set(socket, {
      exchanges: new Set(),
      idleSince: checkTime,
      received: { since: checkTime, bytes: 0 },
      sent: { since: checkTime, bytes: 0 },
      isRefused: false,
    });
    socket.once('close', () => connections.delete(socket));
  });
  server.on('request', (req, res) => {
    req.url = originForm(req.url ?? '');
    const connection = connections.get(req.socket);
    if (!connection) return;
    const exchange: Exchange = { req, res, startedAt: checkTime };
    connection.received = { since: checkTime, bytes: req.socket.bytesRead };
    connection.exchanges.add(exchange);
    // Writing to a response that has ended, or whose client has disconnected, emits `error`, which without a listener would
    // end the process. Handlers only need `close`.
    res.on('error', () => {});
    res.once('close', () => {
      connection.idleSince = checkTime;
      exchange.respondedAt = checkTime;
      if (req.complete) connection.exchanges.delete(exchange);
    });
  });
  // The handler of the upgrade is responsible for the connection.
  server.on('upgrade', (_req, socket) => {
    connections.delete(socket as Socket);
    (socket as Socket).setTimeout(0);
  });
  // A request with an unknown `Expect` header is handled like any other request.
  server.on('checkExpectation', (req, res) => server.emit('request', req, res));
  server.on('connect', (_req, socket) => {
    refuseSocket(socket as Socket, connectRefusal());
  });
  server.on('clientError', (error: NodeJS.ErrnoException, stream) => {
    const socket = stream as Socket;
    refuseInvalidInput(error, socket, connections.get(socket), { refuseRequest, refuseSocket });
  });

  const timer = setInterval(() => {
    checkTime += limits.checkMs;
    for (const [socket, connection] of connections) {
      const slow = enforceLimits(socket, connection, limits, checkTime);
      if (slow) refuseRequest(slow, tooSlowError('The body'));
    }
  }, limits.checkMs);
  timer.unref();
  server.on('close', () => clearInterval(timer));
  return server;
}

/** Responds to input that Node's parser has rejected. */
function refuseInvalidInput(
  error: NodeJS.ErrnoException,
  socket: Socket,
  connection: Connection | undefined,
  {
    refuseRequest,
    refuseSocket,
  }: {
    refuseRequest(exchange: Exchange, error: AppError): void;
    refuseSocket(socket: Socket, error: AppError): void;
  },
): void {
  if (connection?.isRefused) return;
  if (!connection || !socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  connection.isRefused = true;
  const refusal = toAppError(error);
  const open = [...connection.exchanges].filter(({ res }) => !res.closed);
  const last = open.at(-1);
  // The invalid input is in the body of the last request.
  if (last && !last.req.complete) {
    refuseRequest(last, refusal);
    return;
  }
  // The invalid input follows valid requests (pipelining), whose responses are sent first.
  const responses = open.map(({ res }) => new Promise((done) => res.once('close', done)));
  Promise.all(responses).then(() => refuseSocket(socket, refusal));
}

function createLimitedServer(
  limits: ConnectionLimits,
  isUpgrade: (req: IncomingMessage) => boolean,
): Server {
  const server = createServer({
    headersTimeout: limits.headersMs,
    connectionsCheckingInterval: limits.checkMs,
    keepAliveTimeout: limits.idleMs,
    // Disabled, because it applies to pushes as well. `enforceLimits` checks the time for a body.
    requestTimeout: 0,
    // Disabled, because Node's response has no body. `api/http/server.ts` refuses with the usual error body.
    requireHostHeader: false,
    // Other upgrade requests are handled as normal requests.
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
 * Path and query of a request target, which may be an absolute URL (RFC 9112 section 3.2.2). Express and Yoga parse such a
 * target in different ways, and respond to unusual targets with pages of their own.
 */
function originForm(target: string): string {
  if (target.startsWith('/') || target === '*') return target;
  const path = target.replace(/^https?:\/\/[^/?#]*/i, '');
  return path.startsWith('/') ? path : `/${path}`;
}

/**
 * Closes the connection if it exceeds a limit.
 * @returns the exchange whose request body is too slow; the caller must respond before it closes the connection
 */
function enforceLimits(
  socket: Socket,
  connection: Connection,
  limits: ConnectionLimits,
  now: number,
): Exchange | undefined {
  const { exchanges, idleSince } = connection;
  for (const exchange of exchanges)
    if (exchange.req.complete && exchange.res.closed) exchanges.delete(exchange);
  // For clients that reset Node's idle timeout by empty lines. The next request may take `headersMs` after the idle time.
  if (exchanges.size === 0 && now - idleSince > limits.idleMs + limits.headersMs) socket.destroy();

  const pending = socket.writableLength;
  const sentState = { now, bytes: socket.bytesWritten - pending, isWaiting: pending > 0 };
  // A large write counts as sent only when all of it is sent, so it gets the time that it takes at the minimum rate.
  if (isTooSlow(connection.sent, sentState, limits, (pending / limits.bytesPerSecond) * 1_000))
    socket.destroy();

  const last = [...exchanges].at(-1);
  if (!last || last.req.complete || socket.destroyed) return undefined;
  const { req, startedAt, respondedAt } = last;
  if (respondedAt !== undefined) {
    if (now - respondedAt > limits.leftoverMs) socket.destroy();
    return undefined;
  }
  // While received bytes wait to be read, the handler is slow, not the client.
  const receivedState = { now, bytes: socket.bytesRead, isWaiting: req.readableLength === 0 };
  const isLate = longBodies.has(req)
    ? isTooSlow(connection.received, receivedState, limits)
    : now - startedAt > limits.bodyMs;
  return isLate ? last : undefined;
}

/**
 * Whether the client has been too slow for too long. Updates `progress` if the client is fast enough, or if the server does
 * not wait for the client.
 */
function isTooSlow(
  progress: Progress,
  { now, bytes, isWaiting }: { now: number; bytes: number; isWaiting: boolean },
  { bytesPerSecond, slowMs }: ConnectionLimits,
  extraMs = 0,
): boolean {
  const elapsed = now - progress.since;
  if (!isWaiting || (bytes - progress.bytes) * 1_000 >= elapsed * bytesPerSecond) {
    progress.since = now;
    progress.bytes = bytes;
    return false;
  }
  return elapsed > slowMs + extraMs;
}

/** Responds to a request whose body is not read to its end, and closes the connection, because its framing is lost. */
async function respondAndClose(
  { req, res }: Exchange,
  error: AppError,
  headersFor: RateLimitHeaders,
): Promise<void> {
  const hasRateLimitHeaders = res.hasHeader('X-RateLimit-Limit');
  const rateLimitHeaders = hasRateLimitHeaders
    ? {}
    : await headersFor(req.socket.remoteAddress ?? '');
  if (res.headersSent) {
    req.destroy();
    return;
  }
  // Destroying the request gives its reader an error. Later writes of the handler are dropped.
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

/** Responds to input that is not a request, for which there is no response object, and closes the connection. */
async function respondRawAndClose(
  socket: Socket,
  error: AppError,
  headersFor: RateLimitHeaders,
): Promise<void> {
  // If the client disconnects, no response is needed.
  socket.on('error', () => socket.destroy());
  const id = randomUUID();
  const rateLimitHeaders = await headersFor(socket.remoteAddress ?? '');
  if (!socket.writable) {
    socket.destroy();
    return;
  }
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
