/**
 * Proxies a fetch, push or download to the server that owns the repository, streaming in both directions. That server
 * authenticates the request again. It trusts the client address that we send, because we sign it.
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
import type { Logger } from '../base/log.ts';
import { traceHeaders } from '../platform/tracing/spans.ts';
import type { Cluster } from './cluster.ts';
import { reportUnavailable, runAtOwner, ServerUnavailable, toServerAway } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE, sign } from './signature.ts';

/** Header with the client's address as the first server sees it. */
export const CLIENT_ADDRESS = 'loam-client-address';

/** Headers that are valid for one connection only (RFC 9110 section 7.6.1), or that we have already answered. */
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

type IncomingRequest = {
  req: IncomingMessage;
  /** As the client sent it. */
  url: string;
  address: string;
  requestId: string;
};

/** The signed parts of a forwarded request. */
export function forwardSignatureParts(method: string, url: string, address: string): string[] {
  return ['forward', method, url, address];
}

/**
 * Sends the request to the server that owns the repository. Its body must not have been read.
 * @returns false, without doing anything, if this server owns the repository
 * @throws AppError 503 if the owner does not answer or dies before it does
 */
export function forward(
  services: { cluster: Cluster; log: Logger },
  repositoryId: string,
  incoming: IncomingRequest,
  res: ServerResponse,
): Promise<boolean> {
  return runAtOwner(services, repositoryId, {
    here: async () => false,
    async there(member) {
      try {
        await proxy(services.cluster.key, member, incoming, res);
      } catch (error) {
        if (res.destroyed || res.headersSent) return true;
        if (error instanceof ServerUnavailable) throw error;
        // A body whose transfer has begun cannot be sent again.
        if (hasBody(incoming.req)) throw reportUnavailable(services.log, member, error);
        throw toServerAway(member.url, error);
      }
      return true;
    },
  });
}

/** @throws ServerAway if nothing of the request was sent */
async function proxy(
  key: Uint8Array,
  { url, gone }: Member,
  { req, url: target, address, requestId }: IncomingRequest,
  res: ServerResponse,
): Promise<void> {
  const method = req.method ?? 'GET';
  // A new connection: a kept-alive one may be closed at the moment when the body begins.
  const upstream = (url.startsWith('https:') ? httpsRequest : httpRequest)(url + target, {
    method,
    agent: false,
    headers: {
      ...endToEnd(req.headers),
      ...traceHeaders(),
      'x-request-id': requestId,
      [CLIENT_ADDRESS]: address,
      [SIGNATURE]: sign(key, forwardSignatureParts(method, target, address)),
    },
  });
  const responding = receiveResponse(upstream);
  // Prevents an unhandled rejection while nothing awaits it.
  responding.catch(() => {});
  const abort = () => upstream.destroy();
  res.once('close', abort);
  gone.addEventListener('abort', abort);
  try {
    await connected(upstream).catch((cause) => {
      throw toServerAway(url, cause);
    });
    if (hasBody(req)) req.pipe(upstream);
    else upstream.end();
    const response = await responding;
    // From here on the owner may continue, even if it is taken for dead after a pause.
    gone.removeEventListener('abort', abort);
    res.writeHead(response.statusCode ?? 502, endToEnd(response.headers));
    await pipeline(response, res);
  } catch (error) {
    upstream.destroy();
    req.unpipe(upstream);
    // The rest of a body whose transfer has begun is discarded. Otherwise the next attempt needs the body.
    if (hasBody(req) && !(error instanceof ServerUnavailable)) req.resume();
    throw error;
  } finally {
    res.off('close', abort);
    gone.removeEventListener('abort', abort);
  }
}

function hasBody({ method }: IncomingMessage): boolean {
  return method !== 'GET' && method !== 'HEAD';
}

async function connected(upstream: ClientRequest): Promise<void> {
  const [socket] = await once(upstream, 'socket');
  if (socket.connecting) await once(socket, 'connect');
}

async function receiveResponse(upstream: ClientRequest): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  upstream.once('response', resolve);
  upstream.on('error', reject);
  upstream.once('close', () => reject(new Error('the connection was closed')));
  return promise;
}

function endToEnd(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !HOP_BY_HOP_HEADERS.includes(name)),
  );
}
