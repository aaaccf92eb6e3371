/**
 * Checkouts of commits for jobs: from the repository on this machine or, on a machine without the repository, from a
 * pack that another machine sends.
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
import { fetchLargeFiles } from './checkout-large-files.ts';
import { withRepositoryFolder } from './folder.ts';
import type { LargeFiles } from './lfs/store/store.ts';

/** The commit to check out, and the size limits of the checkout. */
type CheckoutInput = CheckoutLimits & {
  repositoryId: string;
  commitSha: string;
  signal?: AbortSignal;
};

export type LocalCheckoutInput = CheckoutInput & {
  dir: string;
  /** If false, the repository has no large files, so the checkout is not searched for LFS pointers. */
  hasLargeFiles: boolean;
};

/**
 * Checks out a commit into `dir`, which must not exist: a separate repository with a detached HEAD and without
 * hooks or credentials. Does not check permissions: `resolveBranch` did when the job was created.
 * @returns the bytes that the checkout takes on disk
 * @throws AppError if the checkout exceeds its limits; Error if the repository or the commit no longer exists.
 */
export function checkOutLocally(
  services: { db: Db; git: Git; log: Logger; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
): Promise<number> {
  const { repositoryId, commitSha, dir, ...options } = input;
  return checkOutThenFetchLargeFiles(services, input, () =>
    withRepositoryFolder(services, repositoryId, (from) =>
      checkOut({ from, sha: commitSha, to: dir, ...options }),
    ),
  );
}

/** Sent before the pack. `fileBytes`: the total size of the files, with LFS pointers in place of large files. */
export type CheckoutHeader = { fileBytes: number };

/**
 * Sends the pack for a checkout on another machine. Once the size is known to be within the limits, calls `begin`,
 * which returns the stream to write to.
 * @throws as `checkout`
 */
export function sendCheckout(
  services: { db: Db; git: Git; log: Logger },
  { repositoryId, commitSha, ...options }: CheckoutInput,
  begin: (head: CheckoutHeader) => Writable,
): Promise<void> {
  return toInputError(
    withRepositoryFolder(services, repositoryId, async (from) => {
      const source = { from, sha: commitSha, ...options };
      const fileBytes = await measure(source);
      await sendPack(source, begin({ fileBytes }));
    }),
  );
}

/**
 * Like `checkout`, on a machine without the repository.
 * @throws as `checkout`, and errors of `pack`
 */
export function receiveCheckout(
  services: { db: Db; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
  { fileBytes }: CheckoutHeader,
  pack: AsyncIterable<Uint8Array>,
): Promise<number> {
  const { commitSha, dir, ...options } = input;
  return checkOutThenFetchLargeFiles(services, input, () =>
    checkOutReceived({ sha: commitSha, to: dir, fileBytes, pack, ...options }),
  );
}

/** Every machine reads large files directly from storage. `makeCheckout` returns the size of the checkout. */
async function checkOutThenFetchLargeFiles(
  services: { db: Db; largeFiles: LargeFiles },
  input: LocalCheckoutInput,
  makeCheckout: () => Promise<number>,
): Promise<number> {
  const checkOutAndFetch = async () => {
    const bytes = await makeCheckout();
    return input.hasLargeFiles ? fetchLargeFiles(services, { ...input, bytes }) : bytes;
  };
  return toInputError(checkOutAndFetch());
}

/** Converts `CheckoutTooLarge` to an error that the user of the job sees. */
export async function toInputError<T>(checkingOut: Promise<T>): Promise<T> {
  try {
    return await checkingOut;
  } catch (error) {
    // Null, because no input field is at fault.
    throw error instanceof CheckoutTooLarge ? invalid(null, error.message) : error;
  }
}
