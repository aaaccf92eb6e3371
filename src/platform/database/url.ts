/** What is wrong with a `DATABASE_URL`, in one line that never holds its password. */
import pg from 'pg';
import { ConfigError } from '../../base/config/config.ts';

/** The oldest version whose SQL we use (`DATABASE_URL` in docs/configuration.md). */
const MIN_VERSION = 150_000;

/**
 * Connects once, so that a wrong address stops the start with a line that says what is wrong with it.
 * @throws ConfigError
 */
export async function checkDatabaseUrl(connectionString: string): Promise<void> {
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
