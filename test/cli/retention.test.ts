/** `loam retention` and `loam shell-access`: settings of a namespace. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { submit, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(() => app[Symbol.asyncDispose]());

test('retention is shown, set after a look at what goes, and ended; a job can be exempt', async () => {
  await using user = await LoamUser.open(ada);
  expect((await user.run(['retention', 'show'])).stderr).toContain(
    'Nothing of ada is removed by age.',
  );
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'old', command: 'echo up' });
  await until(ada, 'ada', 'old', 'SUCCEEDED');
  await app.pool.query(`update jobs set completed_at = completed_at - interval '31 days'`);

  const dry = await user.run(['retention', 'set', '--jobs', '30', '--dry-run']);
  expect(dry.stderr).toContain('jobs to remove now: 1 (3 B): old');
  const asked = await user.run(['retention', 'set', 'ada', '--jobs', '30', '--logs', '10']);
  expect(asked.code).toBe(2);
  expect((await app.pool.query('select from retention_rules')).rowCount).toBe(0);
  const days = ['--jobs', '30', '--logs', '10'];
  const set = await user.loam(['retention', 'set', 'ada', ...days, '--yes', '--json']);
  expect(JSON.parse(set)).toMatchObject({ jobDays: 30, logDays: 10, updatedBy: 'ada' });
  const shown = await user.loam(['retention', 'show']);
  expect(shown).toMatch(
    /^jobs\tafter 30 days\nlogs\tafter 10 days\nartifacts\tkept\nset\t\S+ by ada\n$/,
  );
  expect(JSON.parse(await user.loam(['retention', 'show', 'ada', '--json']))).toMatchObject({
    jobDays: 30,
    logDays: 10,
    artifactDays: null,
  });

  expect((await user.run(['retention', 'keep', 'old'])).stderr).toContain(
    'ada/old is exempt from retention.',
  );
  const { rows } = await app.pool.query('select key from job_labels');
  expect(rows).toEqual([{ key: 'keep' }]);
  await user.run(['retention', 'keep', 'ada/old', '--remove']);
  expect((await app.pool.query('select from job_labels')).rowCount).toBe(0);

  expect((await user.run(['retention', 'set'])).code).toBe(2);
  expect((await user.run(['retention', 'set', '--jobs', '0'])).code).toBe(1);
  await user.run(['retention', 'off']);
  expect((await app.pool.query('select from retention_rules')).rowCount).toBe(0);
});

test('an admin switches shells in the jobs of a namespace off and on', async () => {
  await using user = await LoamUser.open(ada);
  expect(await user.loam(['shell-access'])).toBe('allowed\n');
  const { stderr } = await user.run(['shell-access', 'ada', '--set', 'none']);
  expect(stderr).toBe('Shells in jobs of ada: none\n');
  expect(await user.loam(['shell-access', 'ada'])).toBe('none\n');
  await user.run(['shell-access', '--set', 'allowed']);
  expect(await user.loam(['shell-access'])).toBe('allowed\n');
  expect((await user.run(['shell-access', '--set', 'all'])).code).toBe(2);
});
