/** A git that goes on after its server was killed moves no ref that nobody hears of. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newId } from '../src/ids.ts';
import { recoverRepositories } from '../src/repos/recovery.ts';
import { remote, Workspace } from './git.ts';
import { type Client, eventually, startApp, type TestApp } from './harness.ts';

type Pushed = { push: { refs: { ref: string }[] } };

let app: TestApp;
let workspace: Workspace;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

test('a push is recorded whose git has not moved its ref yet when its server is found to be dead', async () => {
  const { services } = app.app;
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'late' });
  const dir = services.git.disk.pathOf(body.id);
  await workspace.git('.', 'clone', '-q', remote(ada, 'ada/late'), 'late');
  const before = (await workspace.git('late', 'rev-parse', 'HEAD')).trim();
  const after = await workspace.commit('late', { 'a.txt': 'a' });
  await workspace.git('late', 'push', '-q', 'origin', 'HEAD:refs/heads/other');
  // As the server had left it: the note of a push that it let pass, and git, which has locked the ref.
  const ref = 'refs/heads/main';
  await services.git.disk.begin(body.id, {
    kind: 'push',
    event: newId('evt'),
    pusher: 'ada',
    commands: [{ ref, before, after }],
    at: new Date().toISOString(),
  });
  const folder = await mkdtemp(join(tmpdir(), 'loam-outlived-'));
  const [locked, go] = [join(folder, 'locked'), join(folder, 'go')];
  await mkdir(join(folder, 'hooks'));
  const hook = `#!/bin/sh\n[ "$1" = prepared ] || exit 0\n: > ${locked}\nuntil [ -e ${go} ]; do sleep 0.02; done\n`;
  await writeFile(join(folder, 'hooks/reference-transaction'), hook, { mode: 0o755 });
  const env = {
    ...process.env,
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: 'core.hooksPath',
    GIT_CONFIG_VALUE_0: join(folder, 'hooks'),
  };
  const git = spawn('git', ['update-ref', ref, after, before], { cwd: dir, env });
  const ended = once(git, 'exit');
  await eventually(() => access(locked));

  const recovering = recoverRepositories(services);
  // Time enough to look at the refs for who does not wait for git.
  await Promise.race([recovering, delay(300)]);
  await writeFile(go, '');
  await Promise.all([recovering, ended]);
  const pushed = await services.db.event.findMany({
    where: { type: 'repository.pushed', subject: body.id },
    select: { data: true },
  });
  const told = pushed
    .flatMap(({ data }) => (data as Pushed).push.refs)
    .filter((one) => one.ref === ref);
  expect(told).toEqual([expect.objectContaining({ before, after })]);
  expect((await ada.get(`/auth/v1/repository/ada/${body.id}/commits/main`)).text).toContain(after);
  await rm(folder, { recursive: true });
});
