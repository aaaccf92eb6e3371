/** A push whose git process outlived its killed server is recorded, however late it is found and whatever was pushed since. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recoverRepositories } from '../../../src/repositories/recovery.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { pushNote } from '../../support/push-note.ts';

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

/** A repository, and commits that are in it but not on its main branch. */
async function world(name: string): Promise<World> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await workspace.clone(ada, `ada/${name}`);
  const before = (await workspace.git(name, 'rev-parse', 'HEAD')).trim();
  const shas = [await workspace.commit(name, { 'a.txt': 'a' })];
  shas.push(await workspace.commit(name, { 'a.txt': 'b' }));
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD:refs/heads/other');
  return { dir: app.app.services.git.disk.pathOf(body.id), id: body.id, before, shas };
}

/** The note of a push that a server has accepted. */
const note = (id: string, before: string, after: string) =>
  app.app.services.git.disk.beginOperation(id, pushNote([{ ref: REF, before, after }]));

/** The moves of the branch in the events. */
async function toldOf(id: string) {
  const pushed = await app.app.services.db.event.findMany({
    where: { type: 'repository.pushed', subject: id },
    select: { data: true },
    orderBy: { seq: 'asc' },
  });
  const moves = pushed.flatMap(({ data }) => (data as Pushed).push.refs);
  return moves.filter(({ ref }) => ref === REF).map(({ before, after }) => ({ before, after }));
}

test('a push is recorded if its git has not yet moved the ref when the death of its server is detected', async () => {
  const { services } = app.app;
  const { dir, id, before, shas } = await world('late');
  const [after = ''] = shas;
  // The state that the server left: the note of an accepted push, and a git process that has locked the ref.
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
  // Enough time for a recovery that does not wait for git to read the refs.
  await Promise.race([recovering, delay(300)]);
  await writeFile(go, '');
  await Promise.all([recovering, ended]);
  expect(await toldOf(id)).toEqual([{ before, after }]);
  expect((await ada.get(`/auth/v1/repository/ada/${id}/commits/main`)).text).toContain(after);
  await rm(folder, { recursive: true });
});

test('a push is recorded if another push moved the ref before the death of its server is detected', async () => {
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
  // As if the server had been killed before it removed the note.
  await app.app.services.git.disk.beginOperation(id, data);
  await recoverRepositories(app.app.services);
  expect(await toldOf(id)).toEqual(moves);
  expect(app.app.services.pushes.waiting).toBe(0);
});

test('a push is recorded if another push, not recorded yet, moved the ref', async () => {
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

test('a push that did not take effect is not recorded, and is not waited for indefinitely', async () => {
  const { services } = app.app;
  const { dir, id, before, shas } = await world('by-hand');
  const [first = '', second = ''] = shas;
  await note(id, before, first);
  // Not moved by a push, so this move is never recorded.
  await workspace.git('.', '--git-dir', dir, 'update-ref', REF, second);
  await recoverRepositories(services);
  await eventually(() => expect(services.pushes.waiting).toBe(0));
  expect(await toldOf(id)).toEqual([]);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
});
