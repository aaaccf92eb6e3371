/**
 * The embedded PostgreSQL in the data folder, spoken to over a Unix socket: started, adopted from a server
 * that was killed (by its pid file), and started again whenever it ends under us. Who owns the data folder is
 * decided by a lock in the database (`session.ts`), which dies with its holder.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { ConfigError } from '../config.ts';
import type { Logger } from '../log.ts';
import {
  initialise,
  isAlive,
  lastComplaint,
  launch,
  type Place,
  preparePlace,
  runningPostmaster,
  SUPERUSER,
  socketDirectory,
  stopPostmaster,
} from './postmaster.ts';

/** What `pg` and Prisma's adapter need to connect. */
export type DatabaseTarget = { connectionString: string } | SocketTarget;
type SocketTarget = { host: string; user: string; database: string; application_name?: string };

export type EmbeddedPostgres = {
  target: SocketTarget;
  /**
   * Says that the data folder is ours: the server is started again from now on whenever it ends, and `stop`
   * ends it also when it was adopted. Without it `stop` ends only one that was started here.
   */
  own(log: Logger): void;
  /** Says that the folder is another's now: the server is left alone as long as it serves that one. */
  disown(): void;
  stop(): Promise<void>;
};

/** A postmaster that runs and yet answers nobody is given up after this; one that recovers is waited for. */
const START_TIMEOUT_MS = 30_000;
/** How soon its end is noticed: one `kill(pid, 0)` each time. */
const WATCH_MS = 250;
/** Before it is started again: doubling while starts fail, and from the beginning once it has lasted. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5_000;
const LASTED_MS = 30_000;

const STARTING_UP = '57P03';
/** Marks the connections of this process. PostgreSQL may still list one of them for a moment after it was closed. */
const OWN_CONNECTION = `loam ${randomUUID()}`;

/**
 * Starts, or adopts, the server of `dir` and makes the database `loam` in it.
 * @throws ConfigError when PostgreSQL does not come up; the message ends with what its log says.
 */
export async function startPostgres(dir: string): Promise<EmbeddedPostgres> {
  const place = await preparePlace(dir);
  const { cluster, socketDir } = place;
  let started: number | undefined;
  let owned = false;
  const stopping = new AbortController();
  let watching = Promise.resolve();

  const stop = async () => {
    stopping.abort();
    await watching;
    const pid = await runningPostmaster(cluster);
    if (pid === undefined) return;
    // Started here, it may serve another Loam by now, which then holds the folder's lock.
    if (owned || (pid === started && !(await servesOthers(socketDir)))) await stopPostmaster(pid);
  };
  try {
    let pid = await runningPostmaster(cluster);
    if (pid === undefined) {
      await initialise(place);
      pid = started = await launch(place);
    }
    await untilItAccepts(place, pid);
  } catch (error) {
    await stop();
    const said = (error as Error).message.split('\n')[0];
    throw new ConfigError(`LOAM_DATA_DIR: the embedded PostgreSQL did not start: ${said}`);
  }
  return {
    target: targetIn(dir),
    own(log) {
      owned = true;
      watching = keepRunning(place, log, stopping.signal);
    },
    disown() {
      owned = false;
      stopping.abort();
    },
    stop,
  };
}

/** Where the server of `dir` is reached, if it runs. */
export function targetIn(dir: string): SocketTarget {
  return {
    host: socketDirectory(dir),
    user: SUPERUSER,
    database: 'loam',
    application_name: OWN_CONNECTION,
  };
}

/** Starts the server again whenever it has ended, until `stopping` aborts. Never rejects. */
async function keepRunning(place: Place, log: Logger, stopping: AbortSignal): Promise<void> {
  const sleep = (ms: number) => delay(ms, undefined, { signal: stopping }).catch(() => {});
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    const pid = await runningPostmaster(place.cluster);
    if (pid !== undefined) {
      const since = Date.now();
      while (!stopping.aborted && isAlive(pid)) await sleep(WATCH_MS);
      if (Date.now() - since > LASTED_MS) pause = FIRST_PAUSE_MS;
    }
    if (stopping.aborted) return;
    log.error({ pause }, 'the embedded PostgreSQL has ended: it is started again');
    await sleep(pause);
    if (stopping.aborted) return;
    pause = Math.min(pause * 2, MAX_PAUSE_MS);
    try {
      // A cluster is never made here: without its folder there is nothing to go on with.
      await untilItAccepts(place, await launch(place), stopping);
      log.warn('the embedded PostgreSQL runs again');
    } catch (error) {
      if (!stopping.aborted) log.error({ err: error }, 'the embedded PostgreSQL did not start');
    }
  }
}

/**
 * Waits for the postmaster `pid` and makes the database, unless it is there.
 * @throws Error when it ends, or answers nobody for too long.
 */
async function untilItAccepts(place: Place, pid: number, stopping?: AbortSignal): Promise<void> {
  let postmaster = pid;
  let deadline = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    try {
      return await withClient(place.socketDir, async (client) => {
        const { rowCount } = await client.query(`select from pg_database where datname = 'loam'`);
        if (!rowCount) await client.query('create database loam');
      });
    } catch (error) {
      stopping?.throwIfAborted();
      // Recovery after a crash takes as long as there is log to replay.
      if ((error as { code?: string }).code === STARTING_UP)
        deadline = Date.now() + START_TIMEOUT_MS;
      if (Date.now() > deadline) throw error;
      if (!isAlive(postmaster)) {
        // Of two that start at once on one cluster, the second ends.
        const other = await runningPostmaster(place.cluster);
        if (other === undefined) throw new Error(await lastComplaint(place));
        postmaster = other;
      }
      await delay(25);
    }
  }
}

async function servesOthers(socketDir: string): Promise<boolean> {
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
    // A postmaster that is suspended lets clients wait for ever.
    connectionTimeoutMillis: START_TIMEOUT_MS,
  });
  // When it breaks, the query under way fails; an `error` without a listener would end the process.
  client.on('error', () => {});
  try {
    await client.connect();
    return await use(client);
  } finally {
    await client.end().catch(() => {});
  }
}
