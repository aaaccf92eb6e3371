/**
 * The embedded PostgreSQL in the data folder, reached over a Unix socket. Loam starts it, or adopts one that a killed Loam
 * process has left running (found by its pid file), and restarts it whenever it ends. A lock in the database (`session.ts`)
 * decides which Loam process owns the data folder; the lock ends with its holder.
 */
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { Backoff, sleep } from '../../base/backoff.ts';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import {
  type EmbeddedCluster,
  initCluster,
  isAlive,
  lastLogError,
  prepareCluster,
  runningPostmaster,
  SUPERUSER,
  socketDirectory,
  startPostmaster,
  stopPostmaster,
} from './postmaster.ts';

/** Connection parameters for `pg` and Prisma's adapter. */
export type DatabaseTarget = { connectionString: string } | SocketTarget;
type SocketTarget = { host: string; user: string; database: string; application_name?: string };

type EmbeddedPostgres = {
  target: SocketTarget;
  /**
   * Must be called when this process owns the data folder. From then on PostgreSQL is restarted whenever it ends, and `stop`
   * also ends an adopted PostgreSQL. Before, `stop` only ends a PostgreSQL that this process has started.
   */
  takeOwnership(log: Logger): void;
  /** Must be called when another process owns the folder: PostgreSQL is left running for that process. */
  releaseOwnership(): void;
  stop(): Promise<void>;
};

/** Timeout for a running postmaster that does not answer. Crash recovery may take longer. */
const START_TIMEOUT_MS = 30_000;
/** Interval of checks whether the postmaster is running, each a `kill(pid, 0)`. */
const WATCH_MS = 250;
/** Pauses before restarts. */
const RESTARTS = { firstMs: 100, longestMs: 5_000, stableMs: 30_000 };

const STARTING_UP = '57P03';
/** Distinguishes connections of this process from those of another Loam process, even after they were closed. */
const OWN_CONNECTION = `loam ${randomUUID()}`;

/**
 * Starts or adopts the PostgreSQL of `dir` and creates the database `loam` in it.
 * @throws ConfigError if PostgreSQL does not start; the message ends with the reason from its log
 */
export async function startPostgres(dir: string): Promise<EmbeddedPostgres> {
  const paths = await prepareCluster(dir);
  const { cluster, socketDir } = paths;
  let startedPid: number | undefined;
  let isOwner = false;
  const stopping = new AbortController();
  let watching = Promise.resolve();

  const stop = async () => {
    stopping.abort();
    await watching;
    const pid = await runningPostmaster(cluster);
    if (pid === undefined) return;
    // Another Loam process may use a PostgreSQL that this process has started; then it holds the lock of the folder.
    if (isOwner || (pid === startedPid && !(await hasOtherClients(socketDir))))
      await stopPostmaster(pid);
  };
  try {
    let pid = await runningPostmaster(cluster);
    if (pid === undefined) {
      await initCluster(paths);
      pid = startedPid = await startPostmaster(paths);
    }
    await waitUntilReady(paths, pid);
  } catch (error) {
    await stop();
    const reason = (error as Error).message.split('\n')[0];
    throw new ConfigError(`LOAM_DATA_DIR: the embedded PostgreSQL did not start: ${reason}`);
  }
  return {
    target: socketTarget(dir),
    takeOwnership(log) {
      isOwner = true;
      watching = restartWhenEnded(paths, log, stopping.signal);
    },
    releaseOwnership() {
      isOwner = false;
      stopping.abort();
    },
    stop,
  };
}

/** Address of the PostgreSQL of `dir`, whether it is running or not. */
export function socketTarget(dir: string): SocketTarget {
  return {
    host: socketDirectory(dir),
    user: SUPERUSER,
    database: 'loam',
    application_name: OWN_CONNECTION,
  };
}

/** Restarts PostgreSQL whenever it has ended, until `stopping` aborts. Never rejects. */
async function restartWhenEnded(
  paths: EmbeddedCluster,
  log: Logger,
  stopping: AbortSignal,
): Promise<void> {
  const backoff = new Backoff(RESTARTS);
  for (;;) {
    const pid = await runningPostmaster(paths.cluster);
    while (!stopping.aborted && pid !== undefined && isAlive(pid)) await sleep(WATCH_MS, stopping);
    if (stopping.aborted) return;
    log.error('the embedded PostgreSQL has ended; restarting it');
    await backoff.pause(stopping);
    if (stopping.aborted) return;
    try {
      // Without `initCluster`: if the cluster is missing, its data is lost, and an empty cluster would hide the loss.
      await waitUntilReady(paths, await startPostmaster(paths), stopping);
      log.warn('the embedded PostgreSQL was restarted');
    } catch (error) {
      if (!stopping.aborted) log.error({ err: error }, 'the embedded PostgreSQL did not start');
    }
  }
}

/**
 * Waits until the postmaster `pid` accepts connections, and creates the database if it does not exist.
 * @throws Error if the postmaster ends or does not answer in time
 */
async function waitUntilReady(
  paths: EmbeddedCluster,
  pid: number,
  stopping?: AbortSignal,
): Promise<void> {
  let postmaster = pid;
  let deadline = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    try {
      return await withClient(paths.socketDir, async (client) => {
        const { rowCount } = await client.query(`select from pg_database where datname = 'loam'`);
        if (!rowCount) await client.query('create database loam');
      });
    } catch (error) {
      stopping?.throwIfAborted();
      // PostgreSQL answers that it is starting up: crash recovery takes as long as there is log to replay.
      if ((error as { code?: string }).code === STARTING_UP)
        deadline = Date.now() + START_TIMEOUT_MS;
      if (Date.now() > deadline) throw error;
      if (!isAlive(postmaster)) {
        // If two postmasters start on one cluster at the same time, the second ends.
        const other = await runningPostmaster(paths.cluster);
        if (other === undefined) throw new Error(await lastLogError(paths));
        postmaster = other;
      }
      await sleep(25);
    }
  }
}

async function hasOtherClients(socketDir: string): Promise<boolean> {
  const others = `select from pg_stat_activity
    where backend_type = 'client backend' and pid <> pg_backend_pid() and application_name <> $1`;
  return withClient(socketDir, async (client) =>
    Boolean((await client.query(others, [OWN_CONNECTION])).rowCount),
  ).catch(() => false);
}

async function withClient<T>(host: string, use: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({
    host,
    user: SUPERUSER,
    database: 'postgres',
    // A suspended postmaster accepts connections and never answers.
    connectionTimeoutMillis: START_TIMEOUT_MS,
  });
  // If the connection breaks, its running query fails; an `error` event without a listener would end the process.
  client.on('error', () => {});
  try {
    await client.connect();
    return await use(client);
  } finally {
    await client.end().catch(() => {});
  }
}
