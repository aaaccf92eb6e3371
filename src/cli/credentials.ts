/**
 * The file of credentials, `loam/credentials.json` in `$XDG_CONFIG_HOME` or `~/.config`, which only its user can read:
 *
 *   {"default": "https://loam.example", "servers": {"https://loam.example": {"username": "ada", "token": "…"}}}
 *
 * Servers are named by their origin. The Python library reads the file, too.
 */
import { randomBytes } from 'node:crypto';
import { chmodSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';

export type Credential = { username: string; token: string };
export type Credentials = {
  /** The server of commands that name none: the one with the latest login. */
  default: string | null;
  servers: Record<string, Credential>;
};

function credentialsPath(): string {
  return join(process.env.XDG_CONFIG_HOME || join(homedir(), '.config'), 'loam/credentials.json');
}

/** @throws Error when the file is damaged */
export function readCredentials(): Credentials {
  const path = credentialsPath();
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { default: null, servers: {} };
    throw error;
  }
  try {
    const { default: first, servers } = JSON.parse(text);
    const valid = Object.entries(servers as Record<string, Partial<Credential>>).filter(
      (entry): entry is [string, Credential] =>
        typeof entry[1]?.token === 'string' && typeof entry[1].username === 'string',
    );
    return {
      default: typeof first === 'string' ? first : null,
      servers: Object.fromEntries(valid),
    };
  } catch {
    throw new Error(`${path} is damaged. Delete it and run "loam login" again.`);
  }
}

/** Replaces the file in one step, so that a crash leaves the old or the new one. */
export function writeCredentials(credentials: Credentials): void {
  const path = credentialsPath();
  const folder = dirname(path);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  chmodSync(folder, 0o700);
  const temporary = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    // `wx` follows no link that somebody else has put there.
    writeFileSync(temporary, `${JSON.stringify(credentials, null, 2)}\n`, {
      mode: 0o600,
      flag: 'wx',
    });
    renameSync(temporary, path);
  } finally {
    rmSync(temporary, { force: true });
  }
}
