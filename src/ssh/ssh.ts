/**
 * Git over SSH: a process that speaks it with strangers, and the gateway where that process asks. Each can end without the
 * other: without the process its sessions end and another one is started, without the server the process ends.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdir } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import type { PrismaClient } from '../../prisma/generated/client.ts';
import { type Config, ConfigError } from '../base/config/config.ts';
import type { Logger } from '../base/log.ts';
import { acceptTunnel, isTunnelRequest } from '../cluster/tunnels.ts';
import type { Keys } from '../platform/crypto/keys.ts';
import {
  type ConnectionCounts,
  type FromFront,
  type FromServer,
  SSH_LIMITS,
  type SshLimits,
} from './front/protocol.ts';
import { openGateway } from './gateway.ts';
import { type HostKey, readHostKeys } from './host-keys.ts';
import type { Deps, ForwardedCommand } from './session.ts';

export type Ssh = AsyncDisposable & {
  /** Listened on. */
  readonly port: number;
  readonly hostKeys: readonly HostKey[];
  readonly counts: ConnectionCounts;
  /** Of the process that speaks SSH, for tests. */
  readonly pid: number | undefined;
  /** From now on clients are answered; until then they wait. */
  open(): void;
  /** No new connections and commands; what runs goes on. */
  close(): void;
};

/** What takes sockets of other servers. */
type UpgradeHandlers = {
  onUpgrade(
    isOurs: (req: IncomingMessage) => boolean,
    serve: (req: IncomingMessage, socket: Duplex) => void,
  ): void;
};

/**
 * Answers clients, and runs the commands that other servers were asked for, also where SSH is off: whose repository is here
 * is run here. Disposing waits for what runs.
 */
export async function serveSsh(
  services: Deps,
  ssh: Ssh | null,
  port: UpgradeHandlers,
): Promise<AsyncDisposable> {
  const path = socketPath(services.config.dataDir);
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  await chmod(dirname(path), 0o700);
  const gateway = await openGateway(services, path);
  port.onUpgrade(
    (req) => isTunnelRequest(services, req),
    (req, socket) => {
      const begun = acceptTunnel(req, socket);
      if (begun) gateway.serve(begun.head as ForwardedCommand, socket);
      else socket.destroy();
    },
  );
  ssh?.open();
  return {
    async [Symbol.asyncDispose]() {
      ssh?.close();
      await gateway[Symbol.asyncDispose]();
    },
  };
}

type Options = {
  config: Config;
  db: PrismaClient;
  keys: Keys;
  log: Logger;
  limits?: Partial<SshLimits>;
};

/** After a process that has ended; doubled up to the longest while they end soon. */
const MIN_RESTART_MS = 500;
const MAX_RESTART_MS = 30_000;
const STABLE_MS = 60_000;
const PORT_WAIT_MS = 2_000;
const PORT_RETRY_MS = 200;
/** Between SIGTERM and SIGKILL. */
const GRACE_MS = 2_000;

/**
 * Takes the port. Null: there is to be none.
 * @throws ConfigError when it cannot listen there
 */
export async function takeSshPort({ config, db, keys, log, limits }: Options): Promise<Ssh | null> {
  if (config.ssh === 'off') return null;
  const { host, port: wanted } = config.ssh;
  const hostKeys = await readHostKeys(db, keys, log);
  const gateway = socketPath(config.dataDir);
  const stopping = new AbortController();
  let counts: ConnectionCounts = { connections: 0, waiting: 0, refused: 0 };
  let isOpen = false;
  let child: ChildProcess;
  let ended: Promise<void>;

  /** @throws Error with the code of the fault when it cannot listen */
  async function start(port: number): Promise<number> {
    const listening = Promise.withResolvers<number>();
    const own = spawn(process.execPath, [join(import.meta.dirname, 'front/main.ts')], {
      cwd: '/',
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
      // What it cannot say otherwise, such as a fault of Node itself.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      detached: true,
    });
    child = own;
    ended = new Promise((resolve) => {
      own.once('close', () => resolve());
      // One that could not be started may have no end.
      own.once('error', () => own.pid ?? resolve());
    });
    own.on('error', (error) => listening.reject(error));
    own.once('close', (code, signal) => {
      listening.reject(new Error(`the process that speaks SSH ended with ${code ?? signal}`));
    });
    own.on('message', (said: FromFront) => {
      if (said.kind === 'listening') listening.resolve(said.port);
      else if (said.kind === 'failed')
        listening.reject(Object.assign(new Error(said.message), { code: said.code }));
      else if (said.kind === 'log') log[said.level]({ ssh: said.fields }, said.text);
      else counts = said.counts;
    });
    tell({
      kind: 'settings',
      host,
      port,
      hostKeys: hostKeys.map(({ privateKey }) => privateKey),
      gateway,
      limits: { ...SSH_LIMITS, ...limits },
      proxies: proxiesOf(config),
    });
    try {
      const taken = await listening.promise;
      if (isOpen) tell({ kind: 'open' });
      return taken;
    } catch (error) {
      own.kill('SIGKILL');
      throw error;
    }
  }

  function tell(message: FromServer): void {
    if (child.connected) child.send(message, () => {});
  }

  /** The process of a server that was killed may take a moment to end, and has the port until then. */
  async function take(until: number): Promise<number> {
    try {
      return await start(wanted);
    } catch (error) {
      const isTaken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (!isTaken || performance.now() > until) throw toListenError(error as Error, host, wanted);
    }
    await delay(PORT_RETRY_MS);
    return take(until);
  }
  const port = await take(performance.now() + PORT_WAIT_MS);

  async function supervise(): Promise<void> {
    let pause = MIN_RESTART_MS;
    let startedAt = performance.now();
    while (!stopping.signal.aborted) {
      await ended;
      if (stopping.signal.aborted) return;
      counts = { connections: 0, waiting: 0, refused: counts.refused };
      pause = performance.now() - startedAt > STABLE_MS ? MIN_RESTART_MS : pause;
      log.error({ retryMs: pause }, 'the process that speaks SSH has ended; its sessions are over');
      await delay(pause, undefined, stopping).catch(() => {});
      pause = Math.min(pause * 2, MAX_RESTART_MS);
      startedAt = performance.now();
      if (!stopping.signal.aborted)
        await start(port).catch((error) => log.error({ err: error }, 'SSH cannot be served yet'));
    }
  }
  const supervised = supervise();

  return {
    port,
    hostKeys,
    get counts() {
      return counts;
    },
    get pid() {
      return child.pid;
    },
    open() {
      isOpen = true;
      tell({ kind: 'open' });
    },
    close: () => tell({ kind: 'close' }),
    async [Symbol.asyncDispose]() {
      stopping.abort();
      child.kill('SIGTERM');
      const late = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
      await ended;
      clearTimeout(late);
      await supervised;
    },
  };
}

/** Where only their number is known, they are taken to be of this network. */
const PRIVATE_NETWORKS = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'];

function proxiesOf({ trustedProxies }: Config): readonly string[] {
  if (Array.isArray(trustedProxies)) return trustedProxies;
  return trustedProxies ? PRIVATE_NETWORKS : [];
}

function toListenError(error: NodeJS.ErrnoException, host: string, port: number): Error {
  const { code, message } = error;
  switch (code) {
    case 'EADDRINUSE':
      return new ConfigError(`LOAM_SSH_PORT: ${port} is in use on ${host}; off serves no SSH`);
    case 'EACCES':
      return new ConfigError(
        `LOAM_SSH_PORT: no right to listen on ${port}; those from 1024 need none`,
      );
    default:
      return new ConfigError(
        `LOAM_SSH_HOST, LOAM_SSH_PORT: cannot listen on ${host}, port ${port}: ${message}`,
      );
  }
}

/* Where the server and the process that speaks SSH meet. */

/** `sun_path` of the kernel. */
const MAX_SOCKET_PATH_BYTES = 107;

/** In the data folder; under the temporary folder when that path is too long for a socket. */
function socketPath(dataDir: string): string {
  const inside = join(dataDir, 'ssh', 'gateway');
  if (Buffer.byteLength(inside) <= MAX_SOCKET_PATH_BYTES) return inside;
  const digest = createHash('sha256').update(dataDir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-ssh-${process.getuid?.() ?? 0}-${digest}`, 'gateway');
}
