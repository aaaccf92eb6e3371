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
import { busy } from '../errors.ts';
import type { Services } from '../services.ts';
import { PATIENCE_MS, PAUSE_MS } from './cluster.ts';
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
export async function forward(
  services: Pick<Services, 'cluster' | 'log'>,
  repositoryId: string,
  incoming: Incoming,
  res: ServerResponse,
): Promise<boolean> {
  const { cluster, log } = services;
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const member = cluster.elsewhere(repositoryId);
    if (!member) return false;
    try {
      await exchange(cluster.key, member, incoming, res);
      return true;
    } catch (error) {
      if (res.destroyed || res.headersSent) return true;
      const mayRepeat = error instanceof NotBegun || !hasBody(incoming.req);
      if (mayRepeat && performance.now() < deadline) {
        await cluster.members.changed(PAUSE_MS);
        continue;
      }
      log.warn({ err: error, server: member.id }, 'another server does not answer');
      throw busy('The server that has the repository does not answer');
    }
  }
}

/** Nothing of the request was sent. */
class NotBegun extends Error {
  override name = 'NotBegun';
}

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
      throw new NotBegun('no connection', { cause });
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
    if (hasBody(req) && !(error instanceof NotBegun)) req.resume();
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
