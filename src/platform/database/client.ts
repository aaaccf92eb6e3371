/** Opens the database: migrations, and one connection pool that Prisma and hand-written SQL share. */
import { PrismaPg } from '@prisma/adapter-pg';
import pg from 'pg';
import { Prisma, PrismaClient } from '../../../prisma/generated/client.ts';
import { ConfigError, type DatabaseConfig } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { type DatabaseTarget, startPostgres } from './embedded.ts';
import { migrate } from './migrate.ts';
import { isRolledBackByConflict, sqlStateOf } from './outage.ts';
import { createStatementNamer } from './statement.ts';

/**
 * Prisma's client, or a transaction of it, in which case it is called `tx`. Code that also runs in a transaction of `pg` takes a
 * `Transaction` (`statement.ts`).
 */
export type Db = PrismaClient | Prisma.TransactionClient;

type Database = {
  target: DatabaseTarget;
  client: PrismaClient;
  pool: pg.Pool;
  /** See `EmbeddedPostgres`; does nothing for other databases. */
  takeOwnership(log: Logger): void;
  releaseOwnership(): void;
  close(): Promise<void>;
};

/**
 * Settings of each connection. A frozen server or a machine that was switched off must not hold locks: the database ends a
 * transaction that is idle for 30 s, and detects a dead client as quickly. The isolation level is set because the triggers
 * that maintain counts (`list-counts.ts`) require read committed, and the database may have another default.
 */
const SETTINGS = `
  set idle_in_transaction_session_timeout = '30s'; set default_transaction_isolation = 'read committed';
  set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3;
  set tcp_user_timeout = '30s'`;
const POOL_SIZE = 20;
const TRANSACTION_TIMEOUT_MS = 15_000;
/** Timeout for a new or a free connection: a suspended database accepts connections and never answers. */
const CONNECT_MS = 10_000;
/** Far longer than any statement takes. */
const QUERY_MS = 120_000;
/** Tries of a transaction that conflicts with other transactions. PostgreSQL needs 1 s to detect a deadlock. */
const MAX_TRIES = 4;
/** Prepared statements are kept as long as their connection, so statements beyond this number are not named. */
const MAX_STATEMENTS = 500;

/**
 * Connects to the database and applies migrations. Starts the embedded PostgreSQL in `dir` if it is not running. `dir` is
 * not used if `config` has a URL.
 * @throws ConfigError if `DATABASE_URL` is unusable, or another version of Loam has migrated the database
 */
export async function openDatabase(config: DatabaseConfig, dir: string): Promise<Database> {
  return connectDatabase(config, dir, migrate);
}

/** Like `openDatabase`, but leaves the schema as it is, because a server may be using it. */
export async function attachDatabase(config: DatabaseConfig, dir: string): Promise<Database> {
  return connectDatabase(config, dir, async () => {});
}

async function connectDatabase(
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
    // For callers that send several statements before they wait (`pipeline` in `statement.ts`); others are not affected.
    pipeline: true,
    onConnect: (client) => client.query(SETTINGS) as never,
  });
  // The pool replaces an idle connection that breaks; an `error` event without a listener would end the process.
  pool.on('error', () => {});
  const client = new PrismaClient({
    adapter: new PrismaPg(pool, { statementNameGenerator: prismaStatementNames() }),
    transactionOptions: { maxWait: CONNECT_MS, timeout: TRANSACTION_TIMEOUT_MS },
  });
  return {
    target,
    client,
    pool,
    takeOwnership: (log) => embedded?.takeOwnership(log),
    releaseOwnership: () => embedded?.releaseOwnership(),
    async close() {
      await client.$disconnect();
      await pool.end();
      await embedded?.stop();
    },
  };
}

/**
 * Runs `work` in a transaction, or in the transaction that `db` already is. A transaction that PostgreSQL rolls back because
 * of another one, for instance in a deadlock, is run again, so `work` must have no effects outside the database.
 * @param timeoutMs for a transaction that may take longer than 15 seconds on a busy machine
 */
export async function inTransaction<T>(
  db: Db,
  work: (tx: Prisma.TransactionClient) => Promise<T>,
  timeoutMs = TRANSACTION_TIMEOUT_MS,
): Promise<T> {
  return '$transaction' in db
    ? retryConflicts(() => db.$transaction(work, { timeout: timeoutMs }))
    : work(db);
}

/** Runs a transaction again when PostgreSQL has rolled it back because of another one. */
export async function retryConflicts<T>(transaction: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await transaction();
    } catch (error) {
      if (tries === MAX_TRIES || !isRolledBackByConflict(error)) throw error;
    }
  }
}

/** Runs `work` on one connection. If `work` fails, the connection is closed, because a transaction may be open. */
export async function withConnection<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  const client = await pool.connect();
  // If the connection breaks, its running query fails; an `error` event without a listener would end the process.
  const ignoreError = () => {};
  client.on('error', ignoreError);
  let failed = true;
  try {
    const result = await work(client);
    failed = false;
    return result;
  } finally {
    client.off('error', ignoreError);
    client.release(failed);
  }
}

/** Like `inTransaction`, with `pg` instead of Prisma: `work` may run again. */
export function inPoolTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  return retryConflicts(() =>
    withConnection(pool, async (client) => {
      await client.query('begin');
      const result = await work(client);
      await client.query('commit');
      return result;
    }),
  );
}

/** Whether a write violated a unique constraint; with `column`, a constraint of that column. */
export function violatesUnique(error: unknown, column?: string): boolean {
  const constraint = violatedConstraint(error, { code: 'P2002', state: '23505' });
  if (constraint === null) return false;
  // Prisma names the columns, PostgreSQL the constraint, `table_column_key`.
  return !column || new RegExp(`\\b${column}\\b|_${column}_`).test(constraint);
}

/** Whether a write failed because the row that `column` refers to does not exist. */
export function violatesReference(error: unknown, column: string): boolean {
  return violatedConstraint(error, { code: 'P2003', state: '23503' })?.includes(column) ?? false;
}

/** Whether a write failed because of the check with this name. */
export function violatesCheck(error: unknown, check: string): boolean {
  return violatedConstraint(error, { code: 'P2004', state: '23514' })?.includes(check) ?? false;
}

/** @returns null for other errors. The error may be from Prisma, from raw SQL in Prisma, or from `pg` */
function violatedConstraint(
  error: unknown,
  { code, state }: { code: string; state: string },
): string | null {
  if (error instanceof pg.DatabaseError)
    return error.code === state ? (error.constraint ?? '') : null;
  if (!(error instanceof Prisma.PrismaClientKnownRequestError)) return null;
  return error.code === code || sqlStateOf(error) === state ? JSON.stringify(error.meta) : null;
}

/**
 * Whether PostgreSQL refused a text that it cannot store: a text with NUL, or JSON with half of a surrogate pair. Any input
 * string may contain these, so the error is classified here instead of validating every input.
 */
export function isUnstorableText(error: unknown): boolean {
  const [NUL_IN_TEXT, NUL_IN_JSON, BAD_JSON] = ['22021', '22P05', '22P02'];
  return [NUL_IN_TEXT, NUL_IN_JSON, BAD_JSON].includes(sqlStateOf(error));
}

/**
 * Whether a row that a request had found was deleted while the request ran. Then an update does not
 * find the row (P2025), or the database refuses a new row that refers to it (23503). Checking for these errors is simpler than
 * locking every row that a request reads.
 */
export function isRowDeleted(error: unknown): boolean {
  return ['P2025', '23503'].includes(sqlStateOf(error));
}

function prismaStatementNames() {
  const nameOf = createStatementNamer('loam', MAX_STATEMENTS);
  return ({ sql }: { sql: string }): string => nameOf(sql) ?? '';
}

/* Checks `DATABASE_URL`, and describes problems in one line that never contains the password. */

/** The oldest version with the SQL features that Loam uses (`DATABASE_URL` in docs/configuration.md). */
const MIN_VERSION = 150_000;

/**
 * Connects once, so that a wrong URL stops startup with a helpful message.
 * @throws ConfigError
 */
async function checkDatabaseUrl(connectionString: string): Promise<void> {
  let client: pg.Client | undefined;
  try {
    client = new pg.Client({ connectionString, connectionTimeoutMillis: 10_000 });
    // If the connection breaks, its running query fails; an `error` event without a listener would end the process.
    client.on('error', () => {});
    await client.connect();
    const { rows } = await client.query('show server_version_num');
    const version = Number(rows[0].server_version_num);
    if (version < MIN_VERSION)
      throw new ConfigError(
        `DATABASE_URL: PostgreSQL 15 or newer is required, but ${addressOf(client)} runs version ${Math.floor(version / 10_000)}`,
      );
  } catch (error) {
    throw error instanceof ConfigError ? error : toConfigError(error, client);
  } finally {
    await client?.end().catch(() => {});
  }
}

function toConfigError(error: unknown, client: pg.Client | undefined): ConfigError {
  const { code = '', message } = error as Error & { code?: string };
  // The parser's own message may quote the URL and its password.
  if (!client)
    return new ConfigError(
      'DATABASE_URL: is not a valid database URL, such as postgres://user:password@host:5432/loam',
    );
  const reasons: Record<string, string> = {
    ECONNREFUSED: `nothing listens at ${addressOf(client)}`,
    ENOENT: `nothing listens at ${addressOf(client)}`,
    EACCES: `no permission to use the socket at ${addressOf(client)}`,
    ENOTFOUND: `the host name ${client.host} cannot be resolved`,
    EAI_AGAIN: `the host name ${client.host} cannot be resolved`,
    '28P01': `${addressOf(client)} refused the password of ${client.user}`,
    '28000': `${addressOf(client)} refused the user ${client.user}`,
    '3D000': `there is no database ${client.database} at ${addressOf(client)}`,
    '42501': `${client.user} may not use the database ${client.database} at ${addressOf(client)}`,
  };
  const password = String(client.password ?? '');
  const firstLine = message.split('\n')[0]?.trim() || code;
  const redacted = password ? firstLine.replaceAll(password, '***') : firstLine;
  // `retryStartup` retries errors by their cause. A host name that does not exist is an error of the configuration.
  const cause = code === 'ENOTFOUND' ? undefined : error;
  return new ConfigError(`DATABASE_URL: ${reasons[code] ?? `${addressOf(client)}: ${redacted}`}`, {
    cause,
  });
}

function addressOf({ host, port }: pg.Client): string {
  return host.startsWith('/') ? `${host}, port ${port}` : `${host}:${port}`;
}
