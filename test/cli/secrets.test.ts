/** `loam secret` and `loam variable`. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { remote } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let runner: FakeRunner;
let ada: Client;

beforeAll(async () => {
  runner = fakeRunner();
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'model' });
});
afterAll(() => app[Symbol.asyncDispose]());

test('a secret of a repository is set from stdin, listed without its value, and deleted', async () => {
  await using user = await LoamUser.open(ada);
  const set = await user.run(['secret', 'set', 'TOKEN', '--repo', 'model'], {
    stdin: 'hush-hush\n',
  });
  expect([set.code, set.stdout]).toEqual([0, '']);
  expect(set.stderr).toContain('Set the secret TOKEN of ada/model, for protected branches.');
  const { rows } = await app.pool.query(
    "select id, sealed from stored_values where name = 'TOKEN'",
  );
  const unseal = (row: { id: string; sealed: Buffer }) =>
    app.app.services.storedSecretSealer.open(row.id, row.sealed);
  expect(unseal(rows[0])).toBe('hush-hush');

  await user.loam([
    'secret',
    'set',
    'TOKEN',
    '--repo',
    'model',
    '--keep-value',
    '--refs',
    'main,tags/v*',
  ]);
  expect(await user.loam(['secret', 'list', '--repo', 'ada/model'])).toMatch(
    /^TOKEN\tmain tags\/v\*\t\S+\tada\t\n$/,
  );
  const listed = await user.loam(['secret', 'list', '--repo', 'model', '--json']);
  expect(JSON.parse(listed)).toMatchObject([
    { name: 'TOKEN', refs: ['main', 'tags/v*'], updatedBy: 'ada', lastUsedAt: null },
  ]);
  await user.loam(['secret', 'set', 'TOKEN', '--repo', 'model', '--no-refs'], { stdin: 'new' });
  expect(
    JSON.parse(await user.loam(['secret', 'list', '--repo', 'model', '--json']))[0].refs,
  ).toEqual([]);
  await user.loam(['secret', 'delete', 'TOKEN', '--repo', 'model']);
  expect(await user.loam(['secret', 'list', '--repo', 'model'])).toBe('');
  expect((await user.run(['secret', 'delete', 'TOKEN', '--repo', 'model'])).code).toBe(1);
});

test('the clone around the user names the repository', async () => {
  await using user = await LoamUser.open(ada);
  expect(await user.run(['secret', 'list'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(
      'Name a repository with --repo or a namespace with --namespace',
    ),
  });
  await user.exec('git', ['clone', '-q', remote(ada, 'ada/model'), 'model']);
  const cwd = join(user.home, 'model');
  await user.loam(['secret', 'set', 'KEY'], { cwd, stdin: 'line 1\nline 2\n' });
  expect(await user.loam(['secret', 'list'], { cwd })).toMatch(/^KEY\t/);
  const both = ['secret', 'list', '--repo', 'model', '--namespace', 'ada'];
  expect((await user.run(both)).code).toBe(2);
});

test('a value is asked for in a terminal, and not shown', async () => {
  await using user = await LoamUser.open(ada);
  const asked = user.inTerminal(['secret', 'set', 'TYPED', '--namespace', 'ada', '--refs', '**']);
  await expect.poll(() => asked.stdout).toContain('Value of TYPED');
  asked.child.stdin?.write('typed-value\r');
  const { stdout } = await asked.result();
  expect(stdout).toContain('Set the secret TYPED of ada, for **.');
  expect(stdout).not.toContain('typed-value');
  const { rows } = await app.pool.query(
    "select id, sealed from stored_values where name = 'TYPED'",
  );
  expect(app.app.services.storedSecretSealer.open(rows[0].id, rows[0].sealed)).toBe('typed-value');
});

test('a variable is an argument or stdin; a job of "loam run" gets both kinds', async () => {
  await using user = await LoamUser.open(ada);
  const ofAda = ['--namespace', 'ada', '--json'];
  const set = JSON.parse(await user.loam(['variable', 'set', 'REGION', 'eu', ...ofAda]));
  expect(set).toMatchObject({ name: 'REGION', value: 'eu', updatedBy: 'ada' });
  await user.loam(['variable', 'set', 'STAGE', '--repo', 'model'], { stdin: 'test\n' });
  expect(await user.loam(['variable', 'list', '--namespace', 'ada'])).toMatch(
    /^REGION\t\S+\tada\teu\n$/,
  );
  const any = await user.loam(['secret', 'set', 'ANY', '--refs', '**', ...ofAda], { stdin: 'any' });
  expect(JSON.parse(any)).toMatchObject({ name: 'ANY', refs: ['**'] });
  const options = ['--repo', 'ada/model', '--use-secret', 'ANY', '--use-variable', 'REGION,STAGE'];
  await user.loam(['run', ...options, '--name', 'uses', '--', 'true']);
  expect(runner.started.at(-1)?.env).toMatchObject({ ANY: 'any', REGION: 'eu', STAGE: 'test' });
  const shown = JSON.parse(await user.loam(['job', 'ada/uses', '--json']));
  expect(shown).toMatchObject({
    storedSecretNames: ['ANY'],
    storedVariableNames: ['REGION', 'STAGE'],
  });
  const refused = await user.run([
    'run',
    '--repo',
    'ada/model',
    '--use-secret',
    'NONE',
    '--',
    'true',
  ]);
  expect(refused.stderr).toContain('there is no secret NONE in the repository or its namespace');
  await user.loam(['variable', 'delete', 'REGION', '--namespace', 'ada']);
  expect(await user.loam(['variable', 'list', '--namespace', 'ada'])).toBe('');
});
