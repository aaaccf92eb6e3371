/** Relays requests of a browser to a program of a job, with bodies of any size in both directions, and WebSockets. */
import {
  type Agent,
  type ClientRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { AppError, invalid } from '../../../../base/errors.ts';
import { dropHopByHopHeaders } from '../../../../cluster/forward.ts';
import { relaySockets } from '../../../../cluster/tunnels.ts';
import { allowLongBody } from '../../../../platform/web/connections.ts';
import { endWithHandshake, isHandshake } from '../../../../platform/web/websockets.ts';
import { portError } from '../../port-connection.ts';

/** Cookies of Loam, which programs of jobs neither see nor set. */
const OWN_COOKIE = /^\s*(?:__Host-loam|loam-session|loam-app)(?:-\w+)?\s*(?:=|$)/;
/**
 * Response headers with effects beyond the host of the program: `Clear-Site-Data` clears the cookies of all hosts of the domain, and
 * the others are orders to a proxy in front of this server.
 */
const DROPPED = /^(?:clear-site-data|alt-svc|x-sendfile|x-accel-(?!buffering$).*)$/;
/** Pages of other hosts must not show those of a program in a frame. Added to the program's own policies. */
const FRAME_POLICY = "frame-ancestors 'self'";
/** How long a program may compute without a byte in either direction. */
const SILENCE_MS = 15 * 60_000;
const KEEPALIVE_MS = 30_000;
const MAX_ATTEMPTS = 3;
const MIN_FINAL_STATUS = 200;

export type RelayOptions = {
  agent: Agent;
  /** Of the host of the port, as browsers name it. */
  origin: string;
  /** Address of the client. */
  address: string;
};

/** @throws AppError if there is no response of the program; otherwise the error of the response */
export async function relayRequest(
  req: IncomingMessage,
  res: ServerResponse,
  options: RelayOptions,
): Promise<void> {
  allowLongBody(req);
  const isUpgrade = isHandshake(req) && req.method === 'GET';
  if (!isUpgrade) req.setTimeout(SILENCE_MS);
  for (let attempt = 1; ; attempt++) {
    const upstream = openRequest(req, options, isUpgrade);
    const onClose = () => upstream.destroy();
    res.once('close', onClose);
    try {
      const answer = receive(upstream, isUpgrade);
      if (!isUpgrade && hasBody(req)) req.pipe(upstream);
      else upstream.end();
      const { response, socket } = await answer;
      if (socket) relayWebSocket(req, res, response, socket);
      else await relayResponse(response, res);
      return;
    } catch (error) {
      upstream.destroy();
      if (res.destroyed || res.headersSent) throw error;
      // The program has closed an idle connection at the moment when this request was sent on it.
      if (upstream.reusedSocket && !hasBody(req) && attempt < MAX_ATTEMPTS) continue;
      throw error instanceof AppError ? error : toPortError(error);
    } finally {
      res.off('close', onClose);
      if (!isUpgrade) {
        req.unpipe(upstream);
        if (!upstream.writableFinished) upstream.destroy();
        // The client may read the response only after it has sent the body.
        req.resume();
      }
    }
  }
}

/** @throws AppError 400 */
function openRequest(
  req: IncomingMessage,
  { agent, origin, address }: RelayOptions,
  isUpgrade: boolean,
): ClientRequest {
  const { protocol, host } = new URL(origin);
  const cookie = dropOwnCookies(req.headers.cookie);
  const { cookie: _, 'transfer-encoding': chunked, ...headers } = req.headers;
  // What follows a handshake is not its body.
  if (isUpgrade) delete headers['content-length'];
  try {
    return request({
      agent,
      method: req.method,
      path: req.url,
      headers: {
        ...dropHopByHopHeaders(headers),
        ...(cookie && { cookie }),
        ...(chunked !== undefined && !isUpgrade && { 'transfer-encoding': 'chunked' }),
        ...(isUpgrade && { connection: 'Upgrade', upgrade: 'websocket' }),
        host,
        'x-forwarded-for': address,
        'x-forwarded-host': host,
        'x-forwarded-proto': protocol.slice(0, -1),
      },
    });
  } catch (error) {
    throw invalid(null, `The request cannot be passed on: ${(error as Error).message}`);
  }
}

type Answer = { response: IncomingMessage; socket?: Duplex };

function receive(upstream: ClientRequest, isUpgrade: boolean): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  upstream.once('response', (response) => {
    // Node takes 101 without `Upgrade` for a final response. A proxy would then pass on what follows without looking at it.
    if (Number(response.statusCode) >= MIN_FINAL_STATUS) resolve({ response });
    else reject(invalidAnswer());
  });
  // Without a listener, Node ends the connection.
  if (isUpgrade)
    upstream.once('upgrade', (response, socket, head) => {
      if (head.length > 0) socket.unshift(head);
      resolve({ response, socket });
    });
  upstream.on('error', reject);
  upstream.once('close', () => reject(new Error('socket hang up')));
  return promise;
}

async function relayResponse(response: IncomingMessage, res: ServerResponse): Promise<void> {
  try {
    res.writeHead(response.statusCode ?? 502, responseHeaders(response.headers));
  } catch {
    response.destroy();
    throw portError(502, 'The program has sent headers that are not valid');
  }
  // The first byte of the body may take long.
  res.flushHeaders();
  await pipeline(response, res);
}

function relayWebSocket(
  req: IncomingMessage,
  res: ServerResponse,
  response: IncomingMessage,
  socket: Duplex,
): void {
  const client = req.socket as Socket;
  const headers = {
    ...responseHeaders(response.headers),
    connection: 'Upgrade',
    upgrade: 'websocket',
  };
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    [value].flat().map((one) => `${name}: ${one}\r\n`),
  );
  endWithHandshake(req, res);
  client.on('error', () => {});
  client.setKeepAlive(true, KEEPALIVE_MS);
  client.write(`HTTP/1.1 101 Switching Protocols\r\n${lines.join('')}\r\n`, 'latin1');
  void relaySockets(client, socket);
}

function responseHeaders(given: IncomingHttpHeaders): OutgoingHttpHeaders {
  const kept = Object.entries(dropHopByHopHeaders(given)).filter(([name]) => !DROPPED.test(name));
  const headers: OutgoingHttpHeaders = Object.fromEntries(kept);
  const cookies = given['set-cookie']?.filter((cookie) => !OWN_COOKIE.test(cookie));
  if (cookies) headers['set-cookie'] = cookies.map(dropDomain);
  const policies = [given['content-security-policy'] ?? [], FRAME_POLICY].flat();
  headers['content-security-policy'] = policies.join(', ');
  return headers;
}

/** A cookie with a domain would also be sent to the hosts of other jobs, and perhaps to Loam's. */
function dropDomain(cookie: string): string {
  const [pair = '', ...attributes] = cookie.split(';');
  return [pair, ...attributes.filter((one) => !/^\s*domain\s*(?:=|$)/i.test(one))].join(';');
}

function dropOwnCookies(cookie: string | undefined): string {
  const kept = cookie?.split(';').filter((pair) => !OWN_COOKIE.test(pair)) ?? [];
  return kept.join(';').trim();
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function toPortError(error: unknown): AppError {
  const { code = '' } = error as NodeJS.ErrnoException;
  return code.startsWith('HPE_')
    ? invalidAnswer()
    : portError(502, 'The program has closed the connection without an answer');
}

function invalidAnswer(): AppError {
  return portError(502, 'The program has sent an answer that is not valid HTTP');
}
