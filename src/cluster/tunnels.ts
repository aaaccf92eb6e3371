/**
 * Bidirectional tunnels between two servers: an SSH client is connected to one server, and the other owns the repository. A
 * tunnel is an HTTP upgrade (RFC 9110 section 7.8) whose header has the first message. After the response both ends have
 * the socket, at its first byte.
 */

import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import type { Duplex } from 'node:stream';
import { isId } from '../base/ids.ts';
import type { Cluster } from './cluster.ts';
import { toServerAway } from './cluster.ts';
import type { Member } from './members.ts';
import { isSigned, SIGNATURE, sign } from './signature.ts';

const PATH = '/_loam/conversations';
const PROTOCOL = 'loam';
/** Header with the first message, as JSON in base64url. */
const HEAD = 'loam-head';
const ANSWER_MS = 10_000;
/** Git sends keepalives every five seconds. */
const IDLE_MS = 10_000;
/** TCP keepalive, because a machine that lost power does not close its connections. */
const KEEPALIVE_MS = 30_000;

function tunnelSignatureParts(url: string, head: string): string[] {
  return ['conversation', url, head];
}

type TunnelRequest = {
  repositoryId: string;
  head: object;
  /** Closes the tunnel at once. */
  signal: AbortSignal;
  /** Time without traffic after which the tunnel to a dead server is closed. */
  quietMs?: number;
};

/**
 * Opens a tunnel to the server that owns the repository. It is closed when `signal` aborts, and when that server is considered
 * dead and there is no traffic: a server that is stopping or was paused may finish the running session.
 * @throws ServerAway if the server does not answer; then nothing was started
 */
export async function openTunnel(
  { cluster }: { cluster: Cluster },
  { url, gone }: Member,
  { repositoryId, head, signal, quietMs = IDLE_MS }: TunnelRequest,
): Promise<Duplex> {
  const path = `${PATH}/${repositoryId}`;
  const encoded = Buffer.from(JSON.stringify(head)).toString('base64url');
  const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
  const request = (url.startsWith('https:') ? httpsRequest : httpRequest)(url + path, {
    agent: false,
    headers: {
      Connection: 'Upgrade',
      Upgrade: PROTOCOL,
      [HEAD]: encoded,
      [SIGNATURE]: sign(cluster.key, tunnelSignatureParts(path, encoded)),
    },
    signal: AbortSignal.any([gone, signal]),
    timeout: ANSWER_MS,
  });
  request.once('upgrade', (_answer, socket, firstBytes) => {
    socket.setTimeout(0);
    socket.setKeepAlive(true, KEEPALIVE_MS);
    // For Node the request has ended, so its signal does not affect the socket any more.
    const destroy = () => socket.destroy();
    const closeWhenIdle = () => socket.setTimeout(quietMs, destroy);
    signal.addEventListener('abort', destroy);
    gone.addEventListener('abort', closeWhenIdle);
    socket.once('close', () => {
      signal.removeEventListener('abort', destroy);
      gone.removeEventListener('abort', closeWhenIdle);
    });
    if (signal.aborted) destroy();
    if (gone.aborted) closeWhenIdle();
    if (firstBytes.length > 0) socket.unshift(firstBytes);
    resolve(socket);
  });
  request.once('response', (answer) => {
    answer.resume();
    reject(toServerAway(url, new Error(`status ${answer.statusCode}`)));
  });
  request.once('timeout', () => request.destroy(new Error('it did not answer in time')));
  // Also after the response, for a socket that breaks.
  request.on('error', (error) => reject(toServerAway(url, error)));
  request.end();
  return promise;
}

/** Whether the request opens a tunnel and is signed by another server. */
export function isTunnelRequest(
  { cluster }: { cluster: Cluster },
  { url = '', headers }: IncomingMessage,
): boolean {
  if (headers.upgrade !== PROTOCOL || !url.startsWith(`${PATH}/`)) return false;
  return isSigned(
    cluster.key,
    headers[SIGNATURE],
    tunnelSignatureParts(url, String(headers[HEAD] ?? '')),
  );
}

/** Accepts a request for which `isConversation` is true. @returns the repository and the first message */
export function acceptTunnel(
  { url = '', headers, socket: connection }: IncomingMessage,
  socket: Duplex,
): { repositoryId: string; head: unknown } | null {
  const repositoryId = url.slice(PATH.length + 1);
  if (!isId('repo', repositoryId)) return null;
  const head = JSON.parse(Buffer.from(String(headers[HEAD]), 'base64url').toString());
  connection.setKeepAlive(true, KEEPALIVE_MS);
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${PROTOCOL}\r\n\r\n`,
  );
  return { repositoryId, head };
}
