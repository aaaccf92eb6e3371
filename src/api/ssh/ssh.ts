/**
 * Git over SSH: starts and supervises the front process, which speaks SSH with clients, and opens the gateway, which
 * runs their commands. If the front process dies, its sessions end and it is restarted; if the server dies, it ends.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { PrismaClient } from '../../../prisma/generated/client.ts';
import { sleep } from '../../base/backoff.ts';
import { type Config, ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import type { Keys } from '../../platform/crypto/keys.ts';
import { runLoop } from '../../platform/loop.ts';
import {
  type ConnectionCounts,
  type FromFront,
  type FromServer,
  type FrontSettings,
  SSH_LIMITS,
  type SshLimits,
} from './front/protocol.ts';
import { openGateway } from './gateway.ts';
import { type HostKey, readHostKeys } from './host-keys.ts';
import type { Deps, ForwardedCommand } from './session.ts';

export type Ssh = AsyncDisposable & {
  readonly port: number;
  readonly hostKeys: readonly HostKey[];
  readonly counts: ConnectionCounts;
  /** Of the front process, for tests. */
  readonly pid: number | undefined;
  /** Starts serving clients. Earlier connections wait until then. */
  open(): void;
  /** Refuses new connections and commands. Running commands continue. */
  close(): void;
};

/**
 * Serves clients, and runs commands that other servers forward because this server has the repository, even if SSH is
 * off here. Disposal waits for running commands.
 */
export async function serveSsh(services: Deps, ssh: Ssh | null): Promise<SshService> {
  const path = socketPath(services.config.dataDir);
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  await chmod(dirname(path), 0o700);
  const gateway = await openGateway(services, path);
  ssh?.open();
  return {
    serveForwarded: (head, socket) => gateway.serve(head as ForwardedCommand, socket),
    async [Symbol.asyncDispose]() {
      ssh?.close();
      await gateway[Symbol.asyncDispose]();
    },
  };
}

type SshService = AsyncDisposable & {
  /** Runs a command that another server forwards. */
  serveForwarded(head: unknown, socket: Duplex): void;
};

type Options = {
  config: Config;
  db: PrismaClient;
  keys: Keys;
  log: Logger;
  limits?: Partial<SshLimits>;
};

/** Pauses before restarts. */
const RESTARTS = { firstMs: 500, longestMs: 30_000, stableMs: 60_000 };
const PORT_WAIT_MS = 2_000;
const PORT_RETRY_MS = 200;
/** Time between SIGTERM and SIGKILL. */
const GRACE_MS = 2_000;

/**
 * Starts the front process and listens on the port. Returns null if SSH is off.
 * @throws ConfigError when it cannot listen there
 */
export async function takeSshPort({ config, db, keys, log, limits }: Options): Promise<Ssh | null> {
  if (config.ssh === 'off') return null;
  const hostKeys = await readHostKeys(db, keys, log);
  const front = new SshFront(config.ssh, hostKeys, log, {
    kind: 'settings',
    hostKeys: hostKeys.map(({ privateKey }) => privateKey),
    gatewayPath: socketPath(config.dataDir),
    limits: { ...SSH_LIMITS, ...limits },
    proxies: proxiesOf(config),
  });
  await front.listen();
  return front;
}

/** Starts the front process, and restarts it when it ends. */
class SshFront implements Ssh {
  readonly hostKeys: readonly HostKey[];
  counts: ConnectionCounts = { connections: 0, unauthenticated: 0, refused: 0 };
  readonly #address: { host: string; port: number };
  readonly #log: Logger;
  readonly #settings: Omit<FrontSettings, 'host' | 'port'>;
  readonly #stopping = new AbortController();
  #isServing = false;
  #port = 0;
  #child: ChildProcess | undefined;
  #ended: Promise<void> = Promise.resolve();
  #supervised: Promise<void> = Promise.resolve();

  constructor(
    address: { host: string; port: number },
    hostKeys: readonly HostKey[],
    log: Logger,
    settings: Omit<FrontSettings, 'host' | 'port'>,
  ) {
    this.#address = address;
    this.hostKeys = hostKeys;
    this.#log = log;
    this.#settings = settings;
  }

  get port(): number {
    return this.#port;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /** @throws ConfigError */
  async listen(): Promise<void> {
    this.#port = await this.#startWhenPortIsFree(performance.now() + PORT_WAIT_MS);
    this.#supervised = this.#supervise();
  }

  open(): void {
    this.#isServing = true;
    this.#send({ kind: 'serve' });
  }

  close(): void {
    this.#send({ kind: 'drain' });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    this.#child?.kill('SIGTERM');
    const late = setTimeout(() => this.#child?.kill('SIGKILL'), GRACE_MS);
    await this.#ended;
    clearTimeout(late);
    await this.#supervised;
  }

  #send(message: FromServer): void {
    if (this.#child?.connected) this.#child.send(message, () => {});
  }

  /** @throws Error with the system's error code if it cannot listen */
  async #start(port: number): Promise<number> {
    const listening = Promise.withResolvers<number>();
    const child = spawn(process.execPath, [join(import.meta.dirname, 'front/main.ts')], {
      cwd: '/',
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
      // Standard error shows failures of Node itself, which the process cannot report.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      detached: true,
    });
    this.#child = child;
    this.#ended = new Promise((resolve) => {
      child.once('close', () => resolve());
      // A process that could not be started may emit no `close`.
      child.once('error', () => child.pid ?? resolve());
    });
    child.on('error', (error) => listening.reject(error));
    child.once('close', (code, signal) => {
      listening.reject(new Error(`The SSH front process ended with ${code ?? signal}`));
    });
    child.on('message', (message: FromFront) => this.#receive(message, listening));
    this.#send({ ...this.#settings, host: this.#address.host, port });
    try {
      const taken = await listening.promise;
      if (this.#isServing) this.#send({ kind: 'serve' });
      return taken;
    } catch (error) {
      child.kill('SIGKILL');
      throw error;
    }
  }

  #receive(message: FromFront, listening: PromiseWithResolvers<number>): void {
    if (message.kind === 'listening') listening.resolve(message.port);
    else if (message.kind === 'failed')
      listening.reject(Object.assign(new Error(message.message), { code: message.code }));
    else if (message.kind === 'log')
      this.#log[message.level]({ ssh: message.fields }, message.text);
    else this.counts = message.counts;
  }

  /** Retries for a while, because the front process of a killed server holds the port until it has ended. */
  async #startWhenPortIsFree(until: number): Promise<number> {
    const { host, port } = this.#address;
    try {
      return await this.#start(port);
    } catch (error) {
      const isTaken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (!isTaken || performance.now() > until) throw toListenError(error as Error, host, port);
    }
    await sleep(PORT_RETRY_MS);
    return this.#startWhenPortIsFree(until);
  }

  /** Restarts the process whenever it ends: each end, and each start that fails, is a failed step. */
  #supervise(): Promise<void> {
    const { signal } = this.#stopping;
    const name = 'Running the SSH front process';
    let mustStart = false;
    return runLoop({ name, every: 0, backoff: RESTARTS, signal, log: this.#log }, async () => {
      if (mustStart) await this.#start(this.#port);
      mustStart = true;
      await this.#ended;
      this.counts = { connections: 0, unauthenticated: 0, refused: this.counts.refused };
      throw new Error('the process has ended, and its SSH sessions with it');
    });
  }
}

/** If only the number of trusted proxies is configured, they are assumed to be in private networks. */
const PRIVATE_NETWORKS = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'];

function proxiesOf({ trustedProxies }: Config): readonly string[] {
  if (Array.isArray(trustedProxies)) return trustedProxies;
  return trustedProxies ? PRIVATE_NETWORKS : [];
}

function toListenError(error: NodeJS.ErrnoException, host: string, port: number): Error {
  const { code, message } = error;
  switch (code) {
    case 'EADDRINUSE':
      return new ConfigError(
        `LOAM_SSH_PORT: ${port} is in use on ${host}; choose another port, or "off" to disable SSH`,
      );
    case 'EACCES':
      return new ConfigError(
        `LOAM_SSH_PORT: no permission to listen on ${port}; choose a port from 1024 on`,
      );
    default:
      return new ConfigError(
        `LOAM_SSH_HOST, LOAM_SSH_PORT: cannot listen on ${host}, port ${port}: ${message}`,
      );
  }
}

/** Size of the kernel's `sun_path`, without the final NUL. */
const MAX_SOCKET_PATH_BYTES = 107;

/** The gateway's socket is in the data folder, or in the temporary folder if that path is too long for a socket. */
function socketPath(dataDir: string): string {
  const inside = join(dataDir, 'ssh', 'gateway');
  if (Buffer.byteLength(inside) <= MAX_SOCKET_PATH_BYTES) return inside;
  const digest = createHash('sha256').update(dataDir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-ssh-${process.getuid?.() ?? 0}-${digest}`, 'gateway');
}
