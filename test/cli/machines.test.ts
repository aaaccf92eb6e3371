/** `loam machines`. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { joinMachine } from '../../src/jobs/machines/machines.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

const facts = {
  hostname: 'box.lab.example',
  os: 'linux',
  arch: 'x64',
  node: '24.1.0',
  program: '1.0.0',
  cpus: 16,
  memoryBytes: 64 * 2 ** 30,
  gpus: [0, 1].map((index) => ({
    index,
    name: 'NVIDIA L4',
    uuid: `GPU-${index}`,
    memoryBytes: 24 * 2 ** 30,
  })),
  withImage: false,
  withoutImage: true,
  slots: 8,
  notes: ['Docker is not installed: jobs with an image are refused'],
};
const join = (token: string, name: string) =>
  joinMachine(app.app.services as never, token, { name, facts });

test('a machine is added, shown, drained, resumed and removed', async () => {
  await using user = await LoamUser.open(app.admin);
  const nothing = await user.run(['machines']);
  expect([nothing.code, nothing.stdout]).toEqual([0, '']);
  expect(nothing.stderr).toContain('loam machines add');

  const line = await user.loam(['machines', 'add', 'box']);
  expect(line.trim()).toMatch(
    new RegExp(
      `^curl -fsSL ${app.base}/worker/install.sh \\| sh -s -- --token loam_worker_\\w{46} --name box$`,
    ),
  );
  const more = ['--region', 'eu-west-1', '--label', 'rack=7', '--json'];
  const added = JSON.parse(await user.loam(['machines', 'add', ...more]));
  expect(added).toMatchObject({ namespace: null, command: expect.stringContaining(added.token) });
  expect(added.command).not.toContain('--name');
  expect(Date.parse(added.expiresAt) - Date.now()).toBeLessThanOrEqual(86_400_000);

  await join(added.token, 'box');
  const listed = (await user.loam(['machines', 'list'])).trim().split('\t');
  expect(listed.slice(0, 7)).toEqual([
    'box',
    'online',
    '0 of 8',
    '16',
    '64.0 GiB',
    '2 × NVIDIA L4 (2 free)',
    '1.0.0',
  ]);
  const shown = await user.loam(['machines', 'show', 'box']);
  for (const text of [
    'regions\teu-west-1',
    'labels\track=7',
    'host\tbox.lab.example, linux x64',
    'refuses\tjobs with an image',
    'note\tDocker is not installed',
    'gpu 1\tNVIDIA L4, 24.0 GiB, free',
  ])
    expect(shown).toContain(text);

  expect((await user.run(['machines', 'drain', 'box', '--deadline', '2h'])).stderr).toContain(
    'box takes no more jobs. None runs.',
  );
  const drained = JSON.parse(await user.loam(['machines', 'show', 'box', '--json']));
  expect(drained).toMatchObject({ status: 'DRAINED', drainDeadline: expect.any(String) });
  const late = await user.run(['machines', 'drain', 'box', '--deadline', '8d']);
  expect([late.code, late.stderr]).toEqual([2, expect.stringMatching(/^loam: --deadline: must/)]);
  await user.loam(['machines', 'resume', 'box']);
  expect(await user.loam(['machines'])).toContain('box\tonline');
  expect((await user.loam(['complete', '--', 'machines', 'show', ''])).trim()).toBe('box');

  await user.loam(['machines', 'remove', 'box']);
  expect(await user.loam(['machines'])).toBe('');
  expect((await user.run(['machines', 'show', 'box'])).code).toBe(1);
  const tokens = JSON.parse(await user.loam(['machines', 'tokens', '--json']));
  expect(tokens.map(({ name }: { name: string }) => name)).toEqual(['loam machines add', 'box']);
  await user.loam(['machines', 'revoke', added.id]);
  await expect(join(added.token, 'again')).rejects.toMatchObject({ status: 401 });
});

test('an admin of a namespace adds machines for it alone', async () => {
  await using user = await LoamUser.open(ada);
  const refused = await user.run(['machines', 'add', 'mine']);
  expect(refused.code).toBe(5);
  const own = ['machines', 'add', 'mine', '--namespace', 'ada', '--json'];
  const { token } = JSON.parse(await user.loam(own));
  await join(token, 'mine');
  expect(await user.loam(['machines'])).toMatch(/^mine\t.*\tada\n$/);
  expect(await user.loam(['machines', 'tokens', '--namespace', 'ada'])).toContain('mine');
});
