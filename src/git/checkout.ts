/**
 * A fresh checkout of one commit, for a job to work in.
 *
 * It is a repository of its own with that commit alone, as `git clone --depth 1` makes: two processes and
 * the cost of one tree, whatever the history holds. Objects are copied, neither linked nor borrowed: whoever
 * owns the checkout could write through a hard link into the pack that everybody reads.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { git } from './run.ts';

const TIMEOUT_MS = 10 * 60_000;

export type CheckoutOptions = {
  /** The bare repository. */
  from: string;
  /** A full commit id. */
  sha: string;
  /** Made by us; its parent must exist. */
  to: string;
  signal?: AbortSignal;
};

/**
 * Checks `sha` out with HEAD detached. No hooks run, no filters, and no credentials are left in it.
 * @throws GitError when the commit or one of its objects is missing; Error when `to` exists.
 */
export async function checkOut({ from, sha, to, signal }: CheckoutOptions): Promise<void> {
  const gitdir = join(to, '.git');
  await mkdir(to);
  for (const folder of ['objects/info', 'objects/pack', 'refs/heads', 'refs/tags'])
    await mkdir(join(gitdir, folder), { recursive: true });
  await writeFile(join(gitdir, 'HEAD'), `${sha}\n`);
  await writeFile(join(gitdir, 'shallow'), `${sha}\n`);
  await writeFile(
    join(gitdir, 'config'),
    '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n',
  );
  const limits = { signal, timeoutMs: TIMEOUT_MS };
  await git(
    // Deltas are copied as they lie, none are looked for: speed counts here, not size.
    ['pack-objects', '--revs', '--quiet', '--window=0', join(gitdir, 'objects/pack/pack')],
    { ...limits, dir: from, input: `--shallow ${sha}\n${sha}\n` },
  );
  await git(['reset', '--hard', '--quiet'], { ...limits, cwd: to });
}
