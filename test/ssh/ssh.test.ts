/** Git over SSH with the stock clients: fetches, pushes, keys, and refusals. */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import ssh2 from 'ssh2';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { PrismaClient } from '../../prisma/generated/client.ts';
import { readHostKeys } from '../../src/api/ssh/host-keys.ts';
import { readConfig } from '../../src/base/config/config.ts';
import { seal } from '../../src/platform/crypto/keys.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { has, needs } from '../support/needs.ts';
import { makeKey, SshUser, sshUser } from '../support/ssh-client.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
let workspace: Workspace;
let adas: SshUser & { id: string };
let bobs: SshUser & { id: string };
const port = () => app.app.ssh?.port ?? 0;

beforeEach((ctx) => needs(ctx, 'ssh'));
beforeAll(async () => {
  if (!has('ssh')) return;
  app = await startApp({ config: { ssh: { host: '127.0.0.1', port: 0 } } });
  workspace = await Workspace.open();
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  adas = await sshUser(ada, workspace, port());
  bobs = await sshUser(bob, workspace, port());
});
afterAll(async () => {
  await workspace?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

async function repository(
  name: string,
  more: object = {},
): Promise<{ id: string; ssh_url: string }> {
  const { status, body } = await ada.post('/auth/v1/repository/ada', { name, ...more });
  expect(status).toBe(201);
  return body;
}

test('clone, fetch and push at the ssh_url of a repository, and the recorded push', async () => {
  const { id, ssh_url } = await repository('hello');
  expect(ssh_url).toBe(`ssh://git@127.0.0.1:${port()}/ada/hello.git`);
  await adas.git('.', 'clone', '-q', ssh_url, 'hello');
  const sha = await workspace.commit('hello', { 'a.txt': 'a\n', 'b.bin': randomBytes(3_000_000) });
  const pushed = await adas.try('hello', 'push', 'origin', 'HEAD:main', 'HEAD:refs/tags/v1');
  expect(pushed).toMatchObject({ code: 0 });
  const { body } = await ada.get(`/auth/v1/repository/ada/${id}`);
  expect(body).toMatchObject({ branches: 1, tags: 1, pushed_at: expect.any(String) });

  // Both URL forms, with and without `.git`.
  const path = `git@127.0.0.1:ada/hello`;
  await adas.git('.', '-c', 'protocol.version=1', 'clone', '-q', path, 'again');
  expect(await workspace.git('again', 'rev-parse', 'HEAD')).toBe(sha);
  expect((await readFile(join(workspace.path, 'again/b.bin'))).length).toBe(3_000_000);

  const next = await workspace.commit('hello', { 'a.txt': 'b\n' });
  await adas.git('hello', 'push', '-q', 'origin', 'HEAD:main');
  await adas.git('again', 'pull', '-q', path, 'main');
  expect(await workspace.git('again', 'rev-parse', 'HEAD')).toBe(next);

  const { data } = await ada.graphql(
    `{ viewer { auditLog(action: REPOSITORY_PUSH) { nodes { address credential { kind id } } } sshKeys { nodes { lastUsedAt } } } }`,
  );
  const [last] = data.viewer.auditLog.nodes;
  expect(last).toEqual({ address: '127.0.0.1', credential: { kind: 'ssh', id: adas.id } });
  await eventually(async () => {
    const { viewer } = await ada.gql('{ viewer { sshKeys { nodes { lastUsedAt } } } }');
    expect(viewer.sshKeys.nodes[0].lastUsedAt).toEqual(expect.any(String));
  });
});

test('a disabled user gets an error that says so', async () => {
  const carol = await sshUser(await app.user('carol'), workspace, port());
  expect((await carol.ssh([])).stderr).toContain('Hi carol!');
  const switched = (field: string) =>
    app.admin.gql(`mutation { ${field}(input: { username: "carol" }) { user { id } } }`);
  await switched('disableUser');
  const { code, stderr } = await carol.ssh([]);
  expect(code).not.toBe(0);
  expect(stderr).toContain('The user carol is disabled: ask an operator of this server');
  await switched('enableUser');
  expect((await carol.ssh([])).stderr).toContain('Hi carol!');
});

test('protocol version 2, shallow and partial clones', async () => {
  await repository('deep');
  await adas.git('.', 'clone', '-q', adas.url('ada/deep'), 'deep');
  for (const text of ['1', '2', '3'])
    await workspace.commit('deep', { 'a.txt': text, [`${text}.txt`]: text.repeat(100) });
  await adas.git('deep', 'push', '-q', 'origin', 'HEAD');
  const traced = await workspace.try(
    '.',
    ...['-c', `core.sshCommand=env GIT_TRACE_PACKET=1 ssh ${adas.options.join(' ')}`],
    ...['-c', 'protocol.version=2', 'ls-remote', adas.url('ada/deep')],
  );
  expect(traced).toMatchObject({ code: 0, stdout: expect.stringContaining('refs/heads/main') });
  const version = await adas.ssh(["git-upload-pack 'ada/deep.git'"], '0000', {
    before: ['-o', 'SetEnv=GIT_PROTOCOL=version=2'],
  });
  expect(version.stdout).toMatch(/^000eversion 2\n/);
  await adas.git('.', 'clone', '-q', '--depth=1', adas.url('ada/deep'), 'shallow');
  expect(await workspace.git('shallow', 'rev-list', '--count', 'HEAD')).toBe('1');
  await adas.git(
    '.',
    'clone',
    '-q',
    '--filter=blob:none',
    '--no-checkout',
    adas.url('ada/deep'),
    'part',
  );
  expect(await adas.git('part', 'show', 'HEAD:3.txt')).toBe('3'.repeat(100));
});

test('the preferred cipher of the client is used, and rekeying works', async () => {
  await repository('ciphers');
  await adas.git('.', 'clone', '-q', adas.url('ada/ciphers'), 'ciphers');
  // More than the stock client's window, and of an odd length.
  const sha = await workspace.commit('ciphers', { 'a.bin': randomBytes(9_000_011) });
  await adas.git('ciphers', 'push', '-q', 'origin', 'HEAD:main');
  for (const [option, used] of [
    ['-c aes256-gcm@openssh.com', 'aes256-gcm@openssh.com'],
    ['-c aes128-ctr', 'aes128-ctr'],
    ['-c aes256-ctr,aes256-gcm@openssh.com', 'aes256-ctr'],
    ['-c chacha20-poly1305@openssh.com,aes128-gcm@openssh.com', 'aes128-gcm@openssh.com'],
    ['-c aes128-gcm@openssh.com -o RekeyLimit=1M', 'aes128-gcm@openssh.com'],
    ['-c aes192-ctr -o RekeyLimit=1M', 'aes192-ctr'],
  ] as const) {
    const options = adas.options.map((one) => (one === 'LogLevel=ERROR' ? 'LogLevel=DEBUG1' : one));
    const command = ['ssh', option, ...options].join(' ');
    const folder = `with ${option}`;
    const { code, stderr } = await workspace.try(
      '.',
      ...['-c', `core.sshCommand=${command}`],
      ...['clone', '-q', adas.url('ada/ciphers'), folder],
    );
    expect(code, stderr).toBe(0);
    expect(stderr, option).toContain(`kex: server->client cipher: ${used} `);
    const exchanges = stderr.match(/debug1: SSH2_MSG_NEWKEYS received/g)?.length ?? 0;
    expect(exchanges, option).toBeGreaterThanOrEqual(option.includes('Rekey') ? 3 : 1);
    expect(await workspace.git(folder, 'rev-parse', 'HEAD')).toBe(sha);
    await workspace.git(folder, 'fsck', '--strict');
  }
});

test('every supported key type authenticates the account', async () => {
  for (const type of [
    ['rsa', '-b', '2048'],
    ['ecdsa', '-b', '256'],
    ['ecdsa', '-b', '521'],
  ] as const) {
    const user = await sshUser(ada, workspace, port(), ...type);
    const { code, stderr } = await user.ssh([]);
    expect([code, stderr]).toEqual([1, "Hi ada! You've authenticated, but Loam gives no shell.\n"]);
  }
});

test('read and push permissions are the same as over HTTP', async () => {
  const { id } = await repository('closed');
  const url = bobs.url('ada/closed');
  const hidden = await bobs.try('.', 'clone', url, 'x');
  expect(hidden.stderr).toContain('loam: Repository ada/closed not found');
  expect(hidden.code).toBe(128);
  const missing = await bobs.try('.', 'clone', bobs.url('ada/nothing'), 'x');
  expect(missing.stderr).toBe(hidden.stderr.replace('ada/closed', 'ada/nothing'));
  await ada.post(`/auth/v1/repository/ada/${id}/visibility`, { visibility: 'internal' });
  await bobs.git('.', 'clone', '-q', url, 'closed');
  await workspace.commit('closed', { 'a.txt': 'a' });
  const refused = await bobs.try('closed', 'push', 'origin', 'HEAD');
  expect(refused.stderr).toContain('loam: You may not push in this namespace');

  // Neither an unknown key nor another SSH user name works.
  const stranger = new SshUser(workspace, makeKey(workspace), port());
  expect((await stranger.ssh([])).stderr).toContain('Permission denied (publickey)');
  expect((await adas.ssh([], '', { user: 'ada' })).stderr).toContain('Permission denied');
  const password = ['-o', 'PreferredAuthentications=password,keyboard-interactive'];
  expect((await adas.ssh([], '', { before: password })).code).toBe(255);
});

test('a refused push shows the reason and changes nothing', async () => {
  const { id } = await repository('strict');
  await ada.gql(
    `mutation { updateRepository(input: {namespace: "ada", id: "${id}", secretScanning: true, branchProtection: true}) { repository { id } } }`,
  );
  await adas.git('.', 'clone', '-q', adas.url('ada/strict'), 'strict');
  const before = await workspace.git('strict', 'rev-parse', 'HEAD');
  await workspace.commit('strict', { 'a.txt': `ghp_${'a1B2c3D4e5'.repeat(3)}f6G7h8\n` });
  const secret = await adas.try('strict', 'push', 'origin', 'HEAD');
  const deleted = await adas.try('strict', 'push', 'origin', ':main');
  expect(deleted.stderr).toContain('The branch main is protected and cannot be deleted');
  expect(deleted.code).toBe(1);
  expect([secret.code, secret.stderr]).toEqual([1, expect.stringContaining('a.txt:1 adds')]);
  expect(await adas.git('strict', 'ls-remote', 'origin', 'main')).toContain(before);
});

test('a commit with a forged parent does not move a protected branch', async () => {
  const { id } = await repository('forged');
  await ada.gql(
    'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }',
    { input: { id, pattern: 'main' } },
  );
  await adas.git('.', 'clone', '-q', adas.url('ada/forged'), 'forged');
  const tip = await workspace.git('forged', 'rev-parse', 'HEAD');
  const sha = await workspace.forgeParent('forged', tip);
  const refused = await adas.try('forged', 'push', '--force', 'origin', `${sha}:refs/heads/main`);
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringContaining('The branch main is protected: only fast-forward pushes are accepted'),
  ]);
  expect(await adas.git('forged', 'ls-remote', 'origin', 'main')).toContain(tip);
});

test('a deploy key can read, or push to, its repository and no other', async () => {
  const { id } = await repository('deployed');
  await repository('other', { visibility: 'public' });
  const add = async (write: boolean) => {
    const key = makeKey(workspace);
    const { addDeployKey } = await ada.gql(
      'mutation ($input: AddDeployKeyInput!) { addDeployKey(input: $input) { deployKey { id } } }',
      { input: { repositoryId: id, title: 'ci', key: key.publicKey, write } },
    );
    return Object.assign(new SshUser(workspace, key, port()), { id: addDeployKey.deployKey.id });
  };
  const [reader, writer] = [await add(false), await add(true)];
  expect((await reader.ssh([])).stderr).toContain('Hi deploy key of ada!');
  await reader.git('.', 'clone', '-q', reader.url('ada/deployed'), 'deployed');
  await workspace.commit('deployed', { 'a.txt': 'a' });
  const refused = await reader.try('deployed', 'push', 'origin', 'HEAD');
  expect(refused.stderr).toContain('lacks the scope repo:write');
  await writer.git('deployed', 'push', '-q', 'origin', 'HEAD');
  for (const other of ['ada/other', 'ada/hello'])
    expect((await writer.try('.', 'ls-remote', writer.url(other))).stderr).toContain(
      `Repository ${other} not found`,
    );
  await ada.gql(`mutation { deleteDeployKey(input: {id: "${writer.id}"}) { id } }`);
  expect((await writer.ssh([])).stderr).toContain('Permission denied');
});

test('shells, other commands, terminals, forwarding, sftp and environment variables are refused', async () => {
  const refusal = async (...args: string[]) => (await adas.ssh(args)).stderr;
  expect(await refusal()).toBe("Hi ada! You've authenticated, but Loam gives no shell.\n");
  expect(await refusal('-tt')).toContain('PTY allocation request failed');
  for (const command of [
    'ls',
    'git-shell',
    'git config -l',
    'git-upload-archive ada/hello',
    'scp -f x',
  ])
    expect(await refusal(command)).toContain('is not supported');
  for (const path of [
    '',
    'hello',
    'a/b/c',
    '..',
    '../../etc/passwd',
    '~ada/hello',
    "'ada/x' --help",
  ])
    expect(await refusal(`git-upload-pack ${path}`)).toMatch(/is not a repository path|not found/);
  expect(await refusal("git-upload-pack 'ada/hello")).toContain('unclosed quote');
  expect(await refusal('\u001b[31mred')).toBe(
    'loam: "\\u001b[31mred" is not supported. Supported commands: git-upload-pack, git-receive-pack and git-lfs-authenticate\n',
  );
  const sftp = await adas.ssh(['-s', 'sftp']);
  expect(sftp.stderr).toContain('subsystem request failed');
  // In neither direction.
  const through = await adas.ssh([], '', { before: ['-W', `127.0.0.1:${new URL(app.base).port}`] });
  expect(through).toMatchObject({
    code: 255,
    stderr: expect.stringContaining('forwarding failed'),
  });
  const back = await adas.ssh(['git-upload-pack x/y'], '', {
    before: ['-o', 'ExitOnForwardFailure=yes', '-R', '0:127.0.0.1:1'],
  });
  expect(back.stderr).toContain('remote port forwarding failed');
});

test('git-lfs gets a URL and a token over SSH, and uploads files with them', async (ctx) => {
  needs(ctx, 'git-lfs');
  await repository('large');
  const asked = await adas.ssh(['git-lfs-authenticate', 'ada/large.git', 'download']);
  expect(JSON.parse(asked.stdout)).toMatchObject({
    href: `${app.base}/ada/large.git/info/lfs`,
    header: { Authorization: expect.stringMatching(/^Bearer loam_lfs_/) },
    expires_in: 3600,
  });
  const hidden = await bobs.ssh(['git-lfs-authenticate', 'ada/large.git', 'download']);
  expect(hidden).toMatchObject({
    code: 128,
    stdout: '',
    stderr: 'loam: Repository ada/large not found\n',
  });
  await adas.git('.', 'clone', '-q', adas.url('ada/large'), 'large');
  await adas.git('large', 'lfs', 'install', '--local', '--skip-smudge');
  await adas.git('large', 'lfs', 'track', '*.bin');
  const content = randomBytes(300_000);
  await workspace.commit('large', { 'a.bin': content });
  await adas.git('large', 'push', '-q', 'origin', 'HEAD');
  await adas.git('.', 'clone', '-q', adas.url('ada/large'), 'large-again');
  await adas.git('large-again', 'lfs', 'install', '--local');
  await adas.git('large-again', 'lfs', 'pull');
  expect(await readFile(join(workspace.path, 'large-again/a.bin'))).toEqual(content);
});

test('SSH accepts named proxy networks', async () => {
  const { trustedProxies } = readConfig({
    LOAM_TRUSTED_PROXIES: 'loopback,linklocal,uniquelocal,192.0.2.7',
  });
  const ssh = { host: '127.0.0.1', port: 0 };
  await using own = await startApp({ config: { ssh, trustedProxies } });
  expect(own.app.ssh?.port).toBeGreaterThan(0);
});

test('host keys are stored encrypted, and recreated if the secret key was replaced', async () => {
  const { db, log } = app.app.services;
  const read = (byte: number) => {
    const key = Buffer.alloc(32, byte);
    return readHostKeys(db as PrismaClient, { derive: () => key }, log);
  };
  const [first, again] = [await read(1), await read(1)];
  expect(again).toEqual(first);
  expect(first.map(({ type }) => type)).toEqual(['ssh-ed25519', 'ecdsa-sha2-nistp256']);
  const { value } = await db.setting.findUniqueOrThrow({ where: { name: 'ssh-host-keys' } });
  expect(Buffer.from(value).includes('OPENSSH')).toBe(false);
  const [others, last] = await Promise.all([read(2), read(2)]);
  expect(others).toEqual(last);
  expect(others[0]?.fingerprint).not.toBe(first[0]?.fingerprint);
});

test('generated host keys are readable, and unreadable stored keys are replaced', async () => {
  const { db, log } = app.app.services;
  const key = Buffer.alloc(32, 7);
  const read = () => readHostKeys(db as PrismaClient, { derive: () => key }, log);
  const name = 'ssh-host-keys';
  const whole = await read();
  const [ed25519, ecdsa] = whole.map(({ publicKey, privateKey }) => ({ publicKey, privateKey }));
  // Like one in 256 keys of ssh2: without the leading zero byte.
  const bytes = Buffer.from(ed25519?.publicKey.split(' ')[1] as string, 'base64');
  const short = Buffer.concat([bytes.subarray(0, 18), Buffer.from([31]), bytes.subarray(20)]);
  const cut = { ...ed25519, publicKey: `ssh-ed25519 ${short.toString('base64')}` };
  const value = seal(key, Buffer.from(JSON.stringify([cut, ecdsa])), name);
  await db.setting.update({ where: { name }, data: { value } });
  for (let n = 0; n < 500; n++) {
    for (const { publicKey, privateKey } of await read()) {
      const [made, kept] = [ssh2.utils.parseKey(publicKey), ssh2.utils.parseKey(privateKey)];
      if (made instanceof Error || kept instanceof Error) throw new Error('not to be read');
      const signature = kept.sign('said');
      expect(made.verify('said', signature as Buffer)).toBe(true);
    }
    await db.setting.delete({ where: { name } });
  }
});

test('a deleted key stops working, and its running commands are cut off', async () => {
  await repository('revoked');
  const user = await sshUser(ada, workspace, port());
  const child = user.ssh(["git-receive-pack 'ada/revoked.git'"], '');
  expect((await child).code).not.toBe(255);
  await ada.gql(`mutation { deleteSshKey(input: {id: "${user.id}"}) { id } }`);
  expect((await user.ssh([])).stderr).toContain('Permission denied');
});
