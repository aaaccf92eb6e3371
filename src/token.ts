/**
 * `npm run token -- admin`: makes and prints a new access token for a user who has lost the old one. It works
 * while the server runs, which notices nothing, and while it does not: the embedded PostgreSQL is then started
 * for as long as this takes. Whoever may run this may read the database anyway.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Config, ConfigError, readConfig } from './base/config/config.ts';
import { AppError } from './base/errors.ts';
import { issueToken } from './identity/operator.ts';
import { issueSignInLink } from './identity/sign-in/links.ts';
import { attachDatabase } from './platform/database/client.ts';

const USAGE = `usage: npm run --silent token -- USERNAME [--name NAME] [--expires-in-days 1..365]
       npm run --silent token -- USERNAME --sign-in
  NAME is what the token is called in lists; without a number of days it does not expire.
  --sign-in: in place of a token, an address that signs the user in with a browser, once and within 24 hours.`;

type Wanted = { username: string; name: string; expiresInDays?: number; signIn?: boolean };

const wanted = readArguments();
if (!wanted) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  await main(wanted).catch((error) => {
    const expected = error instanceof ConfigError || error instanceof AppError;
    console.error(expected ? error.message : error);
    process.exitCode = 1;
  });
}

async function main({ signIn, ...token }: Wanted): Promise<void> {
  const config = readConfig();
  const dir = join(config.dataDir, 'postgres');
  demandDatabase(config, dir);
  const database = await attachDatabase(config.database, dir);
  try {
    const db = { db: database.client };
    const address = config.baseUrl ?? `http://${config.host}:${config.port}`;
    console.log(
      signIn
        ? (await issueSignInLink(db, token.username, address)).url
        : await issueToken(db, token),
    );
  } catch (error) {
    // P2021: a table does not exist.
    throw (error as { code?: string }).code === 'P2021' ? neverStarted(config) : error;
  } finally {
    await database.close();
  }
}

/** A mistyped folder must not become a new one. */
function demandDatabase(config: Config, dir: string): void {
  if (config.database.kind === 'embedded' && !existsSync(join(dir, 'cluster')))
    throw neverStarted(config);
}

function neverStarted({ database, dataDir }: Config): ConfigError {
  const where = database.kind === 'url' ? 'DATABASE_URL: this' : `LOAM_DATA_DIR: ${dataDir}`;
  return new ConfigError(`${where} holds no database of Loam; the first start makes one`);
}

function readArguments(): Wanted | undefined {
  try {
    const { positionals, values } = parseArgs({
      allowPositionals: true,
      options: {
        name: { type: 'string' },
        'expires-in-days': { type: 'string' },
        'sign-in': { type: 'boolean' },
      },
    });
    const [username] = positionals;
    if (!username || positionals.length > 1) return undefined;
    const days = values['expires-in-days'];
    return {
      username,
      signIn: values['sign-in'],
      name: values.name ?? `console-${new Date().toISOString().replace(/\.\d+|[-:]/g, '')}`,
      ...(days !== undefined && { expiresInDays: Number(days) }),
    };
  } catch {
    return undefined;
  }
}
