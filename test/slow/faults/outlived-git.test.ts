/** Ref updates by git processes that outlived their server are recorded, even if found late or after later pushes. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import type { PushNote } from '../../../src/repositories/pushes/rows.ts';
import { recoverRepositories } from '../../../src/repositories/recovery.ts';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';

const REF = 'refs/heads/main';

type Pushed = { push: { refs: { ref: string; before: string; after: string }[] } };

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

type World = { dir: string; id: string; before: string; shas: string[] };

/** Creates a repository, and two commits that follow its main branch but are only on another branch. */
async function world(name: string): Promise<World> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await workspace.git('.', 'clone', '-q', remote(ada, `ada/${name}`), name);
  const before = (await workspace.git(name, 'rev-parse', 'HEAD')).trim();
  const shas = [await workspace.commit(name, { 'a.txt': 'a' })];
  shas.push(await workspace.commit(name, { 'a.txt': 'b' }));
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD:refs/heads/other');
  return { dir: app.app.services.git.disk.pathOf(body.id), id: body.id, before, shas };
}

/** Stores the record of a push that a server has accepted. */
const note = (id: string, before: string, after: string) =>
  app.app.services.git.disk.beginOperation<PushNote>(id, {
    kind: 'push',
    event: newId('evt'),
    pusher: 'ada',
    commands: [{ ref: REF, before, after }],
    at: new Date().toISOString(),
  });

/** Moves of the main branch in the recorded events, in order. */
async function toldOf(id: string) {
  const pushed = await app.app.services.db.event.findMany({
    where: { type: 'repository.pushed', subject: id },
    select: { data: true },
    orderBy: { seq: 'asc' },
  });
  const moves = pushed.flatMap(({ data }) => (data as Pushed).push.refs);
  return moves.filter(({ ref }) => ref === REF).map(({ before, after }) => ({ before, after }));
}

test('recovery waits for a git process that has not updated its ref yet, and records the push', async () => {
  const { services } = app.app;
  const { dir, id, before, shas } = await world('late');
  const [after = ''] = shas;
  // State after a kill: the record of an accepted push, and a git process that has locked the ref.
  await note(id, before, after);
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
  const git = spawn('git', ['update-ref', REF, after, before], { cwd: dir, env });
  const ended = once(git, 'exit');
  await eventually(() => access(locked));

  const recovering = recoverRepositories(services);
  // Long enough for a recovery that does not wait for git to read the refs.
  await Promise.race([recovering, delay(300)]);
  await writeFile(go, '');
  await Promise.all([recovering, ended]);
  expect(await toldOf(id)).toEqual([{ before, after }]);
  expect((await ada.get(`/auth/v1/repository/ada/${id}/commits/main`)).text).toContain(after);
  await rm(folder, { recursive: true });
});

test('a push is recorded although a later push moved its ref before recovery', async () => {
  const { dir, id, before, shas } = await world('moved-on');
  const [first = '', second = ''] = shas;
  const { data } = await note(id, before, first);
  await workspace.git('.', '--git-dir', dir, 'update-ref', REF, first, before);
  await workspace.git('moved-on', 'push', '-q', 'origin', `${second}:${REF}`);
  await recoverRepositories(app.app.services);
  const moves = [
    { before: first, after: second },
    { before, after: first },
  ];
  expect(await toldOf(id)).toEqual(moves);
  // State after a kill before the record was removed.
  await app.app.services.git.disk.beginOperation(id, data);
  await recoverRepositories(app.app.services);
  expect(await toldOf(id)).toEqual(moves);
  expect(app.app.services.pushes.waiting).toBe(0);
});

test('a push is recorded when a later push of the same ref is not recorded yet', async () => {
  const { services } = app.app;
  const { dir, id, before, shas } = await world('in-flight');
  const [first = '', second = ''] = shas;
  await note(id, before, first);
  await workspace.git('.', '--git-dir', dir, 'update-ref', REF, second);
  await recoverRepositories(services);
  expect(await toldOf(id)).toEqual([]);
  expect(services.pushes.waiting).toBe(1);
  await services.pushes.record(await note(id, first, second), [
    { ref: REF, before: first, after: second },
  ]);
  await eventually(() => expect(services.pushes.waiting).toBe(0));
  expect(await toldOf(id)).toEqual([
    { before, after: first },
    { before: first, after: second },
  ]);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
});

test('a push without effect is not recorded, and recovery stops waiting for it', async () => {
  const { services } = app.app;
  const { dir, id, before, shas } = await world('by-hand');
  const [first = '', second = ''] = shas;
  await note(id, before, first);
  // Moved by hand, so no push is ever recorded for this move.
  await workspace.git('.', '--git-dir', dir, 'update-ref', REF, second);
  await recoverRepositories(services);
  await eventually(() => expect(services.pushes.waiting).toBe(0));
  expect(await toldOf(id)).toEqual([]);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
});
