/**
 * One database connection that stays open for the life of the server. It holds the lock on the data folder, which the
 * database releases when this process ends, and it receives NOTIFY.
 *
 * After a lost connection, the session reconnects and takes the lock again. That is safe, because another server needs the
 * lock to work in the folder. If another server holds the lock by then, the folder is lost and this server must stop. If an
 * earlier session of this server still holds the lock, because the database has not noticed its end, it is terminated.
 */
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { dataFolderLock } from '../../base/advisory-locks.ts';
import { Backoff, sleep } from '../../base/backoff.ts';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import type { DatabaseTarget } from './embedded.ts';

const CHANNEL = 'loam';
/** Longer than `client_connection_check_interval`, after which the database ends the session of a killed server. */
const LOCK_TIMEOUT_MS = 3_000;
const CONNECT_MS = 5_000;
/** Pings detect connections that were lost silently (a cut network, a stopped machine). */
const PING_EVERY_MS = 15_000;
const QUERY_TIMEOUT_MS = 10_000;
/**
 * With these keepalives the database detects a machine that was switched off, and releases the lock, within half a minute.
 * Commits need not be durable: the writes of this connection are heartbeats, which are repeated a second later.
 */
const SETTINGS = `
  select set_config('application_name', $1, false), set_config('synchronous_commit', 'off', false),
    set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false)`;
const RECONNECT_PAUSES = { firstMs: 50, longestMs: 1_000 };

export type Session = {
  /** Runs a statement that must not wait for the pool. @throws Error while the connection is lost */
  query<Row extends pg.QueryResultRow>(text: string, values: unknown[]): Promise<Row[]>;
  /**
   * Runs `work` while this session holds an advisory lock, so that one server at a time does it.
   * @param work its signal aborts when this session is lost, because then another server can take the lock
   * @returns null if another server holds the lock, and if this session was lost meanwhile
   * @throws Error while the connection is lost
   */
  runAlone<T>(lock: number | bigint, work: (lost: AbortSignal) => Promise<T>): Promise<T | null>;
  close(): Promise<void>;
};

type Options = {
  target: DatabaseTarget;
  /** Id of the server, stored in its data folder. */
  id: string;
  dataDir: string;
  log: Logger;
  /** Called with the text of a notification, and with null if notifications may have been missed. */
  notify(text: string | null): void;
  /** Called if another server has taken the folder while the connection was lost. */
  onFolderLost(error: Error): void;
};

/** @throws ConfigError if another server holds the data folder */
export async function openSession(options: Options): Promise<Session> {
  const { target, id, dataDir, log, notify, onFolderLost } = options;
  const lock = dataFolderLock(id);
  /** Distinguishes sessions of this process from those of other processes, including another process on the same folder. */
  const name = `loam ${randomUUID()}`;
  const stopping = new AbortController();
  let client = await connect();
  let reconnecting = Promise.resolve();
  const pinging = setInterval(() => ping(client), PING_EVERY_MS).unref();

  async function connect(): Promise<pg.Client> {
    const opened = new pg.Client({
      ...target,
      connectionTimeoutMillis: CONNECT_MS,
      query_timeout: QUERY_TIMEOUT_MS,
      // Several callers send statements at the same time, and each waits for its own result.
      pipeline: true,
    });
    // Registered before `connect`: an `error` event without a listener would end the process. `end` follows each error.
    opened.on('error', (error) => log.warn({ err: error }, 'the database session was lost'));
    try {
      await opened.connect();
      await opened.query(SETTINGS, [name]);
      await takeLock(opened, { lock, name, dataDir });
      opened.on('notification', ({ payload }) => notify(payload ?? null));
      await opened.query(`listen ${CHANNEL}`);
    } catch (error) {
      await opened.end().catch(() => {});
      throw error;
    }
    opened.once('end', () => {
      if (!stopping.signal.aborted) reconnecting = reconnect();
    });
    return opened;
  }

  async function reconnect(): Promise<void> {
    const backoff = new Backoff(RECONNECT_PAUSES);
    for (let isFirst = true; !stopping.signal.aborted; isFirst = false) {
      try {
        client = await connect();
        log.warn('the database session was restored');
        notify(null);
        return;
      } catch (error) {
        if (error instanceof FolderTakenError) return onFolderLost(error);
        if (isFirst) log.error({ err: error }, 'the database is unavailable');
        await backoff.pause(stopping.signal);
      }
    }
  }

  return {
    async query(text, values) {
      const { rows } = await client.query(text, values);
      return rows;
    },
    async runAlone(lock, work) {
      const session = client;
      const { rows } = await session.query('select pg_try_advisory_lock($1) as taken', [lock]);
      if (!rows[0].taken) return null;
      const lost = new AbortController();
      const onEnd = () => lost.abort();
      session.once('end', onEnd);
      try {
        return await work(lost.signal);
      } catch (error) {
        if (lost.signal.aborted) return null;
        throw error;
      } finally {
        session.removeListener('end', onEnd);
        // A lost connection releases the lock, too.
        await session.query('select pg_advisory_unlock($1)', [lock]).catch(() => {});
      }
    },
    async close() {
      stopping.abort();
      clearInterval(pinging);
      await reconnecting;
      await client.end().catch(() => {});
    },
  };
}

/** Closes the connection if the database does not answer. The event `end` follows. */
function ping(client: pg.Client): void {
  client.query('select 1').catch(() => client.end().catch(() => {}));
}

class FolderTakenError extends ConfigError {}

const TERMINATE_EARLIER_SESSIONS = `
  select pg_terminate_backend(l.pid) from pg_locks l join pg_stat_activity a using (pid)
  where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_database where datname = current_database())
    and (l.classid::bigint << 32 | l.objid::bigint) = $1
    and a.application_name = $2 and l.pid <> pg_backend_pid()`;

async function takeLock(
  client: pg.Client,
  { lock, name, dataDir }: { lock: bigint; name: string; dataDir: string },
): Promise<void> {
  const deadline = Date.now() + LOCK_TIMEOUT_MS;
  for (;;) {
    const { rows } = await client.query('select pg_try_advisory_lock($1) as taken', [lock]);
    if (rows[0].taken) return;
    await client.query(TERMINATE_EARLIER_SESSIONS, [lock, name]);
    if (Date.now() > deadline)
      throw new FolderTakenError(
        `LOAM_DATA_DIR: another Loam server is using ${dataDir}; stop that server, or set another folder`,
      );
    await sleep(100);
  }
}
