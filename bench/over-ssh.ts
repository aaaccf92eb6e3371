/** Stock git over SSH against the server of a benchmark, which listens on `port`. */
import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Bench } from './repository.ts';

export type OverSsh = {
  /** The settings for `git -c`. */
  config: string;
  /** The private key. */
  key: string;
  /** Options of `ssh` and `scp`, without the port. */
  options: string[];
  remote(name: string): string;
};

/** Creates a key and registers it for the operator. */
export async function openSsh({ folder, graphql }: Bench, port: number): Promise<OverSsh> {
  const key = join(folder, 'key');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', key]);
  const publicKey = (await readFile(`${key}.pub`, 'utf8')).trim();
  await graphql(
    `mutation { addSshKey(input: {title: "bench", key: "${publicKey}"}) { sshKey { id } } }`,
  );
  const options = ['-F', '/dev/null', '-i', key].concat(
    ...[
      'IdentitiesOnly=yes',
      'StrictHostKeyChecking=no',
      'UserKnownHostsFile=/dev/null',
      'LogLevel=ERROR',
    ].map((option) => ['-o', option]),
  );
  return {
    key,
    options,
    config: `core.sshCommand=ssh ${options.join(' ')}`,
    remote: (name) => `ssh://git@127.0.0.1:${port}/admin/${name}.git`,
  };
}
