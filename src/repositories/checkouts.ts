/**
 * Checkouts of commits for jobs, made from the folder of a repository or from a pack sent to a machine without
 * it.
 */

import type { Writable } from 'node:stream';
import { invalid } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import {
  type CheckoutLimits,
  CheckoutTooLarge,
  checkOut,
  checkOutReceived,
  measure,
  sendPack,
} from '../git/disk/checkout.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { withRepositoryFolder } from './folder.ts';
import { fetchLargeFiles } from './large-checkout.ts';
import type { LargeFiles } from './lfs/store/store.ts';

/** The commit to check out, and the size limits of the checkout. */
type CheckoutInput = CheckoutLimits & {
  repositoryId: string;
  commitSha: string;
  signal?: AbortSignal;
};

/** `hasLargeFiles`: if false, the checkout is not searched for pointers. */
export type LocalCheckoutInput = CheckoutInput & { dir: string; hasLargeFiles: boolean };

/**
 * Checks out a commit into `dir`, which must not exist: a separate repository with a detached HEAD and without
 * hooks or credentials. The permission was checked when the job was created (`resolveBranch`).
 * @throws AppError if the checkout exceeds its limits; Error if the repository or the commit no longer exists.
 */
export function checkout(
  services: { db: Db; git: Git; log: Logger; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
): Promise<void> {
  const { repositoryId, commitSha, dir, ...limits } = input;
  return withLargeFiles(services, input, () =>
    withRepositoryFolder(services, repositoryId, (from) =>
      checkOut({ from, sha: commitSha, to: dir, ...limits }),
    ),
  );
}

/** Sent before the pack to the machine that makes the checkout. */
export type CheckoutHead = { fileBytes: number };

/**
 * Sends the pack for a checkout on another machine. Calls `begin` for the output once the size is known to be
 * within the limits.
 * @throws as `checkout`
 */
export function sendCheckout(
  services: { db: Db; git: Git; log: Logger },
  { repositoryId, commitSha, ...limits }: CheckoutInput,
  begin: (head: CheckoutHead) => Writable,
): Promise<void> {
  return reportTooLarge(
    withRepositoryFolder(services, repositoryId, async (from) => {
      const source = { from, sha: commitSha, ...limits };
      const fileBytes = await measure(source);
      await sendPack(source, begin({ fileBytes }));
    }),
  );
}

/** `checkout` on a machine without the repository. @throws as `checkout`, and errors of `pack` */
export function receiveCheckout(
  services: { db: Db; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
  { fileBytes }: CheckoutHead,
  pack: AsyncIterable<Uint8Array>,
): Promise<void> {
  const { commitSha, dir, ...limits } = input;
  return withLargeFiles(services, input, () =>
    checkOutReceived({ sha: commitSha, to: dir, fileBytes, pack, ...limits }),
  );
}

/** Makes the checkout, then fetches its large files, which every machine reads directly from storage. */
async function withLargeFiles(
  services: { db: Db; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
  checkOut: () => Promise<number>,
): Promise<void> {
  const checkOutAndFetch = async () => {
    const bytes = await checkOut();
    if (input.hasLargeFiles) await fetchLargeFiles(services, { ...input, bytes });
  };
  await reportTooLarge(checkOutAndFetch());
}

async function reportTooLarge(running: Promise<void>): Promise<void> {
  try {
    await running;
  } catch (error) {
    throw error instanceof CheckoutTooLarge ? invalid(null, error.message) : error;
  }
}
