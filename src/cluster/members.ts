/**
 * The processes of Loam on one database, and which of them are alive.
 *
 * Each writes its heartbeat once a second with one statement, which also reads those of the others. One that is silent
 * for three seconds counts as dead, and its repositories go to the others. When a process that only stood still
 * for so long is taken for dead, nothing but its caches is lost: what two of them do to one repository is kept apart by
 * git's own locks and by the lock on the repository's row.
 *
 * A server on its embedded database is alone and writes no heartbeat.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { type Config, ConfigError, type Role } from '../base/config/config.ts';
import type { Logger } from '../base/log.ts';
import { inPoolTransaction } from '../platform/database/client.ts';
import type { Session } from '../platform/database/session.ts';
import type { Bus } from '../platform/events/bus.ts';

/** A process that answers requests. */
export type Member = {
  id: string;
  /** Without a trailing slash. */
  url: string;
  /** Aborts when it is taken for dead, and when it is at another address. */
  gone: AbortSignal;
};

export type Members = AsyncDisposable & {
  /** Of this process. */
  readonly id: string;
  /** Those that answer requests, by id; this one is among them from `join` on. */
  readonly serving: readonly Member[];
  /** From now on the others send requests to `url`. Not for a process of the role `work`. */
  join(url: string): Promise<void>;
  /** From now on the others send nothing here any more. What has begun may go on. */
  leave(): Promise<void>;
  /** Settles when `serving` has changed, when `signal` aborts, and after `ms` at the latest. */
  changed(ms: number, signal?: AbortSignal): Promise<void>;
};

/** What processes on one database must share. */
export type Shared = {
  /** Of the folder of repositories; null for a process that has none. */
  repositories: string | null;
  storage: string;
};

type Options = {
  id: string;
  role: Role;
  shared: Shared;
  database: Config['database'];
  pool: pg.Pool;
  session: Session;
  bus: Bus;
  log: Logger;
};

const BEAT_MS = 1_000;
/** Three beats: one may be late. */
export const SILENCE_S = 3;
/** Two that start at the same moment look for each other one after the other. */
const REGISTERING = 72707371;

/** A row that was removed, because this machine stood still for a week, is made again. */
const BEAT = `
  with beat as (
    insert into servers (id, url, role, repositories, storage, heartbeat_at)
    values ($1, $2, $3, $4, $5, clock_timestamp())
    on conflict (id) do update set url = excluded.url, heartbeat_at = excluded.heartbeat_at
  )
  select id, url from servers
  where url is not null and id <> $1 and role <> 'work'
    and heartbeat_at > clock_timestamp() - make_interval(secs => ${SILENCE_S})
  order by id`;

const LEAVE = `with gone as (delete from servers where id = $1) select pg_notify('loam', 'servers')`;

/** @throws ConfigError when other processes on the database use other repositories or another storage */
export async function openMembers(options: Options): Promise<Members> {
  const { id, role, shared, session, bus, log } = options;
  const stopping = new AbortController();
  const { signal } = stopping;
  let own: (Member & { leave: AbortController }) | undefined;
  let others: (Member & { leave: AbortController })[] = [];
  let serving: readonly Member[] = [];
  const looks = new Set<() => void>();

  const isAlone = options.database.kind === 'embedded';
  if (!isAlone) await register(options);

  async function beat(): Promise<void> {
    const { repositories, storage } = shared;
    const row = [id, own?.url ?? null, role, repositories, storage];
    const rows = await session.query<{ id: string; url: string }>(BEAT, row);
    const before = others;
    const same = (a: { id: string; url: string }, b: { id: string; url: string }) =>
      a.id === b.id && a.url === b.url;
    others = rows.map((row) => before.find((one) => same(one, row)) ?? memberOf(row));
    const left = before.filter((one) => !others.includes(one));
    if (left.length === 0 && others.length === before.length) return;
    for (const { leave } of left) leave.abort();
    tell();
    log.info({ servers: serving.length }, 'servers have come or gone');
  }

  function tell(): void {
    serving = [...others, ...(own ? [own] : [])].sort((a, b) => (a.id < b.id ? -1 : 1));
    for (const look of looks) look();
  }

  // Who else is there, before anything is asked of them.
  if (!isAlone) await beat();
  const beating = (async () => {
    if (isAlone) return;
    // The session says when the database is away. What was known last is good until then.
    for await (const _ of bus.wakes('servers', signal, BEAT_MS))
      await beat().catch((error) => log.debug({ err: error }, 'no heartbeat of the server'));
  })();

  async function leave(): Promise<void> {
    if (isAlone || signal.aborted) return;
    stopping.abort();
    await beating;
    own = undefined;
    tell();
    // Others take over at once, not after three seconds. While the database is away they find out by the silence.
    await session
      .query(LEAVE, [id])
      .catch((error) => log.debug({ err: error }, 'the server did not say that it leaves'));
  }

  return {
    id,
    get serving() {
      return serving;
    },
    async join(url) {
      own = memberOf({ id, url });
      tell();
      if (isAlone) return;
      await beat();
      await session.query(`select pg_notify('loam', 'servers')`, []);
    },
    async changed(ms, signal) {
      const change = new AbortController();
      const look = () => change.abort();
      looks.add(look);
      const early = signal ? AbortSignal.any([change.signal, signal]) : change.signal;
      await delay(ms, undefined, { signal: early }).catch(() => {});
      looks.delete(look);
    },
    leave,
    [Symbol.asyncDispose]: leave,
  };
}

function memberOf({ id, url }: { id: string; url: string }): Member & { leave: AbortController } {
  const leave = new AbortController();
  return { id, url, gone: leave.signal, leave };
}

/** Adds this process to the table, without an address: it does not answer yet. */
async function register({ id, role, shared, pool }: Options): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('select pg_advisory_xact_lock($1)', [REGISTERING]);
    const { rows } = await client.query<Shared>(
      `select repositories, storage from servers
       where id <> $1 and heartbeat_at > clock_timestamp() - make_interval(secs => ${SILENCE_S})`,
      [id],
    );
    for (const other of rows) demandShared(shared, other);
    await client.query(
      `insert into servers (id, role, url, repositories, storage, heartbeat_at)
       values ($1, $2, null, $3, $4, clock_timestamp())
       on conflict (id) do update set role = excluded.role, url = null, storage = excluded.storage,
         repositories = excluded.repositories, heartbeat_at = excluded.heartbeat_at`,
      [id, role, shared.repositories, shared.storage],
    );
  });
}

function demandShared(own: Shared, other: Shared): void {
  if (own.storage !== other.storage)
    throw new ConfigError(
      'LOAM_STORAGE: another server on this database keeps artifacts elsewhere; give all servers the same storage',
    );
  if (own.repositories && other.repositories && own.repositories !== other.repositories)
    throw new ConfigError(
      'LOAM_REPOSITORIES_DIR: another server on this database has its repositories in another folder; ' +
        'give all servers the same folder, on a volume that they share',
    );
}

/** Removes what processes left that will not come back. There are as many as data folders, so all in one go. */
export async function removeGoneServers({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(`delete from servers where heartbeat_at < now() - interval '7 days'`);
  return false;
}
