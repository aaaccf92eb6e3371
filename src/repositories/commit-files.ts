/**
 * Files of a commit that jobs take as inputs: a file or a folder, without the history and without the repository around it. They
 * are sent as a tar of `git archive`, which reads only the objects below the path.
 */
import type { Readable } from 'node:stream';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { type CheckoutLimits, measure } from '../git/disk/checkout.ts';
import type { Git } from '../git/git.ts';
import { locate } from '../git/objects/resolve.ts';
import { GitError, startGit } from '../git/processes/run.ts';
import type { Db } from '../platform/database/client.ts';
import { locateAtRef } from './browsing/contents.ts';
import { toInputError } from './checkouts.ts';
import { defineFolderTask, withRepositoryFolder } from './folder.ts';

export { replacePointersInTar } from './browsing/archive-tar.ts';

type FilesAtRef = { defaultBranch: string; ref: string | null; path: string };

/**
 * Finds the commit of a branch, tag or id, and what it has at a path; null if there is no such commit. Without a `ref`: `main` if
 * that branch exists, else the default branch.
 */
export const locateFiles = defineFolderTask(
  'locateFiles',
  async ({ git }, dir, { defaultBranch, ref, path }: FilesAtRef) => {
    return git.objects.use(dir, async (objects) => {
      const found = await locateAtRef(objects, { defaultBranch }, ref, path);
      if (!found) return null;
      const { commit } = found;
      const [root = null] = path === '' ? await objects.info([`${commit}^{tree}`]) : [];
      return { ref: found.ref, commitSha: commit, object: root ?? found.object };
    });
  },
);

type FilesToRead = CheckoutLimits & {
  repositoryId: string;
  commitSha: string;
  path: string;
  signal: AbortSignal;
};

/**
 * Passes the files of a commit at `path` to `use`, as a tar with paths from the root of the repository. An empty path is the root.
 * Large files are pointers.
 * @throws AppError 400 if they exceed the limits, 409 if the commit is gone; GitError if objects are missing; errors of `use`
 */
export function readFiles(
  services: { db: Db; git: Git; log: Logger },
  { repositoryId, commitSha, path, signal, maxBytes, maxFiles }: FilesToRead,
  use: (tar: Readable) => Promise<void>,
): Promise<void> {
  const read = withRepositoryFolder(services, repositoryId, async (dir) => {
    const found = await services.git.objects.use(dir, (objects) =>
      locate(objects, commitSha, path),
    );
    if (!found)
      throw new AppError('conflict', `the commit ${commitSha} is no longer in the repository`);
    // A few objects can be millions of folders, through which `git archive` would search for files.
    if (found.object?.type !== 'blob')
      await measure({ from: dir, sha: `${commitSha}:${path}`, signal, maxBytes, maxFiles });
    // In a bare repository there are no attributes of a work tree. Those of the commit would leave files out or change them.
    const args = ['archive', '--format=tar', '--worktree-attributes', commitSha];
    if (path !== '') args.push('--', path);
    using process = await startGit(args, { dir, signal, env: { GIT_LITERAL_PATHSPECS: '1' } });
    process.stdin.end();
    await use(process.stdout);
    const ending = await process.ended;
    if (ending.code !== 0) throw new GitError('archive', ending);
  });
  return toInputError(read);
}
