/** `loam run --array`, and `wait`, `logs`, `job` and `cancel` with the name of an array. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Client as LoamClient } from '../../src/cli/sdk/client.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { job, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;
let runner: FakeRunner;

beforeAll(async () => {
  runner = fakeRunner({ images: true });
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const runArgs = (name: string, command: string, ...more: string[]) => [
  ...['run', '--image', 'busybox', '--name', name, '--array', '3', ...more, '--', command],
];
const sortLines = (text: string) => text.trim().split('\n').sort();

test('an array is followed until all its jobs have ended, and its name stands for all of them', async () => {
  const args = runArgs('good', 'echo hello;echo x > out/x', '--output', 'out', '--get', 'got');
  const { code, stdout, stderr } = await user.run(args);
  expect([code, stdout], stderr).toEqual([0, '']);
  expect(stderr).toMatch(/^Array ada\/good: http\S+\/ada\/-\/jobs\?array=arr_\w+\n/);
  for (const index of [0, 1, 2]) {
    expect(stderr).toMatch(new RegExp(`^ada/good-${index} succeeded after `, 'm'));
    expect(await readFile(join(user.home, `got/${index}/x`), 'utf8')).toBe('x\n');
  }
  expect(stderr).toContain('ada/good: 3 succeeded\n');
  expect(await user.loam(['logs', 'good', '--tail', '1'])).toBe(
    'good-0 | hello\ngood-1 | hello\ngood-2 | hello\n',
  );
  expect(sortLines(await user.loam(['logs', '-f', 'ada/good', '--grep', 'h'])).at(-1)).toBe(
    'good-2 | hello',
  );
  const waited = await user.run(['wait', 'good', '--json']);
  expect([waited.code, JSON.parse(waited.stdout)], waited.stderr).toEqual([
    0,
    expect.arrayContaining([expect.objectContaining({ name: 'good-2', status: 'SUCCEEDED' })]),
  ]);
  const shown = await user.loam(['job', 'good']);
  expect(shown).toContain('array\t3 jobs\nstatus\t3 succeeded\n');
  expect(shown).toMatch(/^ada\/good-1\tsucceeded\t0\t\d+$/m);
  const again = await user.run(['rerun', 'good']);
  expect([again.code, again.stderr]).toEqual([0, 'ada/good run again: 3 jobs\n']);
  for (const index of [0, 1, 2]) await until(ada, 'ada', `good-${index}-2`, 'SUCCEEDED');
  const named = await user.run(['rerun', 'good', '--name', 'x']);
  expect([named.code, named.stderr]).toEqual([2, expect.stringContaining('for a single job')]);
  expect((await user.loam(['complete', '--', 'logs', 'goo'])).split('\n')).toContain('good');
  const over = await user.run(['cancel', 'good']);
  expect([over.code, over.stderr]).toEqual([1, 'loam: All jobs of the array have ended.\n']);
  const removed = await user.run(['rm', 'good']);
  expect([removed.code, removed.stderr]).toEqual([0, 'ada/good deleted: 3 jobs\n']);
  expect((await user.run(['job', 'good'])).code).toBe(1);
});

test('the exit code is that of the job that failed first, after all have ended', async () => {
  const args = runArgs('bad', 'exit 7', '--max-parallel', '1', '--json');
  const { code, stdout, stderr } = await user.run(args);
  expect(code, stderr).toBe(7);
  const ends = sortLines(stdout).map((line) => JSON.parse(line));
  expect(ends.map(({ kind, name, exitCode }) => [kind, name, exitCode]).sort()).toEqual(
    [0, 1, 2].map((index) => ['job', `bad-${index}`, 7]),
  );
  expect((await user.run(['wait', 'bad'])).code).toBe(7);
  expect(await user.loam(['job', 'bad'])).toMatch(/^array\t3 jobs, at most 1 at once$/m);
});

test('an array is cancelled by its name, and its logs are followed together', async () => {
  expect(await user.loam(runArgs('held', 'echo begun;hold', '--detach'))).toBe('ada/held-0\n');
  const running = await user.run(['rm', 'held']);
  expect([running.code, running.stderr]).toEqual([1, expect.stringMatching(/^loam: .*\n$/)]);
  const follower = user.start(['logs', '-f', 'held']);
  const waiter = user.start(['wait', 'held']);
  const begun = ['held-0 | begun', 'held-1 | begun', 'held-2 | begun'];
  await eventually(() => expect(sortLines(follower.stdout)).toEqual(begun));
  const cancelled = await user.run(['cancel', 'held']);
  expect([cancelled.code, cancelled.stderr]).toEqual([0, 'ada/held cancelled: 3 jobs\n']);
  expect((await follower.result()).code).toBe(0);
  // 1, or that of the process if it has ended already.
  expect([1, 143]).toContain((await waiter.result()).code);
  const missing = await user.run(['wait', 'nothing']);
  expect([missing.code, missing.stderr]).toEqual([1, 'loam: Job ada/nothing not found\n']);
});

test('Ctrl-C cancels an array; on a terminal it asks, and one line shows the counts', async (ctx) => {
  const piped = user.start(runArgs('stopped', 'hold'));
  await piped.said(/Array ada\/stopped/);
  piped.child.kill('SIGINT');
  const { code, stderr } = await piped.result();
  expect([code, stderr]).toEqual([130, expect.stringContaining('ada/stopped: 3 cancelled\n')]);

  needs(ctx, 'script');
  const command = user.inTerminal(runArgs('shown', 'hold'));
  await eventually(() => expect(command.stdout).toContain('ada/shown: 3 running'));
  command.child.stdin?.write('\x03');
  await eventually(() => expect(command.stdout).toContain('Array ada/shown runs on. Detach'));
  command.child.stdin?.write('d\n');
  expect((await command.result()).code).toBe(130);
  expect(command.stdout).toContain('loam logs -f ada/shown');
  expect((await job(ada, 'ada', 'shown-0')).status).toBe('RUNNING');
  runner.release();
  await until(ada, 'ada', 'shown-0', 'SUCCEEDED');
});

test('on a terminal, wait shows several arrays on one line', async (ctx) => {
  needs(ctx, 'script');
  for (const name of ['one', 'two']) await user.loam(runArgs(name, 'hold', '--detach'));
  const command = user.inTerminal(['wait', 'one', 'two']);
  const both = /ada\/one: [\w, ]+; ada\/two: |ada\/two: [\w, ]+; ada\/one: /;
  await eventually(() => expect(command.stdout).toMatch(both));
  await user.loam(['cancel', 'one', 'two']);
  expect((await command.result()).code).not.toBe(0);
});

test('the library lists the jobs of an array', async () => {
  await user.loam(runArgs('listed', 'echo', '--detach'));
  const { jobArray } = await ada.gql('{ jobArray(namespace: "ada", name: "listed") { id } }');
  const client = new LoamClient({ url: app.base, token: ada.token });
  const names = [];
  for await (const { name } of client.jobs.list({ array: jobArray.id })) names.push(name);
  expect(names.sort()).toEqual(['listed-0', 'listed-1', 'listed-2']);
});
