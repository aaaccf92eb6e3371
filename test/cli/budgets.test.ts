/** `loam budget`. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

test('a budget is set, shown and deleted; that of the operator is for the operator', async () => {
  await using user = await LoamUser.open(ada);
  expect((await user.run(['budget', 'show'])).stderr).toContain('ada has no budget.');
  const limits = ['--on-reached', 'cancel', '--notify', '50,90'];
  const set = JSON.parse(await user.loam(['budget', 'set', '500.00', ...limits, '--json']));
  expect(set).toMatchObject({ cost: '0.00', budgets: [{ month: '500.00', notify: [50, 90] }] });
  const shown = await user.loam(['budget', 'show', 'ada']);
  expect(shown).toMatch(/^month\t\S+ to \S+ \(UTC\)\ncost\t0\.00\nforecast\t0\.00\nbudget\t/);
  expect(shown).toContain('budget\t500.00, then cancel; events at 50, 90 %');
  expect(JSON.parse(await user.loam(['budget', 'show', '--json']))).toMatchObject({
    cost: '0.00',
    budgets: [{ owner: 'NAMESPACE', month: '500.00', onReached: 'CANCEL', notify: [50, 90] }],
  });
  expect(await user.loam(['budget', 'show', '--labels'])).toBe('');

  const refused = await user.run(['budget', 'set', '900', '--operator']);
  expect(refused.code).toBe(5);
  const nothing = await user.run(['budget', 'set', '0']);
  expect([nothing.code, nothing.stderr]).toEqual([
    2,
    expect.stringMatching(/^loam: amount: must be/),
  ]);
  for (const amount of ['NaN', '1e400', '10000000000'])
    expect((await user.run(['budget', 'set', amount])).code, amount).toBe(2);
  const never = await user.run(['budget', 'set', '5', '--notify', '0']);
  expect([never.code, never.stderr]).toEqual([2, expect.stringMatching(/^loam: --notify: /)]);
  expect((await user.run(['budget', 'set', '5', '--notify', 'x'])).code).toBe(2);

  await user.loam(['budget', 'delete']);
  expect((await user.run(['budget', 'show'])).stderr).toContain('ada has no budget.');
  expect((await user.run(['budget', 'delete'])).code).toBe(1);
});
