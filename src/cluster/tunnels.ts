/**
 * What two servers say to each other for as long as they wish, in both directions: a client that speaks SSH with one of
 * them, about a repository that another one has. It is a request that asks for another protocol (RFC 9110 section 7.8)
 * and begins with data; after the answer both ends have the socket, at its first byte.
 */

import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import type { Duplex } from 'node:stream';
import { isId } from '../base/ids.ts';
import type { Cluster } from './cluster.ts';
import { noAnswer } from './cluster.ts';
import type { Member } from './members.ts';
import { isSigned, SIGNATURE, sign } from './signature.ts';

const PATH = '/_loam/conversations';
const PROTOCOL = 'loam';
/** The header with the beginning, as JSON in base64url. */
const HEAD = 'loam-head';
const ANSWER_MS = 10_000;
/** Git gives a sign of life every five seconds. */
const QUIET_MS = 10_000;
/** Of the connection: a machine without power closes none. */
const PROBE_MS = 30_000;

function partsOf(url: string, head: string): string[] {
  return ['conversation', url, head];
}

type Talk = {
  repositoryId: string;
  head: object;
  /** Ends it at once. */
  signal: AbortSignal;
  /** How long nothing may be moved to or from a server that is gone. */
  quietMs?: number;
};

/**
 * A socket to the server that has the repository. It is destroyed when `signal` aborts, and when that server is taken for
 * dead and nothing is moved any more: one that only stops, or stood still for a while, finishes what has begun.
 * @throws ServerAway when it does not answer; nothing was begun then
 */
export async function openTunnel(
  { cluster }: { cluster: Cluster },
  { url, gone }: Member,
  { repositoryId, head, signal, quietMs = QUIET_MS }: Talk,
): Promise<Duplex> {
  const path = `${PATH}/${repositoryId}`;
  const text = Buffer.from(JSON.stringify(head)).toString('base64url');
  const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
  const request = (url.startsWith('https:') ? httpsRequest : httpRequest)(url + path, {
    agent: false,
    headers: {
      Connection: 'Upgrade',
      Upgrade: PROTOCOL,
      [HEAD]: text,
      [SIGNATURE]: sign(cluster.key, partsOf(path, text)),
    },
    signal: AbortSignal.any([gone, signal]),
    timeout: ANSWER_MS,
  });
  request.once('upgrade', (_answer, socket, beginning) => {
    socket.setTimeout(0);
    socket.setKeepAlive(true, PROBE_MS);
    // For Node the request is over now, and its signal destroys nothing any more.
    const leave = () => socket.destroy();
    const watch = () => socket.setTimeout(quietMs, leave);
    signal.addEventListener('abort', leave);
    gone.addEventListener('abort', watch);
    socket.once('close', () => {
      signal.removeEventListener('abort', leave);
      gone.removeEventListener('abort', watch);
    });
    if (signal.aborted) leave();
    if (gone.aborted) watch();
    if (beginning.length > 0) socket.unshift(beginning);
    resolve(socket);
  });
  request.once('response', (answer) => {
    answer.resume();
    reject(noAnswer(url, new Error(`the answer is ${answer.statusCode}`)));
  });
  request.once('timeout', () => request.destroy(new Error('it is silent')));
  // Also after the answer: of a socket that breaks off.
  request.on('error', (error) => reject(noAnswer(url, error)));
  request.end();
  return promise;
}

/** Whether a request begins one, of another server. */
export function isConversation(
  { cluster }: { cluster: Cluster },
  { url = '', headers }: IncomingMessage,
): boolean {
  if (headers.upgrade !== PROTOCOL || !url.startsWith(`${PATH}/`)) return false;
  return isSigned(cluster.key, headers[SIGNATURE], partsOf(url, String(headers[HEAD] ?? '')));
}

/** Answers a request that `isConversation`. @returns the repository that it is about, and how it begins */
export function accept(
  { url = '', headers, socket: own }: IncomingMessage,
  socket: Duplex,
): { repositoryId: string; head: unknown } | null {
  const repositoryId = url.slice(PATH.length + 1);
  if (!isId('repo', repositoryId)) return null;
  const head = JSON.parse(Buffer.from(String(headers[HEAD]), 'base64url').toString());
  own.setKeepAlive(true, PROBE_MS);
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${PROTOCOL}\r\n\r\n`,
  );
  return { repositoryId, head };
}
