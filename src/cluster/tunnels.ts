/**
 * Bidirectional tunnels between two servers, for SSH sessions whose client is connected to one server while another server
 * owns the repository, or has the job. A tunnel is an HTTP upgrade (RFC 9110 section 7.8) whose header contains the first message. After the
 * response, both servers have the socket, of which no byte has been read.
 */

import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { isId } from '../base/ids.ts';
import { acceptUpgrade, requestUpgrade } from '../platform/upgrades.ts';
import type { Cluster } from './cluster.ts';
import { toServerUnavailable } from './cluster.ts';
import type { Member } from './members.ts';
import { isSigned, SIGNATURE_HEADER, sign } from './signature.ts';

const PATH = '/_loam/tunnels';
const PROTOCOL = 'loam';
/** Header with the first message, as JSON in base64url. */
const HEAD = 'loam-head';
const OPEN_TIMEOUT_MS = 10_000;
/** Git sends keepalives every five seconds. */
const IDLE_MS = 10_000;
/** TCP keepalive, because a machine that lost power does not close its connections. */
const KEEPALIVE_MS = 30_000;

function tunnelSignatureParts(url: string, head: string): string[] {
  return ['tunnel', url, head];
}

type TunnelRequest = {
  /** Id of the repository or the attempt. */
  target: string;
  head: object;
  /** On abort, the tunnel is closed at once. */
  signal: AbortSignal;
  /** How long a tunnel without traffic stays open after its server is considered dead. */
  quietMs?: number;
};

/**
 * Opens a tunnel to the server that owns the repository, or has the attempt. The tunnel is closed when `signal` aborts, or when the server is
 * considered dead and there is no traffic: a server that is stopping or was paused may finish the running session.
 * @throws ServerUnavailable if the server does not answer; then the session was not started
 */
export async function openTunnel(
  { cluster }: { cluster: Cluster },
  { baseUrl, goneSignal }: Member,
  { target, head, signal, quietMs = IDLE_MS }: TunnelRequest,
): Promise<Duplex> {
  const path = `${PATH}/${target}`;
  const encoded = Buffer.from(JSON.stringify(head)).toString('base64url');
  const socket = await requestUpgrade(baseUrl + path, {
    protocol: PROTOCOL,
    headers: {
      [HEAD]: encoded,
      [SIGNATURE_HEADER]: sign(cluster.key, tunnelSignatureParts(path, encoded)),
    },
    signal: AbortSignal.any([goneSignal, signal]),
    timeoutMs: OPEN_TIMEOUT_MS,
    agent: false,
  }).catch((error) => {
    throw toServerUnavailable(baseUrl, error);
  });
  socket.setKeepAlive(true, KEEPALIVE_MS);
  // For Node the request has ended, so its signal no longer affects the socket.
  const destroy = () => socket.destroy();
  const closeWhenIdle = () => socket.setTimeout(quietMs, destroy);
  signal.addEventListener('abort', destroy);
  goneSignal.addEventListener('abort', closeWhenIdle);
  socket.once('close', () => {
    signal.removeEventListener('abort', destroy);
    goneSignal.removeEventListener('abort', closeWhenIdle);
  });
  if (signal.aborted) destroy();
  if (goneSignal.aborted) closeWhenIdle();
  return socket;
}

/** Relays bytes until both sockets are closed. @returns false if `other` closed without an end before `own` closed */
export async function relaySockets(own: Duplex, other: Duplex): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  other.on('error', () => {});
  own.once('close', () => {
    resolve(true);
    other.destroy();
  });
  const onOtherClose = () => {
    resolve(other.readableEnded);
    if (!other.readableEnded) own.destroy();
  };
  other.once('close', onOtherClose);
  if (other.closed) onOtherClose();
  if (own.destroyed) other.destroy();
  own.pipe(other).pipe(own);
  return promise;
}

/** Whether the request opens a tunnel and is signed by another server. */
function isTunnelRequest(
  { cluster }: { cluster: Cluster },
  { url = '', headers }: IncomingMessage,
): boolean {
  if (headers.upgrade !== PROTOCOL || !url.startsWith(`${PATH}/`)) return false;
  return isSigned(
    cluster.key,
    headers[SIGNATURE_HEADER],
    tunnelSignatureParts(url, String(headers[HEAD] ?? '')),
  );
}

/** Receives the first message of a tunnel, and its socket at the first byte after that. */
type ServeTunnel = (head: unknown, socket: Duplex) => void;

/** Where the HTTP server hands over sockets of other servers. */
type UpgradeHandlers = {
  onUpgrade(
    isOurs: (req: IncomingMessage) => boolean,
    serve: (req: IncomingMessage, socket: Duplex) => void,
  ): void;
};

/** Accepts the tunnels of other servers. @param serving kind of the target's id → who serves it */
export function acceptTunnels(
  services: { cluster: Cluster },
  port: UpgradeHandlers,
  serving: Partial<Record<'repo' | 'att', ServeTunnel>>,
): void {
  port.onUpgrade(
    (req) => isTunnelRequest(services, req),
    ({ url = '', headers, socket: connection }, socket) => {
      const target = url.slice(PATH.length + 1);
      const kind = isId('repo', target) ? 'repo' : 'att';
      const serve = serving[kind];
      if (!serve || !isId(kind, target)) return void socket.destroy();
      const head = JSON.parse(Buffer.from(String(headers[HEAD]), 'base64url').toString());
      connection.setKeepAlive(true, KEEPALIVE_MS);
      acceptUpgrade(socket, PROTOCOL);
      serve(head, socket);
    },
  );
}
