/**
 * The database: one connection pool that Prisma and hand-written SQL share, migrated before use, and the
 * lock that makes a data folder belong to one running server.
 */
import { PrismaPg } from '@prisma/adapter-pg';
import pg from 'pg';
import { Prisma, PrismaClient } from '../../../prisma/generated/client.ts';
import { ConfigError, type DatabaseConfig } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { type DatabaseTarget, startPostgres } from './embedded.ts';
import { migrate } from './migrate.ts';
import { sqlState } from './outage.ts';

/** What domain functions take: the client, or the transaction they are to be part of. */
export type Db = PrismaClient | Prisma.TransactionClient;

export type Database = {
  target: DatabaseTarget;
  client: PrismaClient;
  pool: pg.Pool;
  /** As those of the embedded PostgreSQL (`embedded.ts`); nothing for any other. */
  own(log: Logger): void;
  disown(): void;
  close(): Promise<void>;
};

/**
 * Of each connection. A server that is frozen, or a machine that was switched off, must not hold what others wait for: the
 * database ends a transaction in which nothing is asked for half a minute, and finds out as soon that nobody is there. Counts
 * that triggers keep (`list-counts.ts`) are of what each statement sees, whatever the database's own default is.
 */
const SETTINGS = `
  set idle_in_transaction_session_timeout = '30s'; set default_transaction_isolation = 'read committed';
  set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3;
  set tcp_user_timeout = '30s'`;
const POOL_SIZE = 20;
/** For a connection, a new one or a free one: a database that is suspended accepts and never answers. */
const CONNECT_MS = 10_000;
/** Far longer than any of our statements takes: what is not answered by then never will be. */
const QUERY_MS = 120_000;
/** Prepared statements are kept for the life of a connection; beyond this many texts they are not named. */
const MAX_STATEMENTS = 500;

/**
 * Reaches the database, starting the embedded one when it does not run, and brings it to this version's schema.
 * `dir` is where the embedded PostgreSQL lives; it is not touched when `config` names another.
 * @throws ConfigError for a `DATABASE_URL` that cannot be used, and a database that another version migrated.
 */
export async function openDatabase(config: DatabaseConfig, dir: string): Promise<Database> {
  return reachDatabase(config, dir, migrate);
}

/** As `openDatabase`, with the schema left as it is, because a server may be using it. */
export async function attachDatabase(config: DatabaseConfig, dir: string): Promise<Database> {
  return reachDatabase(config, dir, async () => {});
}

async function reachDatabase(
  config: DatabaseConfig,
  dir: string,
  prepare: (target: DatabaseTarget) => Promise<unknown>,
): Promise<Database> {
  if (config.kind === 'url') await checkDatabaseUrl(config.url);
  const embedded = config.kind === 'embedded' ? await startPostgres(dir) : undefined;
  const target = embedded?.target ?? { connectionString: (config as { url: string }).url };
  try {
    await prepare(target);
  } catch (error) {
    await embedded?.stop();
    throw error;
  }
  const pool = new pg.Pool({
    ...target,
    max: POOL_SIZE,
    keepAlive: true,
    connectionTimeoutMillis: CONNECT_MS,
    query_timeout: QUERY_MS,
    // Of one connection alone (`statement.ts`): who waits for each answer sees no difference.
    pipeline: true,
    onConnect: (client) => client.query(SETTINGS) as never,
  });
  // An idle connection that breaks is replaced by the pool; without a listener it would end the process.
  pool.on('error', () => {});
  const client = new PrismaClient({
    adapter: new PrismaPg(pool, { statementNameGenerator: statementNames() }),
    transactionOptions: { maxWait: CONNECT_MS, timeout: 15_000 },
  });
  return {
    target,
    client,
    pool,
    own: (log) => embedded?.own(log),
    disown: () => embedded?.disown(),
    async close() {
      await client.$disconnect();
      await pool.end();
      await embedded?.stop();
    },
  };
}

/** Runs `work` in a transaction, or in the one that `db` already is. */
export function inTransaction<T>(
  db: Db,
  work: (tx: Prisma.TransactionClient) => Promise<T>,
): Promise<T> {
  return '$transaction' in db ? db.$transaction(work) : work(db);
}

/** Runs `work`, a transaction of hand-written statements. A connection on which it failed is not used again. */
export async function onConnection<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  const client = await pool.connect();
  // When the connection breaks, the query under way fails; an `error` without a listener would end the process.
  const unheard = () => {};
  client.on('error', unheard);
  let failed = true;
  try {
    const result = await work(client);
    failed = false;
    return result;
  } finally {
    client.off('error', unheard);
    client.release(failed);
  }
}

/** Runs `work` between `begin` and `commit`, as `onConnection` does. */
export function inPoolTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  return onConnection(pool, async (client) => {
    await client.query('begin');
    const result = await work(client);
    await client.query('commit');
    return result;
  });
}

/** Whether a write failed because a unique value is taken already; with `column`, because that one is. */
export function violatesUnique(error: unknown, column?: string): boolean {
  const constraint = violated(error, { code: 'P2002', state: '23505' });
  if (constraint === null) return false;
  // It is named by its columns or by its name, `table_column_key`.
  return !column || new RegExp(`\\b${column}\\b|_${column}_`).test(constraint);
}

/** Whether a write failed because the row that `column` refers to is gone. */
export function violatesReference(error: unknown, column: string): boolean {
  return violated(error, { code: 'P2003', state: '23503' })?.includes(column) ?? false;
}

/** The constraint, as far as it is named, if that is why: by Prisma, in a statement by hand, or on a connection of our own. */
function violated(error: unknown, { code, state }: { code: string; state: string }): string | null {
  if (error instanceof pg.DatabaseError)
    return error.code === state ? (error.constraint ?? '') : null;
  if (!(error instanceof Prisma.PrismaClientKnownRequestError)) return null;
  return error.code === code || sqlState(error) === state ? JSON.stringify(error.meta) : null;
}

/**
 * Whether a statement failed because PostgreSQL cannot store a text it was given: one with a NUL in it, or,
 * in JSON, half of a surrogate pair. Any string of any input may be such a one, so it is recognized here, once.
 */
export function isUnstorableText(error: unknown): boolean {
  const [NUL_IN_TEXT, NUL_IN_JSON, BAD_JSON] = ['22021', '22P05', '22P02'];
  return [NUL_IN_TEXT, NUL_IN_JSON, BAD_JSON].includes(sqlState(error));
}

function statementNames() {
  const names = new Map<string, string>();
  return ({ sql }: { sql: string }): string => {
    const known = names.get(sql);
    if (known) return known;
    if (names.size >= MAX_STATEMENTS) return '';
    const name = `loam${names.size}`;
    names.set(sql, name);
    return name;
  };
}

/* What is wrong with a `DATABASE_URL`, in one line that never holds its password. */

/** The oldest version whose SQL we use (`DATABASE_URL` in docs/configuration.md). */
const MIN_VERSION = 150_000;

/**
 * Connects once, so that a wrong address stops the start with a line that says what is wrong with it.
 * @throws ConfigError
 */
async function checkDatabaseUrl(connectionString: string): Promise<void> {
  let client: pg.Client | undefined;
  try {
    client = new pg.Client({ connectionString, connectionTimeoutMillis: 10_000 });
    // When it breaks later, the query under way fails; an `error` without a listener would end the process.
    client.on('error', () => {});
    await client.connect();
    const { rows } = await client.query('show server_version_num');
    const version = Number(rows[0].server_version_num);
    if (version < MIN_VERSION)
      throw new ConfigError(
        `DATABASE_URL: PostgreSQL 15 or newer is needed; ${place(client)} runs ${Math.floor(version / 10_000)}`,
      );
  } catch (error) {
    throw error instanceof ConfigError ? error : urlFault(error, client);
  } finally {
    await client?.end().catch(() => {});
  }
}

function urlFault(error: unknown, client: pg.Client | undefined): ConfigError {
  const { code = '', message } = error as Error & { code?: string };
  // The message would be that of the parser, which may quote the address.
  if (!client) return new ConfigError('DATABASE_URL: cannot be read as the address of a database');
  const why: Record<string, string> = {
    ECONNREFUSED: `nothing listens at ${place(client)}`,
    ENOENT: `nothing listens at ${place(client)}`,
    EACCES: `no right to use the socket at ${place(client)}`,
    ENOTFOUND: `there is no host ${client.host}`,
    EAI_AGAIN: `there is no host ${client.host}`,
    '28P01': `${place(client)} refused the password of ${client.user}`,
    '28000': `${place(client)} refused the user ${client.user}`,
    '3D000': `there is no database ${client.database} at ${place(client)}`,
    '42501': `${client.user} may not use the database ${client.database} at ${place(client)}`,
  };
  const password = String(client.password ?? '');
  const said = message.split('\n')[0]?.trim() || code;
  const shown = password ? said.replaceAll(password, '***') : said;
  // A name that does not exist is misspelt; whatever else is out of reach may come.
  const cause = code === 'ENOTFOUND' ? undefined : error;
  return new ConfigError(`DATABASE_URL: ${why[code] ?? `${place(client)}: ${shown}`}`, { cause });
}

function place({ host, port }: pg.Client): string {
  return host.startsWith('/') ? `${host}, port ${port}` : `${host}:${port}`;
}
