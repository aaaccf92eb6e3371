/** Invariants of repositories: git fsck finds no error, and the database agrees with the disk. */
import { execFile } from 'node:child_process';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { eventually } from '../eventually.ts';
import type { TestApp } from '../harness.ts';

const run = promisify(execFile);

/** `ids`: the repositories that must exist. Waits for operations in progress to end. */
export async function expectConsistent(app: TestApp, ids: readonly string[] = []): Promise<void> {
  const { db, git, pushes } = app.app.services;
  await eventually(async () => {
    expect(pushes.waiting, 'pushes that are not recorded').toBe(0);
    expect(await git.disk.pendingOperations(), 'notes of what was begun').toEqual([]);
    for (const turns of [git.transfers, git.anonymousTransfers])
      expect(turns.counts).toEqual({ running: 0, waiting: 0 });
  });
  const rows = await db.repository.findMany({
    select: { id: true, branchCount: true, tagCount: true, defaultBranch: true },
  });
  for (const id of ids) expect(rows.map((row) => row.id)).toContain(id);
  for (const row of rows) {
    const dir = git.disk.pathOf(row.id);
    const { stdout, stderr } = await run('git', ['fsck', '--strict', '--no-dangling'], {
      cwd: dir,
      env: { ...process.env, GIT_DIR: dir },
    });
    expect(`${stdout}${stderr}`.replace(/^notice:.*\n/gm, '')).toBe('');
    const refs = (
      await run('git', ['--git-dir', dir, 'for-each-ref', '--format=%(refname)'])
    ).stdout
      .split('\n')
      .filter(Boolean);
    const among = (prefix: string) => refs.filter((ref) => ref.startsWith(prefix)).length;
    expect([row.branchCount, row.tagCount], `${row.id}: ${refs.join(' ')}`).toEqual([
      among('refs/heads/'),
      among('refs/tags/'),
    ]);
    const head = (await run('git', ['--git-dir', dir, 'symbolic-ref', 'HEAD'])).stdout.trim();
    expect(head).toBe(`refs/heads/${row.defaultBranch}`);
    await eventually(async () =>
      expect((await readdir(`${dir}/objects`)).filter((n) => n.startsWith('tmp_'))).toEqual([]),
    );
  }
  // No folder without a row.
  const root = `${app.config.dataDir}/repositories`;
  const found = (await readdir(root, { recursive: true }))
    .filter((path) => /^..\/..\/[^/]+\.git$/.test(path))
    .map((path) => path.slice(6, -4));
  expect(found.sort()).toEqual(rows.map(({ id }) => id).sort());
}

/** No git process has this data folder as an argument or works in it, except pooled ones, which exit when they are idle. */
export function expectNoGit(dataDir: string): Promise<void> {
  return eventually(async () => expect(await processesOf(dataDir)).toEqual([]));
}

async function processesOf(dataDir: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name))) {
    const read = (file: string) => readFile(`/proc/${pid}/${file}`, 'latin1').catch(() => '');
    const command = (await read('cmdline')).replaceAll('\0', ' ');
    if (!command.startsWith('git ') || command.includes('cat-file')) continue;
    const folder = await readlink(`/proc/${pid}/cwd`).catch(() => '');
    if (`${await read('environ')}${folder}`.includes(dataDir)) found.push(command);
  }
  return found;
}
