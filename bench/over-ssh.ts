/** Stock git over SSH against the server of a benchmark, which listens on `port`. */
import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Bench } from './repository.ts';

export type OverSsh = {
  /** The settings for `git -c`. */
  config: string;
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
  const command = `ssh -F /dev/null -i ${key} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR`;
  return {
    config: `core.sshCommand=${command}`,
    remote: (name) => `ssh://git@127.0.0.1:${port}/admin/${name}.git`,
  };
}
