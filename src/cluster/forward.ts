/**
 * Proxies a request to the process that can answer it, streaming in both directions: a fetch, push or download to the server
 * that owns the repository, a request of an agent to the worker that has its attempt. That process authenticates the request
 * again. It trusts the forwarded client address, because the address is signed.
 */

import { once } from 'node:events';
import {
  type ClientRequest,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import { request as httpsRequest } from 'node:https';
import { pipeline } from 'node:stream/promises';
import { busy } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { traceHeaders } from '../platform/tracing/spans.ts';
import type { Cluster } from './cluster.ts';
import {
  logOwnerUnavailable,
  runAtOwner,
  ServerUnavailable,
  toServerUnavailable,
} from './cluster.ts';
import type { Member } from './members.ts';
import { isSigned, SIGNATURE_HEADER, sign } from './signature.ts';

/** Header with the client's address as seen by the server that accepted the connection. */
const CLIENT_ADDRESS_HEADER = 'loam-client-address';

/**
 * Headers that are valid for one connection only (RFC 9110 section 7.6.1), beside those that `Connection` names. `expect` is
 * among them because this server has already sent `100 Continue`.
 */
const HOP_BY_HOP_HEADERS = [
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'expect',
];

/** The part of Express's `Request` that forwarding uses. Express changes `url` in routers, but not `originalUrl`. */
type IncomingRequest = IncomingMessage & {
  originalUrl: string;
  ip?: string | undefined;
  id: string;
};

/** The signed parts of a forwarded request. */
function forwardSignatureParts(method: string, url: string, address: string): string[] {
  return ['forward', method, url, address];
}

/** @returns the client's address if another process has forwarded and signed the request, otherwise undefined */
export function readForwardedAddress(
  { key }: Pick<Cluster, 'key'>,
  { method = 'GET', originalUrl, headers }: IncomingRequest,
): string | undefined {
  const address = headers[CLIENT_ADDRESS_HEADER];
  if (typeof address !== 'string') return undefined;
  const parts = forwardSignatureParts(method, originalUrl, address);
  return isSigned(key, headers[SIGNATURE_HEADER], parts) ? address : undefined;
}

/**
 * Forwards the request to the process with this id, of whichever role. The body of the request must not have been read. A
 * forwarded request is never forwarded again.
 * @param signal ends a request without a body that waits for its response, for example when this process stops
 * @throws AppError 503 if that process is unknown, cannot be reached, or closes the connection before it responds
 */
export async function forwardTo(
  { cluster, log }: { cluster: Cluster; log: Logger },
  processId: string,
  req: IncomingRequest,
  res: ServerResponse,
  signal?: AbortSignal,
): Promise<void> {
  const { members, key } = cluster;
  const member = members.find(processId);
  const isForwarded = readForwardedAddress(cluster, req) !== undefined;
  if (isForwarded || !member || processId === members.id)
    throw busy(
      'The process that can answer this request is not ready, or has no LOAM_INTERNAL_URL',
    );
  try {
    await proxy(key, member, req, res, signal);
  } catch (error) {
    if (res.destroyed || res.headersSent) return;
    if (!signal?.aborted)
      log.warn({ err: error, server: processId }, 'another process does not answer');
    throw busy('The process that can answer this request does not answer');
  }
}

/**
 * Forwards the request to the server that owns the repository. The body of the request must not have been read.
 * @returns true if the owner has responded, or the client has gone; false, without any effect, if this server is the owner
 * @throws AppError 503 if the owner cannot be reached, or closes the connection before it responds
 */
export function forward(
  services: { cluster: Cluster; log: Logger },
  repositoryId: string,
  req: IncomingRequest,
  res: ServerResponse,
): Promise<boolean> {
  return runAtOwner(services, repositoryId, {
    runLocally: async () => false,
    async runRemotely(member) {
      try {
        await proxy(services.cluster.key, member, req, res);
      } catch (error) {
        if (res.destroyed || res.headersSent) return true;
        // `runAtOwner` retries after ServerUnavailable. A body whose transfer has begun cannot be sent again.
        if (error instanceof ServerUnavailable) throw error;
        if (mayHaveBody(req)) throw logOwnerUnavailable(services.log, member, error);
        throw toServerUnavailable(member.baseUrl, error);
      }
      return true;
    },
  });
}

/** @throws ServerUnavailable if the connection could not be opened; otherwise the error of the request or response */
async function proxy(
  key: Uint8Array,
  { baseUrl, goneSignal }: Member,
  req: IncomingRequest,
  res: ServerResponse,
  signal?: AbortSignal,
): Promise<void> {
  const { method = 'GET', originalUrl: url, ip: address = '' } = req;
  const upstream = (baseUrl.startsWith('https:') ? httpsRequest : httpRequest)(baseUrl + url, {
    method,
    // Opens a new connection: an idle connection of an agent may be closed at the moment when the body begins.
    agent: false,
    headers: {
      ...dropHopByHopHeaders(req.headers),
      ...traceHeaders(),
      'x-request-id': req.id,
      [CLIENT_ADDRESS_HEADER]: address,
      [SIGNATURE_HEADER]: sign(key, forwardSignatureParts(method, url, address)),
    },
  });
  const responsePromise = receiveResponse(upstream);
  // Prevents an unhandled rejection before `responsePromise` is awaited.
  responsePromise.catch(() => {});
  const abort = () => upstream.destroy();
  res.once('close', abort);
  const giveUp = signal && !mayHaveBody(req) ? AbortSignal.any([goneSignal, signal]) : goneSignal;
  giveUp.addEventListener('abort', abort);
  if (giveUp.aborted) abort();
  try {
    // If `abort` destroys the request while its socket is connecting, the socket emits only `close`, and `waitForConnection` never
    // settles. But `responsePromise` is rejected then.
    await Promise.race([waitForConnection(upstream), responsePromise]).catch((cause) => {
      throw toServerUnavailable(baseUrl, cause);
    });
    if (mayHaveBody(req)) req.pipe(upstream);
    else upstream.end();
    const response = await responsePromise;
    // The owner has responded, so it may finish even if a late heartbeat makes it count as dead.
    giveUp.removeEventListener('abort', abort);
    // `statusCode` is set for every response, but optional in its type.
    res.writeHead(response.statusCode ?? 502, dropHopByHopHeaders(response.headers));
    await pipeline(response, res);
  } catch (error) {
    upstream.destroy();
    req.unpipe(upstream);
    // A body whose transfer has begun is read to its end, so that the client can receive the error response. A body that
    // was not touched is kept for the next attempt.
    if (mayHaveBody(req) && !(error instanceof ServerUnavailable)) req.resume();
    throw error;
  } finally {
    res.off('close', abort);
    giveUp.removeEventListener('abort', abort);
  }
}

/** Forwarded GET and HEAD requests never have a body. */
function mayHaveBody({ method }: IncomingMessage): boolean {
  return method !== 'GET' && method !== 'HEAD';
}

async function waitForConnection(upstream: ClientRequest): Promise<void> {
  const [socket] = await once(upstream, 'socket');
  if (socket.connecting) await once(socket, 'connect');
}

function receiveResponse(upstream: ClientRequest): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  upstream.once('response', resolve);
  upstream.on('error', reject);
  upstream.once('close', () => reject(new Error('the connection was closed')));
  return promise;
}

export function dropHopByHopHeaders(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  const named = (headers.connection ?? '').toLowerCase().split(',');
  const dropped = new Set([...HOP_BY_HOP_HEADERS, ...named.map((name) => name.trim())]);
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !dropped.has(name)));
}
