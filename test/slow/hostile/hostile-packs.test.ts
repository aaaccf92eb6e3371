/** Malformed packs and concurrent pushes, against the server's own reading of small packs. */
import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Workspace } from '../../support/git.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';

const NONE = '0'.repeat(40);

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

/** A repository with two commits of a file, and a clone of it. No other repository shares its objects. */
async function seeded(name: string): Promise<{ dir: string; id: string }> {
  const { id } = (await ada.post('/auth/v1/repository/ada', { name })).body;
  await workspace.clone(ada, `ada/${name}`);
  const lines = Array.from({ length: 500 }, (_, i) => `line ${i * 7919} of ${name}\n`);
  await workspace.commit(name, { 'a.txt': lines.join('') });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD:main');
  await workspace.commit(name, { 'a.txt': lines.toSpliced(7, 1).join(''), 'b.txt': name });
  return { dir: app.app.services.git.disk.pathOf(id), id };
}

function git(name: string, args: string[], input: string | Buffer = ''): Buffer {
  return execFileSync('git', args, { cwd: `${workspace.path}/${name}`, input });
}

const idOf = (name: string, revision: string) =>
  git(name, ['rev-parse', revision]).toString().trim();

/** Sends this pack to create a branch. @returns the report */
async function send(name: string, after: string, pack: Buffer): Promise<string> {
  const command = `${NONE} ${after} refs/heads/sent\0 report-status`;
  const line = (command.length + 4).toString(16).padStart(4, '0') + command;
  const answer = await fetch(`${app.base}/ada/${name}.git/git-receive-pack`, {
    method: 'POST',
    headers: {
      authorization: `Basic ${Buffer.from(`x:${ada.token}`).toString('base64')}`,
      'content-type': 'application/x-git-receive-pack-request',
    },
    body: Buffer.concat([Buffer.from(`${line}0000`), pack]),
  });
  return answer.text();
}

const packed = (name: string, ids: string[], args: string[] = []) =>
  git(name, ['pack-objects', '--stdout', '-q', ...args], ids.map((id) => `${id}\n`).join(''));

/** The server accepts the same push with a correct pack. */
async function expectSound(name: string, dir: string): Promise<void> {
  expect(execFileSync('git', ['-C', dir, 'branch', '--list', 'sent']).toString()).toBe('');
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD:main');
  execFileSync('git', ['-C', dir, 'fsck', '--strict', '--connectivity-only']);
  expect(execFileSync('git', ['-C', dir, 'rev-parse', 'main']).toString().trim()).toBe(
    idOf(name, 'HEAD'),
  );
}

test('a pack that lacks an object is refused, and its objects are not stored', async () => {
  const { dir } = await seeded('lacking');
  const [commit, tree] = [idOf('lacking', 'HEAD'), idOf('lacking', 'HEAD^{tree}')];
  for (const ids of [[commit], [commit, tree]])
    expect(await send('lacking', commit, packed('lacking', ids))).toMatch(/ng refs\/heads\/sent/);
  await expectSound('lacking', dir);
});

test('a pack with a broken delta, or a delta against an unknown object, is refused', async () => {
  const { dir } = await seeded('broken');
  const revisions = [idOf('broken', 'HEAD'), `^${idOf('broken', 'HEAD~')}`];
  const thin = packed('broken', revisions, ['--revs', '--thin', '--delta-base-offset']);
  for (let at = 12; at < thin.length; at += Math.ceil(thin.length / 25)) {
    const bent = Buffer.from(thin);
    bent[at] = (bent[at] ?? 0) ^ 0x15;
    expect(await send('broken', revisions[0] as string, bent)).not.toContain('ok refs/heads/sent');
  }
  expect(await send('broken', revisions[0] as string, thin.subarray(0, -30))).not.toContain('ok ');
  await expectSound('broken', dir);

  // The base is in another repository that shares no objects with this one.
  const other = await seeded('other');
  expect(await send('other', revisions[0] as string, thin)).toMatch(/unpack (?!ok)/);
  await expectSound('other', other.dir);
});

test('of concurrent pushes to one branch one is accepted, and concurrent pushes with the same objects are all accepted', async () => {
  const { dir, id } = await seeded('racing');
  await workspace.git('racing', 'push', '-q', 'origin', 'HEAD:main');
  const base = idOf('racing', 'HEAD');
  const tree = idOf('racing', 'HEAD^{tree}');
  const commits = await Promise.all(
    [0, 1, 2, 3].map((i) => workspace.git('racing', 'commit-tree', '-p', base, '-m', `${i}`, tree)),
  );
  const events = async () => {
    const rows = await app.app.services.db.event.findMany({
      where: { subject: id, type: 'repository.pushed' },
    });
    return rows.length;
  };
  const before = await events();
  const push = (...refs: string[]) => workspace.try('racing', 'push', 'origin', ...refs);
  const codes = (await Promise.all(commits.map((one) => push(`${one}:refs/heads/main`)))).map(
    ({ code }) => code,
  );
  expect(codes.filter((code) => code === 0)).toHaveLength(1);
  const main = execFileSync('git', ['-C', dir, 'rev-parse', 'main']).toString().trim();
  expect(main).toBe(commits[codes.indexOf(0)]);
  expect(await events()).toBe(before + 1);

  const same = await workspace.commit('racing', { 'same.txt': 'the same' });
  const all = await Promise.all([1, 2, 3].map((i) => push(`${same}:refs/heads/copy-${i}`)));
  expect(all.map(({ code }) => code)).toEqual([0, 0, 0]);
  expect(await events()).toBe(before + 4);
  execFileSync('git', ['-C', dir, 'fsck', '--strict']);
});

test('a branch with the longest name can be created, advertised, moved and deleted', async () => {
  const { dir } = await seeded('long');
  const name = `refs/heads/${'a/'.repeat(20)}${'ä'.repeat(100)}`;
  for (const revision of ['HEAD~', 'HEAD', ''])
    await workspace.git('long', 'push', '-q', 'origin', `${revision}:${name}`);
  expect((await workspace.try('long', 'push', 'origin', `HEAD:${name}a`)).code).not.toBe(0);
  expect(execFileSync('git', ['-C', dir, 'for-each-ref', 'refs/heads/a']).toString()).toBe('');
});
