/** `loam users`, `audit`, `search`, `rules`, `statuses`. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;
let clone: string;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  clone = join(user.home, 'guarded');
  await user.loam(['repo', 'create', 'guarded', '--init']);
  await user.exec('git', ['clone', '-q', `${app.base}/ada/guarded.git`]);
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const json = async (...args: string[]) =>
  JSON.parse(await user.loam([...args, '--json'], { cwd: clone }));

test('operators create users, and make links that sign them in', async () => {
  await using operator = await LoamUser.open(app.admin);
  const link = await operator.loam(['users', 'create', 'bob', '--email', 'bob@example.com']);
  expect(link).toMatch(/^http\S+\/login\/link\?secret=\S+\n$/);
  expect(await operator.loam(['users', 'link', 'bob'])).toMatch(/^http\S+\n$/);
  const again = JSON.parse(await operator.loam(['users', 'link', 'bob', '--json']));
  expect(again).toEqual({ username: 'bob', url: expect.stringMatching(/^http/) });
  const found = JSON.parse(await operator.loam(['users', 'list', 'bob', '--json']));
  expect(found).toMatchObject([{ username: 'bob', email: 'bob@example.com' }]);
  expect((await user.run(['users', 'list'])).code).toBe(5);
  const [entry] = JSON.parse(await operator.loam(['audit', '--limit', '1', '--json']));
  expect(entry).toMatchObject({ actor: 'admin' });
});

test('a rule requires jobs, and is replaced and deleted', async () => {
  const rules = (...args: string[]) => user.loam(['rules', ...args], { cwd: clone });
  const warned = await user.run(['rules', 'set', 'dev', '--require', 'test'], { cwd: clone });
  expect(warned.stderr).toContain('Warning: The default branch has no .loam/jobs.yml');
  const jobs =
    'jobs:\n  test: { on: { manual: true }, command: x }\n  lint: { needs: [test], command: x }\n';
  await user.write('guarded/.loam/jobs.yml', jobs);
  await user.exec('sh', ['-ec', 'git add . && git commit -qm Jobs && git push -q'], { cwd: clone });
  const unknown = await user.run(['rules', 'set', 'dev', '--require', 'tset,lint'], { cwd: clone });
  expect([unknown.code, unknown.stderr]).toEqual([
    0,
    'Set the rule for dev of ada/guarded.\n' +
      'loam: Warning: .loam/jobs.yml of the default branch has no job tset. It has: test, lint.\n',
  ]);
  await rules('delete', 'dev');
  const known = await user.run(['rules', 'set', 'main', '--require', 'test,lint'], { cwd: clone });
  expect(known.stderr).toBe('Set the rule for main of ada/guarded.\n');
  const set = await rules('set', 'release/*', '--push', 'admin', '--deletions', '--json');
  expect(JSON.parse(set)).toMatchObject({ pattern: 'release/*', pushRole: 'ADMIN' });
  expect(await json('rules', 'list')).toMatchObject([
    { pattern: 'main', pushRole: 'WRITE', requiredJobs: ['test', 'lint'], allowsDeletions: false },
    { pattern: 'release/*', pushRole: 'ADMIN', requiredJobs: [], allowsDeletions: true },
  ]);
  await rules('delete', 'release/*');
  expect(await rules('list', '--repo', 'guarded')).toBe('main\twrite\ttest lint\t\n');
});

test('statuses of commits are reported and listed', async () => {
  const set = ['statuses', 'set', 'ci/build', '--state', 'failure', '--description', 'It is red'];
  const reported = JSON.parse(await user.loam([...set, '--json'], { cwd: clone }));
  expect(reported).toMatchObject({ context: 'ci/build', state: 'FAILURE', creator: 'ada' });
  const expected = [{ context: 'ci/build', state: 'FAILURE', description: 'It is red' }];
  expect(await json('statuses', 'list')).toMatchObject(expected);
  expect(await json('statuses', 'list', 'main')).toMatchObject(expected);
  expect((await user.run(['statuses', 'set', 'x'], { cwd: clone })).code).toBe(2);
  const outside = await user.run(['statuses', 'list', '--repo', 'guarded']);
  expect([outside.code, outside.stderr]).toEqual([
    1,
    expect.stringMatching(/^loam: git rev-parse failed: fatal: /),
  ]);
});

test('names are found, and the audit log says who has changed what', async () => {
  expect(await json('search', 'guar')).toMatchObject([{ kind: 'repository', name: 'ada/guarded' }]);
  const empty = await user.run(['search', '']);
  expect([empty.code, empty.stderr]).toEqual([2, expect.stringContaining('The text is empty')]);
  const entries = await json('audit', 'ada', '--actor', 'ada');
  expect(entries).toContainEqual(
    expect.objectContaining({ actor: 'ada', action: 'REPOSITORY_CREATE', name: 'guarded' }),
  );
});
