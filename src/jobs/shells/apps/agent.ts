/**
 * The connections of a browser session to its port, kept open for further requests. Each is a command in the job, so they are few
 * and close soon. Each begins with a check of the session's rights, and closes when a later check fails (`Rechecks`).
 */
import { Agent, type ClientRequest } from 'node:http';
import type { Duplex } from 'node:stream';
import { busy } from '../../../base/errors.ts';
import type { Origin } from '../../../identity/audit.ts';
import {
  type AuthenticateDeps,
  readAccountByCredentialId,
} from '../../../identity/authenticate.ts';
import { type Deps as AccessDeps, authorizeShellById } from '../access.ts';
import { type Deps as OpenDeps, openShell } from '../open.ts';
import { PortConnection } from '../port-connection.ts';
import { connectSpec } from '../ports.ts';
import type { AppSession } from './sessions.ts';

export type Deps = AccessDeps & OpenDeps & Pick<AuthenticateDeps, 'usage'>;

/** For ordinary requests. Further ones wait. */
const MAX_REQUESTS = 20;
/** With WebSockets. */
const MAX_CONNECTIONS = 50;
/** Shorter than that of the servers that programs use (5 s in Node and uvicorn), so that no request meets their end. */
const IDLE_MS = 3_000;

export class PortAgent extends Agent {
  readonly #services: Deps;
  readonly #session: AppSession;
  readonly #from: Origin;
  readonly #onUnused: () => void;
  readonly #open = new Set<PortConnection>();
  readonly #idle = new WeakMap<Duplex, NodeJS.Timeout>();

  /** @param onUnused called when no connection is open */
  constructor(services: Deps, session: AppSession, from: Origin, onUnused: () => void) {
    super({ keepAlive: true, maxSockets: MAX_REQUESTS, maxFreeSockets: MAX_REQUESTS });
    this.#services = services;
    this.#session = session;
    this.#from = from;
    this.#onUnused = onUnused;
  }

  override createConnection(): Duplex {
    const isFull = this.#open.size >= MAX_CONNECTIONS;
    const connection: PortConnection = new PortConnection(this.#session.port, async (frames) => {
      if (isFull) throw busy(`There are ${MAX_CONNECTIONS} open connections, the maximum`);
      await this.#connect(frames, (reason) => connection.destroy(reason));
    });
    const expiry = setTimeout(
      () => connection.destroy(),
      this.#session.expiresAt.getTime() - Date.now(),
    );
    this.#open.add(connection);
    connection.once('close', () => {
      clearTimeout(expiry);
      clearTimeout(this.#idle.get(connection));
      this.#open.delete(connection);
      this.checkUse();
    });
    return connection;
  }

  override keepSocketAlive(socket: Duplex): boolean {
    this.#idle.set(
      socket,
      setTimeout(() => socket.destroy(), IDLE_MS),
    );
    return true;
  }

  override reuseSocket(socket: Duplex, request: ClientRequest): void {
    clearTimeout(this.#idle.get(socket));
    super.reuseSocket(socket, request);
  }

  /** Calls `onUnused` if no connection is open. To be called after each request, because one that fails early opens none. */
  checkUse(): void {
    if (this.#open.size === 0) this.#onUnused();
  }

  /** Closes also the connections that are WebSockets. */
  override destroy(): void {
    super.destroy();
    for (const connection of this.#open) connection.destroy();
  }

  async #connect(frames: Duplex, cutOff: (reason: Error) => void): Promise<void> {
    const { credentialId, jobId, port } = this.#session;
    const account = await readAccountByCredentialId(this.#services, credentialId);
    const viewer = { ...account, from: this.#from };
    const target = await authorizeShellById(this.#services, viewer, jobId);
    const spec = connectSpec(port);
    await openShell(this.#services, { viewer, target, spec, port, connection: frames, cutOff });
  }
}
