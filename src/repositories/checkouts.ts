/** Checkouts of commits for jobs, out of the folder of a repository, or sent to a machine that does not have it. */

import type { Writable } from 'node:stream';
import { invalid } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import {
  CheckoutTooLarge,
  checkOut,
  checkOutReceived,
  type Limits,
  measure,
  sendPack,
} from '../git/disk/checkout.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { inFolder } from './folder.ts';
import { fetchLargeFiles } from './large-checkout.ts';
import type { LargeFiles } from './lfs/store/store.ts';

/** Which commit, and what a checkout of it may take of the disk. */
export type CheckoutInput = Limits & {
  repositoryId: string;
  commitSha: string;
  signal?: AbortSignal;
};

/** `hasLargeFiles`: whether the repository has any, so that a checkout may be looked through for pointers to them. */
export type WholeInput = CheckoutInput & { dir: string; hasLargeFiles: boolean };

/**
 * A fresh checkout of a commit in `dir`, which must not exist: a repository of its own, HEAD detached,
 * without hooks or credentials. Whether the job may have it was decided when it was created (`resolveBranch`).
 * @throws AppError when it takes more than it may; Error when the repository or the commit is gone.
 */
export function checkout(
  services: { db: Db; git: Git; log: Logger; largeFiles: LargeFiles },
  input: WholeInput,
): Promise<void> {
  const { repositoryId, commitSha, dir, ...limits } = input;
  return withLargeFiles(services, input, () =>
    inFolder(services, repositoryId, (from) =>
      checkOut({ from, sha: commitSha, to: dir, ...limits }),
    ),
  );
}

/** What another machine needs for such a checkout, besides the pack of its objects. */
export type CheckoutHead = { fileBytes: number };

/**
 * The pack for a checkout on another machine, into what `begin` gives when it is known to be small enough.
 * @throws as `checkout`
 */
export function sendCheckout(
  services: { db: Db; git: Git; log: Logger },
  { repositoryId, commitSha, ...limits }: CheckoutInput,
  begin: (head: CheckoutHead) => Writable,
): Promise<void> {
  return sayTooLarge(
    inFolder(services, repositoryId, async (from) => {
      const source = { from, sha: commitSha, ...limits };
      const fileBytes = await measure(source);
      await sendPack(source, begin({ fileBytes }));
    }),
  );
}

/** `checkout` on a machine without the repository. @throws as `checkout`, and what `pack` throws */
export function receiveCheckout(
  services: { db: Db; largeFiles: LargeFiles },
  input: WholeInput,
  { fileBytes }: CheckoutHead,
  pack: AsyncIterable<Uint8Array>,
): Promise<void> {
  const { commitSha, dir, ...limits } = input;
  return withLargeFiles(services, input, () =>
    checkOutReceived({ sha: commitSha, to: dir, fileBytes, pack, ...limits }),
  );
}

/** The checkout, and then its large files, which any machine reads from storage itself. */
async function withLargeFiles(
  services: { db: Db; largeFiles: LargeFiles },
  input: WholeInput,
  checkOut: () => Promise<number>,
): Promise<void> {
  const fillIn = async () => {
    const bytes = await checkOut();
    if (input.hasLargeFiles) await fetchLargeFiles(services, { ...input, bytes });
  };
  await sayTooLarge(fillIn());
}

async function sayTooLarge(checkingOut: Promise<void>): Promise<void> {
  try {
    await checkingOut;
  } catch (error) {
    throw error instanceof CheckoutTooLarge ? invalid(null, error.message) : error;
  }
}
