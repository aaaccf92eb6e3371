/**
 * Checks out the commit of a job on the worker, which may be on another machine than the repository. A process that owns the
 * repository reads the repository's folder. Any other process requests a pack from the server that owns the repository, and
 * never reads the folder, because a network file system may show stale data. That server only sends the commit of a job, and
 * only to the attempt that holds the job and has not started yet.
 */

import { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, busy, notFound } from '../../base/errors.ts';
import { diskLimits } from '../../base/hardware.ts';
import type { Logger } from '../../base/log.ts';
import { type Cluster, ServerUnavailable } from '../../cluster/cluster.ts';
import { defineRemoteStream } from '../../cluster/streams.ts';
import type { Git } from '../../git/git.ts';
import type { Db } from '../../platform/database/client.ts';
import { QueueTimeout } from '../../platform/limits/fair-semaphore.ts';
import {
  type CheckoutHeader,
  checkOutLocally,
  type LocalCheckoutInput,
  receiveCheckout,
  sendCheckout,
} from '../../repositories/checkouts.ts';
import type { LargeFiles } from '../../repositories/lfs/store/store.ts';

type CheckoutInput = LocalCheckoutInput & { attemptId: string; signal: AbortSignal };

/**
 * Creates the folder `dir` with the commit of the attempt's job.
 * @returns the bytes that it takes on disk
 * @throws AppError with a reason for the user of the job; ServerUnavailable if no server can send the commit
 *   now
 */
export type CheckOutJob = (input: CheckoutInput) => Promise<number>;

/** For a process that owns repositories: checks out its own repositories, and requests all others from their servers. */
export function createCheckout(services: {
  db: Db;
  git: Git;
  log: Logger;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): CheckOutJob {
  const checkOutRemotely = createRemoteCheckout(services);
  return ({ attemptId, ...input }) =>
    services.cluster.remoteOwner(input.repositoryId)
      ? checkOutRemotely({ attemptId, ...input })
      : checkOutLocally(services, input);
}

/** For a process without repositories: requests all of them from their servers. */
export function createRemoteCheckout(services: {
  db: Db;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): CheckOutJob {
  return async ({ attemptId, ...input }) => {
    const { repositoryId, commitSha, signal } = input;
    const owner = services.cluster.remoteOwner(repositoryId);
    // The repository was moved to this process after `createCheckout` had looked for its owner. The retry finds it here.
    if (!owner) throw new ServerUnavailable('the repository has moved');
    const request = { repositoryId, input: { attemptId, commitSha }, signal };
    let bytes = 0;
    await checkoutStream(services, owner, request, async (head, pack) => {
      bytes = await receiveCheckout(services, input, head, pack);
    }).catch((error) => {
      // The attempt was changed in the database in the meantime. The next try reads it again.
      const isAttemptNotFound = error instanceof AppError && error.code === 'not_found';
      throw isAttemptNotFound
        ? new ServerUnavailable('the server does not find the attempt')
        : error;
    });
    return bytes;
  };
}

/** The semaphore key of all checkouts for other machines. A key gets at most half of the transfers. */
const TRANSFER_KEY = 'checkouts for workers';

type CheckoutRequest = { attemptId: string; commitSha: string };

/** Both sides of the request between two servers. The function is the sending side. */
const checkoutStream = defineRemoteStream<CheckoutRequest, CheckoutHeader>(
  'checkout',
  async (services, repositoryId, { attemptId, commitSha }, { begin, signal }) => {
    const { git } = services;
    const request = { attemptId, repositoryId, commitSha };
    const limits = await readLimitsOfWaitingAttempt(services, request);
    const send = (stopping: AbortSignal) => {
      const stopped = AbortSignal.any([signal, stopping]);
      const input = { repositoryId, commitSha, signal: stopped, ...limits };
      return sendCheckout(services, input, begin);
    };
    // The semaphore limits the transfers; `git.tasks` makes the shutdown wait for them, and aborts them after a timeout.
    await git.transfers
      .run(() => git.tasks.run(send), { key: TRANSFER_KEY, signal })
      .catch((error) => {
        throw error instanceof QueueTimeout
          ? busy('Too many fetches and pushes are under way')
          : error;
      });
  },
);

/**
 * Checks that an attempt waits for a commit.
 * @returns the limits of the job's disk
 * @throws AppError 404 unless the attempt holds a job with this repository and commit and has not started
 */
async function readLimitsOfWaitingAttempt(
  { db }: { db: Db },
  { attemptId, repositoryId, commitSha }: CheckoutRequest & { repositoryId: string },
): Promise<{ maxBytes: number; maxFiles: number }> {
  const attempt = await db.jobAttempt.findFirst({
    where: {
      id: attemptId,
      endedAt: null,
      handle: { equals: Prisma.DbNull },
      job: { attemptId, repositoryId, commitSha },
    },
    select: { job: { select: { diskGb: true } } },
  });
  if (!attempt) throw notFound('Attempt');
  return diskLimits(attempt.job.diskGb);
}
