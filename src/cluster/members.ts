/**
 * The Loam processes on one database, and which of them are alive.
 *
 * Each process writes a heartbeat once a second with one statement, which also reads the heartbeats of the other processes.
 * A process without a heartbeat for three seconds is considered dead, and its repositories move to other servers. If it was
 * only paused, only its caches are lost: git's own locks and the lock on the repository's row keep concurrent work correct.
 *
 * A server on its embedded database is alone and writes no heartbeat.
 */
import type pg from 'pg';
import { SERVER_REGISTRATION_LOCK } from '../base/advisory-locks.ts';
import { sleep } from '../base/backoff.ts';
import { type Config, ConfigError, type Role } from '../base/config/config.ts';
import type { Logger } from '../base/log.ts';
import { inPoolTransaction } from '../platform/database/client.ts';
import type { Session } from '../platform/database/session.ts';
import type { Bus } from '../platform/events/bus.ts';
import { runLoop } from '../platform/loop.ts';

/** A process that answers requests of the other processes. */
export type Member = {
  id: string;
  /** Base URL without a trailing slash. */
  baseUrl: string;
  /** Aborts when the process is considered dead or has another address, and after it has left and ended its requests. */
  goneSignal: AbortSignal;
};

export type Members = AsyncDisposable & {
  /** Id of this process. */
  readonly id: string;
  /** The processes that have repositories, by id: not of the role `work`. Includes this process after `join`. */
  readonly serving: readonly Member[];
  /** A process of any role that is alive and has joined. */
  find(id: string): Member | undefined;
  /** Makes the other processes send requests to `url`. */
  join(url: string): Promise<void>;
  /** Makes the other processes stop sending requests to this process. Running requests may continue. */
  leave(): Promise<void>;
  /** Resolves when `serving` has changed, when `signal` aborts, and after `ms` at the latest. */
  waitForChange(ms: number, signal?: AbortSignal): Promise<void>;
};

/** Configuration that all processes on one database must share. */
type SharedConfig = {
  /** Id of the folder of repositories; null for a process without such a folder. */
  repositories: string | null;
  storage: string;
};

type Options = {
  id: string;
  role: Role;
  shared: SharedConfig;
  database: Config['database'];
  pool: pg.Pool;
  session: Session;
  bus: Bus;
  log: Logger;
};

export const HEARTBEAT_MS = 1_000;
/** Three heartbeats, so that one late heartbeat does not count as a failure. */
export const DEAD_AFTER_S = 3;
/** A process that leaves ends its requests within ten seconds (`drain`). */
const LEAVING_MS = 15_000;

/** Inserts the row again if it is missing: `removeDeadServers` removes rows after a week without heartbeats. */
const HEARTBEAT = `
  with beat as (
    insert into servers (id, url, role, repositories, storage, heartbeat_at)
    values ($1, $2, $3, $4, $5, clock_timestamp())
    on conflict (id) do update set url = excluded.url, heartbeat_at = excluded.heartbeat_at
  )
  select id, url, role, heartbeat_at > clock_timestamp() - make_interval(secs => ${DEAD_AFTER_S}) as alive
  from servers where url is not null and id <> $1`;

type Row = { id: string; url: string; role: Role; alive: boolean };

const LEAVE = `with gone as (delete from servers where id = $1) select pg_notify('loam', 'servers')`;

/** @throws ConfigError if other processes on the database use other repositories or another storage */
export async function openMembers(options: Options): Promise<Members> {
  const { id, role, shared, session, bus, log } = options;
  const stopping = new AbortController();
  const { signal } = stopping;
  let own: LiveMember | undefined;
  let others: LiveMember[] = [];
  let serving: readonly Member[] = [];
  const listeners = new Set<() => void>();

  const isAlone = options.database.kind === 'embedded';
  if (!isAlone) await register(options);

  async function sendHeartbeat(): Promise<void> {
    const { repositories, storage } = shared;
    const row = [id, own?.baseUrl ?? null, role, repositories, storage];
    const rows = await session.query<Row>(HEARTBEAT, row);
    const before = others;
    others = rows
      .filter(({ alive }) => alive)
      .map(
        (row) =>
          before.find(
            ({ id, baseUrl, role }) => id === row.id && baseUrl === row.url && role === row.role,
          ) ?? createMember(row),
      );
    const departed = before.filter((member) => !others.includes(member));
    if (departed.length === 0 && others.length === before.length) return;
    for (const { id, gone } of departed) {
      // A process that leaves removes its row.
      const hasLeft = !rows.some((row) => row.id === id);
      if (hasLeft) setTimeout(() => gone.abort(), LEAVING_MS).unref();
      else gone.abort();
    }
    publish();
    log.info({ servers: serving.length }, 'the set of servers has changed');
  }

  function publish(): void {
    serving = [...others, ...(own ? [own] : [])]
      .filter((member) => member.role !== 'work')
      .sort((a, b) => (a.id < b.id ? -1 : 1));
    for (const listener of listeners) listener();
  }

  // Finds the other processes before any request is sent to them.
  if (!isAlone) await sendHeartbeat();
  // While the database is unavailable, the last known members are used.
  const heartbeats = isAlone
    ? undefined
    : runLoop(
        {
          name: 'Writing the heartbeat of this server',
          every: HEARTBEAT_MS,
          wakes: (signal, everyMs) => bus.wakes('servers', signal, everyMs),
          signal,
          log,
        },
        sendHeartbeat,
      );

  async function leave(): Promise<void> {
    if (isAlone || signal.aborted) return;
    stopping.abort();
    await heartbeats;
    own = undefined;
    publish();
    // Other servers take over at once instead of after three seconds. Fails if the database is unavailable.
    await session
      .query(LEAVE, [id])
      .catch((error) =>
        log.debug({ err: error }, 'cannot remove the server from the list of servers'),
      );
  }

  return {
    id,
    get serving() {
      return serving;
    },
    find: (processId) =>
      [...others, ...(own ? [own] : [])].find((member) => member.id === processId),
    async join(url) {
      own = createMember({ id, url, role });
      publish();
      if (isAlone) return;
      await sendHeartbeat();
      await session.query(`select pg_notify('loam', 'servers')`, []);
    },
    async waitForChange(ms, signal) {
      const change = new AbortController();
      const listener = () => change.abort();
      listeners.add(listener);
      const wake = signal ? AbortSignal.any([change.signal, signal]) : change.signal;
      await sleep(ms, wake);
      listeners.delete(listener);
    },
    leave,
    [Symbol.asyncDispose]: leave,
  };
}

type LiveMember = Member & { role: Role; gone: AbortController };

function createMember({ id, url, role }: { id: string; url: string; role: Role }): LiveMember {
  const gone = new AbortController();
  return { id, baseUrl: url, role, goneSignal: gone.signal, gone };
}

/** Adds this process to the table without an address, because it does not answer requests yet. */
async function register({ id, role, shared, pool }: Options): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('select pg_advisory_xact_lock($1)', [SERVER_REGISTRATION_LOCK]);
    const { rows } = await client.query<SharedConfig>(
      `select repositories, storage from servers
       where id <> $1 and heartbeat_at > clock_timestamp() - make_interval(secs => ${DEAD_AFTER_S})`,
      [id],
    );
    for (const other of rows) requireShared(shared, other);
    await client.query(
      `insert into servers (id, role, url, repositories, storage, heartbeat_at)
       values ($1, $2, null, $3, $4, clock_timestamp())
       on conflict (id) do update set role = excluded.role, url = null, storage = excluded.storage,
         repositories = excluded.repositories, heartbeat_at = excluded.heartbeat_at`,
      [id, role, shared.repositories, shared.storage],
    );
  });
}

function requireShared(own: SharedConfig, other: SharedConfig): void {
  if (own.storage !== other.storage)
    throw new ConfigError(
      'LOAM_STORAGE: another server on this database uses another storage; set the same storage on all servers',
    );
  if (own.repositories && other.repositories && own.repositories !== other.repositories)
    throw new ConfigError(
      'LOAM_REPOSITORIES_DIR: another server on this database uses another folder for repositories; ' +
        'set the same folder on all servers, on a shared volume',
    );
}

/** Removes processes without a heartbeat for a week. Not in batches: there are only as many rows as data folders. */
export async function removeDeadServers({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(`delete from servers where heartbeat_at < now() - interval '7 days'`);
  return false;
}
