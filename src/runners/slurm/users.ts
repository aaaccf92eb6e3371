/** The file that maps namespaces to accounts of the cluster (`LOAM_SLURM_USERS`). */
import { readFile } from 'node:fs/promises';
import { ConfigError } from '../../base/config/config.ts';
import { run } from '../../platform/processes/starter.ts';

/** `group`: id of its primary group. */
export type Account = { name: string; group: string };

/** Namespace → account. `*` is the account of all other namespaces. */
export type Users = ReadonlyMap<string, Account>;

const LINE = /^(\S+)\s+([a-z_][\w.-]{0,31})$/i;

/** @throws ConfigError also when an account does not exist on this machine */
export async function readUsers(file: string): Promise<Users> {
  const text = await readFile(file, 'utf8').catch((error: Error) => {
    throw new ConfigError(`LOAM_SLURM_USERS: ${error.message}`);
  });
  const names = parseUsers(text);
  const accounts = new Map<string, Account>();
  for (const name of new Set(names.values())) {
    const { stdout } = await run('id', ['-g', name]).catch((error: Error) => {
      throw new ConfigError(`LOAM_SLURM_USERS: ${error.message}`);
    });
    accounts.set(name, { name, group: Buffer.from(stdout).toString().trim() });
  }
  return new Map(
    [...names].flatMap(([namespace, name]) => {
      const account = accounts.get(name);
      return account ? [[namespace, account]] : [];
    }),
  );
}

/**
 * Namespace → name of the account, from one pair per line, such as `ada a.lovelace`; `#` begins a comment.
 * @throws ConfigError
 */
export function parseUsers(text: string): Map<string, string> {
  const users = new Map<string, string>();
  for (const [index, line] of text.split('\n').entries()) {
    const content = line.replace(/#.*/, '').trim();
    if (!content) continue;
    const [, namespace = '', account = ''] = LINE.exec(content) ?? [];
    const wrong = (why: string) => new ConfigError(`LOAM_SLURM_USERS: line ${index + 1} ${why}`);
    if (!namespace) throw wrong('must be a namespace and an account, such as: ada a.lovelace');
    if (users.has(namespace)) throw wrong(`names ${namespace} a second time`);
    if (account === 'root') throw wrong('must not map to root');
    users.set(namespace, account);
  }
  if (users.size === 0) throw new ConfigError('LOAM_SLURM_USERS: the file names no account');
  return users;
}

export function accountOf(users: Users, namespace: string): Account | undefined {
  return users.get(namespace) ?? users.get('*');
}
