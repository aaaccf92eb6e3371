/**
 * `npm run token -- admin`: creates and prints an access token for a user who has lost theirs. It works while the server runs
 * and while it does not; then the embedded PostgreSQL is started for the duration of the command. Whoever can run this can
 * read the database anyway.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Config, ConfigError, readConfig } from '../base/config/config.ts';
import { AppError } from '../base/errors.ts';
import { issueToken } from '../identity/operator.ts';
import { issueSignInLink } from '../identity/sign-in/links.ts';
import { attachDatabase } from '../platform/database/client.ts';

const USAGE = `usage: npm run --silent token -- USERNAME [--name NAME] [--expires-in-days 1..365]
       npm run --silent token -- USERNAME --sign-in
  NAME is the name of the token in lists. Without --expires-in-days the token does not expire.
  --sign-in: prints a sign-in link for a browser instead of a token; it works once, within 24 hours.`;

type TokenRequest = { username: string; name: string; expiresInDays?: number; signIn?: boolean };

const request = readArguments();
if (!request) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  await main(request).catch((error) => {
    const expected = error instanceof ConfigError || error instanceof AppError;
    console.error(expected ? error.message : error);
    process.exitCode = 1;
  });
}

async function main({ signIn, ...token }: TokenRequest): Promise<void> {
  const config = readConfig();
  const dir = join(config.dataDir, 'postgres');
  requireDatabase(config, dir);
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
    throw (error as { code?: string }).code === 'P2021' ? missingDatabase(config) : error;
  } finally {
    await database.close();
  }
}

/** Checks that the database exists, so that a mistyped folder does not become a new data folder. */
function requireDatabase(config: Config, dir: string): void {
  if (config.database.kind === 'embedded' && !existsSync(join(dir, 'cluster')))
    throw missingDatabase(config);
}

function missingDatabase({ database, dataDir }: Config): ConfigError {
  const where = database.kind === 'url' ? 'DATABASE_URL: this' : `LOAM_DATA_DIR: ${dataDir}`;
  return new ConfigError(`${where} has no Loam database; start the server once to create it`);
}

function readArguments(): TokenRequest | undefined {
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
