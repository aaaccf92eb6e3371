/** Clients of git other than the stock one, over HTTP and over SSH, with right and with wrong credentials. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CLIENTS, type Credentials, type Remote } from '../../support/clients/clients.ts';
import { type GitResult, Workspace } from '../../support/git.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { makeKey, SshUser, sshUser } from '../../support/ssh-client.ts';

let app: TestApp;
let ada: Client;
let workspace: Workspace;
let right: Record<'http' | 'ssh', Credentials>;
let wrong: Record<'http' | 'ssh', Credentials>;
const port = () => app.app.ssh?.port ?? 0;
/** All of the clients read such a key. */
const PEM = ['ecdsa', '-b', '256', '-m', 'PEM'] as const;

beforeAll(async () => {
  app = await startApp({ config: { ssh: { host: '127.0.0.1', port: 0 } } });
  workspace = await Workspace.open();
  ada = await app.user('ada');
  const password = await byPassword(ada.token);
  right = { http: password, ssh: password };
  wrong = { http: await byPassword('loam_pat_wrong'), ssh: password };
  if (!has('ssh')) return;
  right.ssh = await byKey(await sshUser(ada, workspace, port(), ...PEM));
  wrong.ssh = await byKey(new SshUser(workspace, makeKey(workspace, ...PEM), port()));
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function byPassword(password: string): Promise<Credentials> {
  const home = join(workspace.path, `home-of-${password}`);
  await mkdir(home);
  await writeFile(join(home, '.netrc'), `machine 127.0.0.1 login ada password ${password}\n`);
  return { home, user: 'ada', password };
}

/** With the server's own keys, which each client has to find there. */
async function byKey({ key }: SshUser): Promise<Credentials> {
  const home = `${key.path}.home`;
  const known = join(home, '.ssh/known_hosts');
  await mkdir(join(home, '.ssh'), { recursive: true });
  const { hostKeys } = app.app.services;
  const lines = hostKeys.map(({ publicKey }) => `[127.0.0.1]:${port()} ${publicKey}\n`);
  await writeFile(known, lines.join(''));
  const config = `Host *\n  IdentityFile ${key.path}\n  PreferredAuthentications publickey\n`;
  await writeFile(join(home, '.ssh/config'), config);
  const options = ['IdentitiesOnly=yes', 'BatchMode=yes', `UserKnownHostsFile=${known}`];
  const words = [...['-F', '/dev/null', '-i', key.path], ...options.flatMap((one) => ['-o', one])];
  return { key: key.path, home, ssh: ['ssh', ...words].join(' ') };
}

let count = 0;

/** A private repository whose default branch is protected, and the stock git's clone of it. */
async function repository() {
  const name = `r${++count}`;
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await ada.gql(
    `mutation { updateRepository(input: {namespace: "ada", id: "${body.id}", branchProtection: true}) { repository { id } } }`,
  );
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { 'a/b.txt': 'b\n'.repeat(10_000), 'c.txt': 'c\n' });
  await workspace.git(name, 'push', '-q', 'origin', 'main');
  return { name, id: body.id };
}

function done({ code, stdout, stderr }: GitResult): void {
  expect([code, code === 0 ? '' : stdout + stderr]).toEqual([0, '']);
}

for (const client of CLIENTS)
  for (const way of client.speaks)
    test(`${client.name} over ${way} clones, fetches and pushes, hears why a push is refused, and fails without the right`, async (ctx) => {
      needs(ctx, ...client.needs, ...(way === 'ssh' ? (['ssh'] as const) : []));
      const { name, id } = await repository();
      const path = `ada/${name}.git`;
      const url = way === 'http' ? `${app.base}/${path}` : `ssh://git@127.0.0.1:${port()}/${path}`;
      const own: Remote = { url, as: right[way] };
      const folder = `${name}-clone`;
      const full = join(workspace.path, folder);
      const here = (ref: string) => workspace.git(folder, 'rev-parse', ref);
      const there = async (ref: string) =>
        (await workspace.git(name, 'ls-remote', 'origin', ref)).split('\t')[0];

      done(await client.clone(own, full));
      expect(await here('HEAD')).toBe(await there('refs/heads/main'));
      expect(await workspace.git(folder, 'status', '--porcelain')).toBe('');

      const changed = await workspace.commit(name, { 'c.txt': 'd\n' });
      await workspace.git(name, 'push', '-q', 'origin', 'main', 'main:refs/tags/v1');
      done(await client.fetch(own, full));
      expect(await here('refs/remotes/origin/main')).toBe(changed);

      await workspace.git(folder, 'reset', '-q', '--hard', changed);
      await workspace.git(folder, 'branch', 'topic');
      const pushed = await workspace.commit(folder, { 'e.bin': Buffer.alloc(300_000, 7) });
      done(await client.push(own, full, 'refs/heads/main:refs/heads/main'));
      const topic = 'refs/heads/topic:refs/heads/topic';
      done(await client.push(own, full, topic));
      expect(await there('refs/heads/main')).toBe(pushed);
      expect(await there('refs/heads/topic')).toBe(changed);
      const { body } = await ada.get(`/auth/v1/repository/ada/${id}`);
      expect(body).toMatchObject({ branches: 2, tags: 1 });

      await workspace.git(folder, 'commit', '-q', '--amend', '-m', 'rewritten');
      // Not all of them have a code for it: JGit's command ends with 0.
      const refused = await client.push(own, full, '+refs/heads/main:refs/heads/main');
      expect(refused.stderr).toContain(
        'The branch main is protected: only fast-forward pushes are accepted',
      );

      const stranger: Remote = { url, as: wrong[way] };
      for (const failed of [
        await client.clone(stranger, `${full}-not`),
        await client.push(stranger, full, '+refs/heads/main:refs/heads/topic'),
      ]) {
        expect(failed.code).toBeGreaterThan(0);
        expect(failed.stderr).toMatch(/auth|credentials|Permission denied|401/i);
      }
      expect(await there('refs/heads/main')).toBe(pushed);
      expect(await there('refs/heads/topic')).toBe(changed);

      if (!client.shallow) return;
      done(await client.shallow(own, `${full}-shallow`));
      expect(await workspace.git(`${folder}-shallow`, 'rev-list', '--count', 'HEAD')).toBe('1');
    });
