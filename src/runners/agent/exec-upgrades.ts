/**
 * The connections that agents open for commands beside that of a job (`remote-exec.ts`): an upgrade of `GET exec`, which any server
 * accepts. Only the process that supervises the attempt waits for it, so other servers relay the bytes to that one.
 */
import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { AppError, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { ServerUnavailable } from '../../cluster/cluster.ts';
import { relaySockets } from '../../cluster/tunnels.ts';
import { acceptUpgrade } from '../../platform/upgrades.ts';
import { AGENTS_PATH, EXEC_KEEPALIVE_MS, EXEC_PROTOCOL, NONCE_HEADER } from './protocol.ts';
import type { AgentRunner } from './runner.ts';

/** JSON, because servers send it to each other. */
export type ExecConnection = { attempt: string; session: string; token: string; nonce: string };

type Deps = {
  /** Over all clusters of this worker. */
  findSession: AgentRunner['findSession'];
  /** Id of the worker of an open attempt. */
  findWorker(attempt: string): Promise<string | null>;
  /** Opens a tunnel to the worker with this id. Throws ServerUnavailable if it cannot. */
  openTunnel(worker: string, head: ExecConnection, signal: AbortSignal): Promise<Duplex>;
  /** Aborts when the server stops. */
  closing: AbortSignal;
  log: Logger;
};

const PATH = new RegExp(`^${AGENTS_PATH}/(\\w{1,100})/exec\\?session=([\\w-]{1,100})$`);
/** Time for the client to read a refusal before the connection is reset. */
const LINGER_MS = 1_000;

export function isExecUpgrade({ url = '', headers, method }: IncomingMessage): boolean {
  return method === 'GET' && headers.upgrade === EXEC_PROTOCOL && PATH.test(url);
}

/** Hands the connection of an agent over to whoever waits for it. Never rejects. */
export async function serveExecUpgrade(
  deps: Deps,
  { url = '', headers, socket: connection }: IncomingMessage,
  socket: Duplex,
): Promise<void> {
  // The peer may be gone at any time.
  socket.on('error', () => {});
  connection.setKeepAlive(true, EXEC_KEEPALIVE_MS);
  try {
    const [, attempt = '', session = ''] = PATH.exec(url) ?? [];
    const [, token] = /^Bearer (\S+)$/i.exec(headers.authorization ?? '') ?? [];
    if (!token) throw unauthenticated();
    const opened = { attempt, session, token, nonce: String(headers[NONCE_HEADER] ?? '') };
    const serve = await findServer(deps, opened);
    if (serve) {
      acceptUpgrade(socket, EXEC_PROTOCOL);
      return serve(socket);
    }
    const worker = await deps.findWorker(attempt);
    if (worker === null) throw new AppError('not_found', 'The attempt is over', { status: 410 });
    const closed = new AbortController();
    const close = () => socket.destroy();
    deps.closing.addEventListener('abort', close);
    socket.once('close', () => {
      deps.closing.removeEventListener('abort', close);
      closed.abort();
    });
    if (deps.closing.aborted) close();
    if (socket.destroyed) return;
    const tunnel = await deps.openTunnel(worker, opened, closed.signal);
    acceptUpgrade(socket, EXEC_PROTOCOL);
    await relaySockets(socket, tunnel);
  } catch (error) {
    const status = statusOf(error);
    if (status === 500) deps.log.error({ err: error }, 'a connection of an agent failed');
    await refuse(socket, status);
  }
}

/** Serves a tunnel of a server that has relayed the connection of an agent. Never rejects. */
export async function serveExecTunnel(
  deps: Pick<Deps, 'findSession' | 'log'>,
  opened: ExecConnection,
  socket: Duplex,
): Promise<void> {
  try {
    const serve = await findServer(deps, opened);
    if (serve) serve(socket);
    else socket.destroy();
  } catch (error) {
    if (!(error instanceof AppError))
      deps.log.error({ err: error }, 'a connection of an agent failed');
    socket.destroy();
  }
}

/**
 * @returns undefined if another process has the attempt
 * @throws AppError 401, 409 and 410 as for other requests of agents, 404 if nobody waits for the session
 */
async function findServer(
  { findSession }: Pick<Deps, 'findSession'>,
  { attempt, session, token, nonce }: ExecConnection,
): Promise<((connection: Duplex) => void) | undefined> {
  const agent = await findSession(attempt);
  if (!agent) return undefined;
  agent.checkToken(token);
  await agent.checkClaim(nonce);
  const serve = agent.execs.take(session);
  if (!serve) throw new AppError('not_found', 'Nobody waits for this session');
  return serve;
}

function statusOf(error: unknown): number {
  if (error instanceof ServerUnavailable) return 503;
  return error instanceof AppError ? error.status : 500;
}

async function refuse(socket: Duplex, status: number): Promise<void> {
  if (!socket.writable) return void socket.destroy();
  const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nConnection: close\r\nContent-Length: 0`;
  socket.end(`${head}\r\n\r\n`);
  socket.resume();
  await delay(LINGER_MS, undefined, { ref: false });
  socket.destroy();
}
