/**
 * The default branch of a repository: a column, and git's `HEAD`, which clones follow. `HEAD` follows the column, so the
 * column is changed first, and a note on disk lets a restart finish what a kill left between the two.
 */

import { AppError } from '../base/errors.ts';
import { onServerOf } from '../cluster/calls.ts';
import type { Git } from '../git/git.ts';
import { PREFIX, setHead } from '../git/objects/refs.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { inFolder } from './folder.ts';
import { measure } from './pushes/measure.ts';
import { lockRepository } from './repositories.ts';

/** The note of a change of the default branch (`recovery.ts`). */
export type BegunDefaultBranch = { kind: 'default-branch' };

/**
 * The language of a branch, which is the repository's once the branch is its default one.
 * @throws AppError 404 naming `defaultBranch`
 */
export const languageOfBranch = onServerOf('languageOfBranch', (services, id, branch: string) =>
  inFolder(services, id, async () => {
    const { refs, language } = await measure(services, id, () => branch);
    if (!refs.has(PREFIX.branch + branch))
      throw new AppError('not_found', `defaultBranch: the repository has no branch ${branch}`, {
        field: 'defaultBranch',
      });
    return language;
  }),
);

/** Makes `HEAD` name the default branch. Under the lock of the row, so that the last of several changes counts. */
export function alignHead({ db, git }: { db: Db; git: Git }, id: string): Promise<void> {
  return inTransaction(db, async (tx) => {
    if (!(await lockRepository(tx, id))) return;
    const select = { defaultBranch: true };
    const row = await tx.repository.findUniqueOrThrow({ where: { id }, select });
    await setHead(git.disk.pathOf(id), row.defaultBranch);
  });
}
