/** `loam tokens`, `keys`, `ssh-keys`, `members`, `orgs`: what the settings pages do. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  await app.user('bob');
  await ada.post('/auth/v1/repository/ada', { name: 'model' });
});
afterAll(() => app[Symbol.asyncDispose]());

test('a new token is the only thing on stdout, and has the limits that were given', async () => {
  await using user = await LoamUser.open(ada);
  const options = ['--scope', 'repo:read,job:read', '--repo', 'model', '--days', '2'];
  const created = await user.run(['tokens', 'create', 'laptop', ...options]);
  expect([created.code, created.stdout]).toEqual([0, expect.stringMatching(/^loam_pat_\S+\n$/)]);
  expect(created.stderr).not.toContain(created.stdout.trim());
  const limited = app.client(`Bearer ${created.stdout.trim()}`);
  expect((await limited.get('/auth/v1/repository/ada')).body.data).toHaveLength(1);
  expect((await limited.post('/auth/v1/repository/ada', { name: 'x' })).status).toBe(403);
  const listed = JSON.parse(await user.loam(['tokens', 'list', '--json']));
  expect(listed).toContainEqual(
    expect.objectContaining({ name: 'laptop', scopes: ['REPO_READ', 'JOB_READ'] }),
  );
  expect(await user.loam(['tokens', 'list'])).toMatch(/^laptop\trepo:read job:read\trepo_\S+\t/m);
  expect(JSON.stringify(listed)).not.toContain(created.stdout.trim());

  const all = await user.loam(['tokens', 'create', 'elsewhere', '--namespace', 'ada', '--json']);
  expect(JSON.parse(all)).toMatchObject({ name: 'elsewhere', token: expect.any(String) });
  await user.loam(['tokens', 'delete', 'laptop']);
  expect((await limited.get('/auth/v1/whoami')).status).toBe(401);

  // An empty list would be no limit for the server.
  for (const wrong of [
    ['--scope', ''],
    ['--scope', 'all'],
    ['--namespace', ','],
    ['--days', 'x'],
  ])
    expect((await user.run(['tokens', 'create', 'wrong', ...wrong])).code, `${wrong}`).toBe(2);
  const refused = await user.run(['tokens', 'create', 'wrong', '--days', '999']);
  expect([refused.code, refused.stdout]).toEqual([1, '']);
});

test('a new API key signs in, until it is deleted', async () => {
  await using user = await LoamUser.open(ada);
  const key = await user.loam([
    'keys',
    'create',
    'ci',
    '--namespace',
    'ada',
    '--scope',
    'repo:read',
  ]);
  expect(key).toMatch(/^ci\$\S+\n$/);
  const env = { LOAM_URL: app.base, LOAM_TOKEN: key.trim() };
  expect(await user.loam(['repo', 'list', 'ada'], { env })).toContain('ada/model');
  const refused = await user.run(['keys', 'list'], { env });
  expect([refused.code, refused.stdout]).toEqual([5, '']);
  expect(await user.loam(['keys', 'list'])).toMatch(/^ci\trepo:read\tada\t/);
  await user.loam(['keys', 'delete', 'ci']);
  expect((await user.run(['repo', 'list', 'ada'], { env })).code).toBe(4);
});

test('a public SSH key is added; a private one does not leave the machine', async (ctx) => {
  needs(ctx, 'ssh');
  await using user = await LoamUser.open(ada);
  await user.exec('ssh-keygen', ['-qt', 'ed25519', '-N', '', '-C', 'ada@laptop', '-f', 'key']);
  const added = await user.run(['ssh-keys', 'add', join(user.home, 'key.pub')]);
  expect([added.code, added.stderr]).toEqual([0, expect.stringContaining('ada@laptop (SHA256:')]);
  const id = added.stdout.trim();
  expect(await user.loam(['ssh-keys', 'list'])).toMatch(
    new RegExp(`^${id}\tada@laptop\t\tSHA256:`),
  );
  await user.loam(['ssh-keys', 'delete', id]);
  expect(await user.loam(['ssh-keys', 'list'])).toBe('');

  // Nothing listens at this address: the file is refused before any request.
  const env = { LOAM_URL: 'http://127.0.0.1:9', LOAM_TOKEN: 'x' };
  const refused = await user.run(['ssh-keys', 'add', 'key'], { env });
  expect([refused.code, refused.stderr]).toEqual([2, expect.stringContaining('private key')]);
});

test('members get roles, and organizations come and go', async () => {
  await using user = await LoamUser.open(ada);
  await using admin = await LoamUser.open(app.admin);
  expect((await user.run(['orgs', 'create', 'acme'])).code).toBe(5);
  await admin.loam(['orgs', 'create', 'acme', '--plan', 'team']);
  await admin.loam(['members', 'set', 'acme', 'ada', 'admin']);
  const set = await user.loam(['members', 'set', 'acme', 'bob', 'write', '--json']);
  expect(JSON.parse(set)).toMatchObject({ role: 'WRITE', user: { username: 'bob' } });
  expect(await user.loam(['orgs', 'list'])).toMatch(/^acme\tadmin\tteam\t\d{4}/);
  const rows = (await user.loam(['members', 'list', 'acme'])).split('\n');
  expect(rows.map((row) => row.split('\t').slice(0, 2).join())).toEqual([
    'admin,admin',
    'ada,admin',
    'bob,write',
    '',
  ]);
  expect(JSON.parse(await user.loam(['members', 'list', '--json']))).toMatchObject([
    { user: { username: 'ada' }, role: 'ADMIN' },
  ]);
  await user.loam(['members', 'remove', 'acme', 'bob']);
  const again = await user.run(['members', 'remove', 'acme', 'bob']);
  expect([again.code, again.stderr]).toEqual([1, 'loam: Member bob of acme not found\n']);
  expect((await user.run(['members', 'set', 'acme', 'bob', 'owner'])).code).toBe(2);
  await user.loam(['orgs', 'leave', 'acme']);
  expect(await user.loam(['orgs', 'list'])).toBe('');
  expect((await admin.run(['orgs', 'delete', 'acme'])).code).toBe(2);
  await admin.loam(['orgs', 'delete', 'acme', '--yes']);
  expect((await admin.run(['members', 'list', 'acme'])).code).toBe(1);
});
