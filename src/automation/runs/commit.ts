/** Reads what a run needs of a commit, on the server that has the repository. */

import { MAX_FILE_BYTES } from '../../base/yaml.ts';
import { parseCommit } from '../../git/objects/commit.ts';
import { changedPaths } from '../../git/objects/walk.ts';
import { defineFolderTask } from '../../repositories/repositories.ts';
import { JOBS_FILE } from '../file-schema.ts';

export type RunCommit = {
  sha: string;
  /** The first line of the message. */
  title: string;
  /** The text of the file of jobs, or its beginning; null if the commit has none. */
  text: string | null;
};

const MAX_TITLE = 200;
const MAX_COMMIT_BYTES = 64 * 1024;

/** @param revision the id of a commit or of an annotated tag, or the full name of a ref; null if it is no commit */
export const readRunCommit = defineFolderTask(
  'readRunCommit',
  async ({ git }, dir, revision: string): Promise<RunCommit | null> =>
    git.objects.use(dir, async (objects) => {
      const [commit] = await objects.readBeginning([`${revision}^{commit}`], MAX_COMMIT_BYTES);
      if (!commit) return null;
      // One byte more than allowed, so that a file that is too large is refused.
      const name = `${commit.oid}:${JOBS_FILE}`;
      const [file] = await objects.readBeginning([name], MAX_FILE_BYTES + 1);
      const { message } = parseCommit(commit.oid, commit.data);
      return {
        sha: commit.oid,
        title: (message.trimStart().split('\n')[0] ?? '')
          .slice(0, MAX_TITLE)
          .replaceAll(/[\p{Cc}\p{Cs}]/gu, '?'),
        text: file?.type === 'blob' ? file.data.toString('utf8') : null,
      };
    }),
);

/** Finds the id of the commit without reading any contents. @param revision as for `readRunCommit` */
export const findRunCommitId = defineFolderTask(
  'findRunCommitId',
  async ({ git }, dir, revision: string): Promise<string | null> => {
    const [commit] = await git.objects.use(dir, (objects) =>
      objects.info([`${revision}^{commit}`]),
    );
    return commit?.oid ?? null;
  },
);

type Change = {
  before: string | null;
  after: string;
  /** The branch to compare a new branch with; null for the default branch itself. */
  base: string | null;
};

/**
 * Lists the files that differ between two commits. For a new branch: from the commit where it left the default branch, or all
 * files. Null if there are too many.
 */
export const readChangedPaths = defineFolderTask(
  'readChangedPaths',
  async ({ git }, dir, { before, after, base }: Change): Promise<string[] | null> => {
    let from = before;
    if (from === null && base !== null) {
      const [tip] = await git.objects.use(dir, (objects) =>
        objects.info([`refs/heads/${base}^{commit}`]),
      );
      from = tip ? await git.diffs.mergeBase(dir, tip.oid, after) : null;
    }
    return git.readSlots.run(() => changedPaths(dir, from, after), { key: dir });
  },
);
