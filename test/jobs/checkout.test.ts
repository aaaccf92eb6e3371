/** Limits on the size of a job's checkout. */
import { execFileSync } from 'node:child_process';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { existsSync } from 'node:fs';
import { lstat, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import {
  CheckoutTooLarge,
  checkOut,
  checkOutReceived,
  sendPack,
} from '../../src/git/disk/checkout.ts';
import { GIT_STARTED, type StartedGit } from '../../src/platform/processes/git-started.ts';
import { eventually } from '../support/eventually.ts';
import { startApp } from '../support/harness.ts';
import { job, submit } from '../support/submit.ts';

async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'loam-checkout-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true }) };
}

const PERSON = { name: 'a', email: 'a@example.com', date: '1700000000 +0000' };

function git(dir: string, args: string[], input = ''): string {
  const env = {
    PATH: process.env.PATH,
    GIT_DIR: dir,
    ...Object.fromEntries(
      ['AUTHOR', 'COMMITTER'].flatMap((who) =>
        Object.entries(PERSON).map(([key, value]) => [`GIT_${who}_${key.toUpperCase()}`, value]),
      ),
    ),
  };
  return execFileSync('git', args, { env, input, encoding: 'utf8' }).trim();
}

/** A commit whose tree contains the same subtree `width` times, nested `depth` levels down to a blob. */
function bomb(
  dir: string,
  { width, depth, content = 'x' }: { width: number; depth: number; content?: string },
) {
  let entry = `100644 blob ${git(dir, ['hash-object', '-w', '--stdin'], content)}`;
  for (let level = 0; level < depth; level++) {
    const lines = Array.from({ length: width }, (_, i) => `${entry}\tname${i}`);
    entry = `040000 tree ${git(dir, ['mktree'], lines.join('\n'))}`;
  }
  return git(dir, ['commit-tree', '-m', 'x', entry.split(' ')[2] as string]);
}

test('a checkout of 10^20 files from 22 objects is refused before any file is written', async () => {
  await using at = await folder();
  const from = join(at.path, 'bare.git');
  git(from, ['init', '-q', '--bare']);
  const sha = bomb(from, { width: 10, depth: 20 });
  expect(git(from, ['count-objects'])).toMatch(/^22 objects/);
  const to = join(at.path, 'to');
  const check = (maxBytes: number, maxFiles: number) =>
    checkOut({ from, sha, to, maxBytes, maxFiles });
  // The tree walk stops at the limit. A walk of all these files would never end.
  await expect(check(2 ** 50, 1e9)).rejects.toThrow(
    new CheckoutTooLarge('The checkout has more than 1000000 files and folders'),
  );
  await expect(check(2 ** 50, 2_000)).rejects.toThrow(/more than 2000 files/);
  // A file of one byte takes a block on the disk.
  await expect(check(2 ** 30, 1e9)).rejects.toThrow(
    new CheckoutTooLarge("The checkout is larger than the job's disk of 1 GB"),
  );
  expect(existsSync(to)).toBe(false);
});

test('large files and long names are counted too', async () => {
  await using at = await folder();
  const from = join(at.path, 'bare.git');
  git(from, ['init', '-q', '--bare']);
  const large = bomb(from, { width: 3, depth: 1, content: 'x'.repeat(2 ** 20) });
  const to = join(at.path, 'to');
  const three = { from, sha: large, to, maxFiles: 100 };
  await expect(checkOut({ ...three, maxBytes: 3 * 2 ** 20 - 1 })).rejects.toThrow(CheckoutTooLarge);
  await expect(checkOut({ ...three, maxBytes: 2 ** 50, room: 3 * 2 ** 20 - 1 })).rejects.toThrow(
    new CheckoutTooLarge("The checkout is larger than the free space on the server's disk"),
  );
  await checkOut({ ...three, maxBytes: 4 * 2 ** 20, room: 4 * 2 ** 20 });
  expect(await readdir(to)).toEqual(['.git', 'name0', 'name1', 'name2']);
  // The size of a commit is cached, and compared with the limits of each job.
  const again = { ...three, to: join(at.path, 'again') };
  await expect(checkOut({ ...again, maxBytes: 3 * 2 ** 20 - 1 })).rejects.toThrow(CheckoutTooLarge);
  await expect(checkOut({ ...again, maxFiles: 2, maxBytes: 2 ** 50 })).rejects.toThrow(
    /more than 2 files/,
  );
  expect(existsSync(again.to)).toBe(false);
});

/** A commit of these lines, in the format of `git mktree`. */
function commitOf(dir: string, ...lines: string[]) {
  const tree = git(dir, ['mktree', '--missing'], lines.join('\n'));
  return { tree, sha: git(dir, ['commit-tree', '-m', 'x', tree]) };
}

test('a checkout is a complete repository with the committed files', async () => {
  await using at = await folder();
  const from = join(at.path, 'bare.git');
  git(from, ['init', '-q', '--bare']);
  const blob = (text: string) => git(from, ['hash-object', '-w', '--stdin'], text);
  const [one, empty, large] = [blob('one\n'), blob(''), blob('x'.repeat(70_000))];
  const below = commitOf(from, `100755 blob ${one}\trün me`, `100644 blob ${large}\tlarge`);
  const { sha } = commitOf(
    from,
    `100644 blob ${one}\t.gitignore`,
    `100644 blob ${empty}\tempty`,
    `100644 blob ${one}\ta.b`,
    `040000 tree ${below.tree}\ta`,
    `040000 tree ${below.tree}\tz`,
  );
  const to = join(at.path, 'to');
  const options = { from, sha, to, maxFiles: 100, maxBytes: 2 ** 30 };
  for (const limits of [{ maxFiles: 8 }, { maxBytes: 60_000 }])
    await expect(checkOut({ ...options, ...limits })).rejects.toThrow(CheckoutTooLarge);
  expect(existsSync(to)).toBe(false);
  const bytes = await checkOut(options);
  expect(bytes).toBeGreaterThan(2 * 70_000);
  // A second checkout of the same commit, whose size is not computed again.
  const again = join(at.path, 'again');
  expect(await checkOut({ ...options, to: again })).toBe(bytes);

  const inside = (dir: string, ...args: string[]) =>
    execFileSync('git', args, { cwd: dir, encoding: 'utf8' }).trim();
  for (const dir of [to, again]) {
    expect(inside(dir, 'status', '--porcelain', '--branch')).toBe('## HEAD (no branch)');
    expect(inside(dir, 'diff-files', '--name-only')).toBe('');
    expect(inside(dir, 'rev-parse', 'HEAD')).toBe(sha);
    inside(dir, 'fsck', '--full', '--strict');
    inside(dir, 'verify-pack', ...(await packsOf(dir)));
    const files = inside(dir, 'ls-files', '-z').split('\0').filter(Boolean);
    expect(files).toHaveLength(7);
    for (const file of files) {
      const content = execFileSync('git', ['show', `${sha}:${file}`], { cwd: from });
      expect(await readFile(join(dir, file))).toEqual(content);
      const isProgram = ((await lstat(join(dir, file))).mode & 0o100) > 0;
      expect(isProgram).toBe(file.endsWith('rün me'));
    }
  }
});

async function packsOf(dir: string): Promise<string[]> {
  const packs = join(dir, '.git/objects/pack');
  return (await readdir(packs)).filter((name) => name.endsWith('.idx')).map((n) => join(packs, n));
}

test('a pack from another server may end after git has read it', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-received-'));
  const from = join(folder, 'from');
  execFileSync('git', ['init', '-q', '--bare', from]);
  const commit = `commit refs/heads/main\ncommitter a <a@b.c> 1 +0000\ndata 1\nx\nM 644 inline a\ndata 2\na\n\n`;
  execFileSync('git', ['-C', from, 'fast-import', '--quiet'], { input: commit });
  const sha = execFileSync('git', ['-C', from, 'rev-parse', 'main'], { encoding: 'utf8' }).trim();
  const sent = new PassThrough();
  await sendPack({ from, sha }, sent);
  const indexing = Promise.withResolvers<unknown>();
  const note = (started: unknown) => {
    const { args, ended } = started as StartedGit;
    if (args[0] === 'index-pack') ended.then(indexing.resolve);
  };
  subscribe(GIT_STARTED, note);
  async function* pack() {
    // In chunks, as written by git.
    while (sent.readableLength > 0) yield sent.read() as Buffer;
    await indexing.promise;
  }
  const to = join(folder, 'to');
  const limits = { maxBytes: 2 ** 30, maxFiles: 10 };
  await checkOutReceived({ sha, to, ...limits, fileBytes: 4_096, pack: pack() });
  unsubscribe(GIT_STARTED, note);
  expect(await readFile(join(to, 'a'), 'utf8')).toBe('a\n');
  await rm(folder, { recursive: true });
});

test('a job with a too large checkout fails with the reason in its log', async () => {
  await using app = await startApp();
  const ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'bomb', auto_init: true });
  const dir = app.app.services.git.disk.pathOf(body.id);
  git(dir, ['update-ref', 'refs/heads/main', bomb(dir, { width: 10, depth: 6 })]);
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/bomb',
    name: 'bomb',
    command: 'true',
    diskGb: 1,
  });
  const over = await eventually(async () => {
    const now = await job(ada, 'ada', 'bomb');
    expect(now.status).toBe('FAILED');
    return now;
  });
  expect(over).toMatchObject({ exitCode: 125, totalCost: '0.00' });
  const { body: log } = await ada.get('/ada/job/bomb/logs');
  expect(log.lines.at(-1).message).toBe('The checkout has more than 65536 files and folders');
});
