/**
 * WebSockets. A handshake passes the HTTP app as any other request does: the app authenticates it, counts it and logs it, and a
 * refusal is an ordinary response. A route turns the request into a WebSocket by `accept`.
 */
import { type IncomingMessage, type RequestListener, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { createWebSocketStream, type WebSocket, WebSocketServer } from 'ws';
import { AppError, busy, invalid } from '../../base/errors.ts';

export type AcceptedWebSocket = {
  /** The content of the binary messages, in both directions. It is closed when the WebSocket is. */
  stream: Duplex;
  /** Closes the WebSocket at once, with a reason for the client. */
  close(code: number, reason: string): void;
};

/** Small, because the frames of one message are read at once. */
const MAX_MESSAGE_BYTES = 2 ** 17;
/** Proxies close connections without traffic, by default after 60 s (nginx, haproxy). */
const PING_MS = 30_000;
/** As of SSH (`api/ssh/front/protocol.ts`): how long a client may neither answer nor read. */
const SILENCE_MS = 150_000;
/** Codes of RFC 6455 section 7.4.1. */
const GOING_AWAY = 1001;
const UNSUPPORTED_DATA = 1003;
/** The protocol allows 125 bytes of code and reason. */
const MAX_REASON_BYTES = 123;

/** Whether the request asks for a WebSocket. */
export function isHandshake({ headers: { upgrade } }: IncomingMessage): boolean {
  return upgrade?.toLowerCase() === 'websocket';
}

/** Whether the connection of the response has become a WebSocket. */
export function hasSwitchedProtocols({ statusCode }: { statusCode: number }): boolean {
  return statusCode === 101;
}

/** For the log and the metrics, the request ends with the handshake. Its socket is then the caller's. */
export function endWithHandshake(req: IncomingMessage, res: ServerResponse): void {
  res.detachSocket(req.socket);
  res.statusCode = 101;
  res.emit('close');
}

export class WebSockets implements Disposable {
  readonly #server = new WebSocketServer({
    noServer: true,
    perMessageDeflate: false,
    maxPayload: MAX_MESSAGE_BYTES,
  });
  readonly #faults = new WeakMap<IncomingMessage, Error>();
  readonly #accepted = new Set<AcceptedWebSocket>();
  #isClosed = false;

  constructor() {
    this.#server.on('wsClientError', (error, _socket, req) => this.#faults.set(req, error));
  }

  /** Gives a handshake to the handler of requests, with an ordinary response. */
  serve(handler: RequestListener, req: IncomingMessage, socket: Duplex): void {
    // Ignored, because `close` follows.
    socket.on('error', () => {});
    const res = new ServerResponse(req);
    res.shouldKeepAlive = false;
    res.assignSocket(socket as Socket);
    res.once('finish', () => (socket as Socket).destroySoon());
    handler(req, res);
  }

  /** Must be called while no response was begun. @throws AppError 400 for an invalid handshake, 426 without one, 503 */
  accept(req: IncomingMessage, res: ServerResponse): AcceptedWebSocket {
    if (!isHandshake(req))
      throw new AppError('invalid_request', 'This path is only for WebSockets', {
        status: 426,
        headers: { Upgrade: 'websocket', Connection: 'Upgrade' },
      });
    if (this.#isClosed) throw busy('The server is stopping');
    let opened: WebSocket | undefined;
    this.#server.handleUpgrade(req, req.socket, Buffer.alloc(0), (socket) => {
      opened = socket;
    });
    if (!opened) throw invalid(null, this.#faults.get(req)?.message ?? 'The client has gone');
    endWithHandshake(req, res);
    return this.#open(opened, req.socket);
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    for (const { close } of this.#accepted) close(GOING_AWAY, 'The server is stopping');
  }

  #open(socket: WebSocket, connection: Socket): AcceptedWebSocket {
    // Before the stream, which does not tell texts from bytes.
    socket.on('message', (_data, isBinary) => {
      if (!isBinary) close(UNSUPPORTED_DATA, 'Only binary messages are accepted');
    });
    const stream = createWebSocketStream(socket);
    const close = (code: number, reason: string) => {
      socket.close(code, cutTo(reason, MAX_REASON_BYTES));
      stream.destroy();
    };
    const accepted = { stream, close };
    this.#accepted.add(accepted);
    stream.on('error', () => {});
    const pings = ping(socket, connection);
    socket.once('close', () => {
      clearInterval(pings);
      this.#accepted.delete(accepted);
      // The library leaves a stream open whose output was not ended.
      stream.destroy();
    });
    return accepted;
  }
}

/** Sends pings, and closes the WebSocket when the client has neither answered nor read for too long. */
function ping(socket: WebSocket, connection: Socket): NodeJS.Timeout {
  let heardAt = performance.now();
  let written = 0;
  const hear = () => {
    heardAt = performance.now();
  };
  socket.on('pong', hear).on('message', hear);
  return setInterval(() => {
    // A slow client may read what was written before the ping. An answer is not seen while this side does not read.
    const isReading = socket.bufferedAmount > 0 && connection.bytesWritten > written;
    if (isReading || socket.isPaused) hear();
    written = connection.bytesWritten;
    if (performance.now() - heardAt > SILENCE_MS) socket.terminate();
    else if (socket.readyState === socket.OPEN) socket.ping();
  }, PING_MS);
}

function cutTo(text: string, bytes: number): string {
  // A character that was cut in half would be invalid.
  return Buffer.from(text)
    .subarray(0, bytes)
    .toString()
    .replace(/\ufffd$/, '');
}
