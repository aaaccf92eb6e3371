/**
 * A fetch, a push or a download, sent on to the server that has the repository, and its answer sent back, both as
 * they come. That server reads the credentials anew; it trusts the client's address that we send, because we sign it.
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
import { noAnswer, notAnswered, ServerAway, whereItIs } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE, sign } from './signature.ts';

/** The client's address, as the first server sees it. */
export const CLIENT_ADDRESS = 'loam-client-address';

/** They belong to one connection (RFC 9110 section 7.6.1), or were answered by us already. */
const OF_THE_CONNECTION = [
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'expect',
];

export type Incoming = {
  req: IncomingMessage;
  /** As the client sent it. */
  url: string;
  address: string;
  requestId: string;
};

/** What signatures of forwarded requests are over. */
export function partsOf(method: string, url: string, address: string): string[] {
  return ['forward', method, url, address];
}

/**
 * Sends the request to the server that has the repository. Nothing of its body may have been read.
 * @returns false, having done nothing, when this server has it
 * @throws AppError 503 when that server does not answer, or dies before it does
 */
export function forward(
  services: { cluster: Cluster; log: Logger },
  repositoryId: string,
  incoming: Incoming,
  res: ServerResponse,
): Promise<boolean> {
  return whereItIs(services, repositoryId, {
    here: async () => false,
    async there(member) {
      try {
        await exchange(services.cluster.key, member, incoming, res);
      } catch (error) {
        if (res.destroyed || res.headersSent) return true;
        if (error instanceof ServerAway) throw error;
        // A body that was begun cannot be sent again.
        if (hasBody(incoming.req)) throw notAnswered(services.log, member, error);
        throw noAnswer(member.url, error);
      }
      return true;
    },
  });
}

/** @throws ServerAway when nothing of the request was sent */
async function exchange(
  key: Uint8Array,
  { url, gone }: Member,
  { req, url: target, address, requestId }: Incoming,
  res: ServerResponse,
): Promise<void> {
  const method = req.method ?? 'GET';
  // A connection of its own: one that was kept may be closed at the moment in which a body begins to flow.
  const upstream = (url.startsWith('https:') ? httpsRequest : httpRequest)(url + target, {
    method,
    agent: false,
    headers: {
      ...endToEnd(req.headers),
      ...traceHeaders(),
      'x-request-id': requestId,
      [CLIENT_ADDRESS]: address,
      [SIGNATURE]: sign(key, partsOf(method, target, address)),
    },
  });
  const answered = answerTo(upstream);
  // Heard also where nobody waits for it any more.
  answered.catch(() => {});
  const leave = () => upstream.destroy();
  res.once('close', leave);
  gone.addEventListener('abort', leave);
  try {
    await connected(upstream).catch((cause) => {
      throw noAnswer(url, cause);
    });
    if (hasBody(req)) req.pipe(upstream);
    else upstream.end();
    const answer = await answered;
    // From here on a server that stood still for a while may go on.
    gone.removeEventListener('abort', leave);
    res.writeHead(answer.statusCode ?? 502, endToEnd(answer.headers));
    await pipeline(answer, res);
  } catch (error) {
    upstream.destroy();
    req.unpipe(upstream);
    // What is left of a body that was begun is dropped; one that was not belongs to the next try.
    if (hasBody(req) && !(error instanceof ServerAway)) req.resume();
    throw error;
  } finally {
    res.off('close', leave);
    gone.removeEventListener('abort', leave);
  }
}

function hasBody({ method }: IncomingMessage): boolean {
  return method !== 'GET' && method !== 'HEAD';
}

async function connected(upstream: ClientRequest): Promise<void> {
  const [socket] = await once(upstream, 'socket');
  if (socket.connecting) await once(socket, 'connect');
}

async function answerTo(upstream: ClientRequest): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  upstream.once('response', resolve);
  upstream.on('error', reject);
  upstream.once('close', () => reject(new Error('the connection was closed')));
  return promise;
}

function endToEnd(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !OF_THE_CONNECTION.includes(name)),
  );
}
