/**
 * One database connection kept open for as long as the server lives. It holds the lock on the data folder,
 * which the database releases when this process ends, and it receives NOTIFY.
 *
 * When the connection is lost (the database was stopped, the network cut) it is made again, and the lock taken
 * again: nobody else can have begun anything in the folder without the lock. Only when another server holds it
 * by then is the folder lost, and this server must end. A lock that is held by a former session of our own,
 * whose end the database has not noticed yet, is taken from that session.
 */
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import type { DatabaseTarget } from './embedded.ts';

const CHANNEL = 'loam';
/** A killed server's session is gone within `client_connection_check_interval`; a stranger's stays. */
const LOCK_PATIENCE_MS = 3_000;
const CONNECT_MS = 5_000;
/** A connection that was lost silently (a cut network, a stopped machine) is noticed by asking. */
const PING_EVERY_MS = 15_000;
const ANSWER_MS = 10_000;
/**
 * A machine that was switched off says nothing: the database finds out within half a minute, and lets go of the lock.
 * What is written here may be lost with the database, and is written again a second later.
 */
const SETTINGS = `
  select set_config('application_name', $1, false), set_config('synchronous_commit', 'off', false),
    set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false)`;
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 1_000;

export type Session = {
  /** On this connection, for what must not wait for one of the pool's. @throws Error while there is none */
  query<Row extends pg.QueryResultRow>(text: string, values: unknown[]): Promise<Row[]>;
  /**
   * Runs `work` while the server of that id surely does not run, nor can be started: its lock is held here.
   * @returns null, without having run it, when the server runs
   */
  insteadOf<T>(serverId: string, work: () => Promise<T>): Promise<T | null>;
  close(): Promise<void>;
};

type Options = {
  target: DatabaseTarget;
  /** Of the server: that of its data folder. */
  id: string;
  dataDir: string;
  log: Logger;
  /** Called with a notification's text, and with null when some may have been missed. */
  notify(text: string | null): void;
  /** Called when the folder was lost to another server while our connection was down. */
  onLost(error: Error): void;
};

/** @throws ConfigError when another server holds the data folder. */
export async function openSession(options: Options): Promise<Session> {
  const { target, id, dataDir, log, notify, onLost } = options;
  const lock = lockOf(id);
  /** Tells our sessions from those of every other server, also of one on the same folder. */
  const name = `loam ${randomUUID()}`;
  const stopping = new AbortController();
  let client = await connect();
  let reconnecting = Promise.resolve();
  const pinging = setInterval(() => ping(client), PING_EVERY_MS).unref();

  async function connect(): Promise<pg.Client> {
    const fresh = new pg.Client({
      ...target,
      connectionTimeoutMillis: CONNECT_MS,
      query_timeout: ANSWER_MS,
      // Several ask at once, each for its own answer.
      pipeline: true,
    });
    // From the beginning: an `error` without a listener would end the process. `end` follows every one.
    fresh.on('error', (error) => log.warn({ err: error }, 'the database session was lost'));
    try {
      await fresh.connect();
      await fresh.query(SETTINGS, [name]);
      await takeLock(fresh, { lock, name, dataDir });
      fresh.on('notification', ({ payload }) => notify(payload ?? null));
      await fresh.query(`listen ${CHANNEL}`);
    } catch (error) {
      await fresh.end().catch(() => {});
      throw error;
    }
    fresh.once('end', () => {
      if (!stopping.signal.aborted) reconnecting = reconnect();
    });
    return fresh;
  }

  async function reconnect(): Promise<void> {
    for (
      let pause = FIRST_PAUSE_MS;
      !stopping.signal.aborted;
      pause = Math.min(pause * 2, MAX_PAUSE_MS)
    ) {
      try {
        client = await connect();
        log.warn('the database session was made again');
        notify(null);
        return;
      } catch (error) {
        if (error instanceof FolderTaken) return onLost(error);
        if (pause === FIRST_PAUSE_MS) log.error({ err: error }, 'the database is out of reach');
        await delay(pause, undefined, { signal: stopping.signal }).catch(() => {});
      }
    }
  }

  return {
    async query(text, values) {
      const { rows } = await client.query(text, values);
      return rows;
    },
    async insteadOf(serverId, work) {
      const held = client;
      const other = [lockOf(serverId)];
      const { rows } = await held.query('select pg_try_advisory_lock($1) as taken', other);
      if (!rows[0].taken) return null;
      try {
        return await work();
      } finally {
        // A connection that is lost lets go of the lock too.
        await held.query('select pg_advisory_unlock($1)', other).catch(() => {});
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

/** Closes the connection when nothing answers on it; `end` follows. */
function ping(client: pg.Client): void {
  client.query('select 1').catch(() => client.end().catch(() => {}));
}

class FolderTaken extends ConfigError {}

const END_FORMER = `
  select pg_terminate_backend(l.pid) from pg_locks l join pg_stat_activity a using (pid)
  where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_database where datname = current_database())
    and (l.classid::bigint << 32 | l.objid::bigint) = $1
    and a.application_name = $2 and l.pid <> pg_backend_pid()`;

async function takeLock(
  client: pg.Client,
  { lock, name, dataDir }: { lock: bigint; name: string; dataDir: string },
): Promise<void> {
  const deadline = Date.now() + LOCK_PATIENCE_MS;
  for (;;) {
    const { rows } = await client.query('select pg_try_advisory_lock($1) as taken', [lock]);
    if (rows[0].taken) return;
    await client.query(END_FORMER, [lock, name]);
    if (Date.now() > deadline)
      throw new FolderTaken(
        `LOAM_DATA_DIR: another Loam server is using ${dataDir}; stop it, or set another folder`,
      );
    await delay(100);
  }
}

/** A number that stands for the server's data folder wherever it is mounted. */
function lockOf(id: string): bigint {
  return createHash('sha256').update(`${id}\n`).digest().readBigInt64BE();
}
