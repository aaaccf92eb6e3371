/** Shells in a job whose server is killed: they end, and the job goes on. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { startServer } from '../../support/process.ts';
import { sshUser } from '../../support/ssh-client.ts';
import { job, submit, until } from '../../support/submit.ts';

const TOKEN = 'a-token-for-shells';
const COUNT = `for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$each; echo; done 2>/dev/null | grep -c '^sleep 432'`;

test('shells end with a killed server, and the next one opens new ones', async (ctx) => {
  needs(ctx, 'ssh', 'script');
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-shells-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  cleanup.defer(async () => {
    await using runner = await openProcessRunner({ dir: join(dataDir, 'attempts'), graceMs: 100 });
    await runner.sweep(new Set());
  });
  const port = await freePort();
  const start = () =>
    startServer({
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: dataDir,
      LOAM_ADMIN_TOKEN: TOKEN,
      LOAM_RUNNER: 'process',
      LOAM_SSH_PORT: `${port}`,
    });
  const server = await start();
  cleanup.defer(async () => void (await server.stop('SIGKILL')));
  const client = new Client(server.base, `Bearer ${TOKEN}`);
  await client.repository('admin/code');
  const command = 'echo begun; sleep 600 & wait';
  await submit(client, { namespace: 'admin', name: 'held', repo: 'admin/code', command });
  await until(client, 'admin', 'held', 'RUNNING');
  const workspace = cleanup.use(await Workspace.open());
  const user = await sshUser(client, workspace, port);
  const run = (line: string) => user.ssh([line], '', { user: 'admin/held' });
  await eventually(async () => expect((await run('echo here')).stdout).toBe('here\n'));
  const sessions = [
    ['sleep 4321'],
    ['-tt', 'sleep 4322'],
    // Nothing reads its input.
    ['sleep 4323; true'],
  ].map((words) => {
    const options = words[0] === '-tt' ? ['-tt'] : [];
    const line = words.at(-1) as string;
    const args = [...options, ...user.options, 'admin/held@127.0.0.1', line];
    return spawn('ssh', args, { stdio: ['pipe', 'ignore', 'ignore'] });
  });
  cleanup.defer(() => sessions.forEach((session) => void session.kill('SIGKILL')));
  await eventually(async () => expect((await run(COUNT)).stdout).toBe('3\n'));
  const commands = async (one: Client) => {
    const { job: found } = await one.gql(
      '{ job(namespace: "admin", name: "held") { shells { command } } }',
    );
    return found.shells.map(({ command }: { command: string }) => command).sort();
  };
  await eventually(async () =>
    expect(await commands(client)).toEqual(['sleep 4321', 'sleep 4322', 'sleep 4323; true']),
  );
  const ended = sessions.map((session) => once(session, 'exit'));
  await server.stop('SIGKILL');
  for (const end of ended) expect((await end)[0]).toBe(255);

  await using again = await start();
  const next = new Client(again.base, `Bearer ${TOKEN}`);
  expect(await commands(next)).toEqual([]);
  await eventually(async () => expect((await run(COUNT)).stdout).toBe('0\n'));
  expect((await job(next, 'admin', 'held')).status).toBe('RUNNING');
});
