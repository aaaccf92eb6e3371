/**
 * The default branch is stored twice: in a column, and as git's `HEAD`, which clones follow. The column is
 * changed first, and a note on disk lets the next start update `HEAD` if the server is killed between the two.
 */

import { AppError } from '../base/errors.ts';
import { defineRemoteCall } from '../cluster/calls.ts';
import type { Git } from '../git/git.ts';
import { REF_PREFIX, setHead } from '../git/objects/refs.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { withRepositoryFolder } from './folder.ts';
import { measureRepository } from './pushes/measure.ts';
import { lockRepository } from './repositories.ts';

/** The note on disk for a change of the default branch (`recovery.ts`). */
export type DefaultBranchNote = { kind: 'default-branch' };

/**
 * Detects the language of a branch that is about to become the default branch.
 * @throws AppError 404 naming `defaultBranch`
 */
export const detectBranchLanguage = defineRemoteCall(
  'languageOfBranch',
  (services, id, branch: string) =>
    withRepositoryFolder(services, id, async () => {
      const { refs, language } = await measureRepository(services, id, () => branch);
      if (!refs.has(REF_PREFIX.branch + branch))
        throw new AppError('not_found', `defaultBranch: the repository has no branch ${branch}`, {
          field: 'defaultBranch',
        });
      return language;
    }),
);

/**
 * Points `HEAD` to the default branch. Locks the row, so that the last of several concurrent changes wins.
 */
export function syncHead({ db, git }: { db: Db; git: Git }, id: string): Promise<void> {
  return inTransaction(db, async (tx) => {
    if (!(await lockRepository(tx, id))) return;
    const select = { defaultBranch: true };
    const row = await tx.repository.findUniqueOrThrow({ where: { id }, select });
    await setHead(git.disk.pathOf(id), row.defaultBranch);
  });
}
