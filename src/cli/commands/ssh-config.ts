/** `loam ssh-config` */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { note, print } from '../terminal.ts';
import { jobOf } from './job-name.ts';

const FIND_SSH = graphql(`
  query FindSsh($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { name namespace sshUrl }
  }
`);

const EXPLANATION = `
With the block in ~/.ssh/config, its name is enough for ssh, scp, sftp, rsync and editors. SSH needs a key of yours, which
"loam ssh-keys add" adds. The link opens the job in VS Code with the extension Remote - SSH.

Examples:
  loam ssh-config train >> ~/.ssh/config
  loam ssh-config train --write && ssh loam-ada-train`;

/** The working directory of jobs. */
const FOLDER = '/work';

export function addSshConfigCommand(program: Program): void {
  program
    .command('ssh-config')
    .description('Print how ssh and VS Code reach a running job')
    .argument('<job>', 'name or namespace/name')
    .option('--write', 'add it to ~/.ssh/config')
    .addHelpText('after', EXPLANATION)
    .action(async (name, { write }) => {
      const connection = await connectHere(program.opts());
      const { namespace, name: jobName } = jobOf(connection, name);
      const { job } = await connection.client.transport.graphql(FIND_SSH, {
        namespace,
        name: jobName,
      });
      if (!job) throw new LoamError('not_found', `Job ${namespace}/${jobName} not found`);
      if (job.sshUrl === null) throw new Error('This server has no SSH (LOAM_SSH_PORT).');
      const host = `loam-${job.namespace}-${job.name}`;
      const block = renderBlock(host, job.sshUrl, `${job.namespace}/${job.name}`);
      if (write) await addBlock(host, block);
      else print(block);
      note(`VS Code: vscode://vscode-remote/ssh-remote+${host}${FOLDER}`);
    });
}

/** @throws LoamError for values that the configuration of ssh cannot have */
function renderBlock(host: string, sshUrl: string, user: string): string {
  const { hostname, port } = new URL(sshUrl);
  const address = hostname.replace(/^\[(.*)\]$/, '$1');
  if (!/^[\w:][\w.:-]*$/.test(address) || !/^[\w./-]+$/.test(`${host}${user}`))
    throw new LoamError('bad_answer', `The server sent an address that is not one: ${sshUrl}`);
  return [`Host ${host}`, `  HostName ${address}`, `  Port ${port || 22}`, `  User ${user}`].join(
    '\n',
  );
}

async function addBlock(host: string, block: string): Promise<void> {
  const folder = join(homedir(), '.ssh');
  const path = join(folder, 'config');
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const before = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (`${before}\n`.includes(`${block}\n`)) return note(`${path} has ${host} already`);
  if (before?.split('\n').some((line) => line.trim() === `Host ${host}`))
    throw new Error(`${path} has another block for ${host}. Remove it first.`);
  const gap = before === null || before === '' ? '' : before.endsWith('\n') ? '\n' : '\n\n';
  await writeFile(path, `${gap}${block}\n`, { flag: 'a', mode: 0o600 });
  note(`Added ${host} to ${path}`);
}
