/**
 * Checks out the commit of a job on the worker, which may be on another machine than the repository. A process that has the
 * repository uses its folder. Any other process requests a pack from the server that has it, and never reads the folder itself,
 * because a network file system may show stale data. The server sends only the commit of a job, and only to the attempt that
 * holds the job and has not started yet.
 */

import { Prisma } from '../../prisma/generated/client.ts';
import { AppError, busy, notFound } from '../base/errors.ts';
import { diskLimits } from '../base/hardware.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { ServerUnavailable } from '../cluster/cluster.ts';
import { defineRemoteStream } from '../cluster/streams.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { QueueTimeout } from '../platform/limits/fair-semaphore.ts';
import {
  type CheckoutHead,
  checkout,
  type LocalCheckoutInput,
  receiveCheckout,
  sendCheckout,
} from '../repositories/checkouts.ts';
import type { LargeFiles } from '../repositories/lfs/store/store.ts';

type WorkerInput = LocalCheckoutInput & { attemptId: string; signal: AbortSignal };

/**
 * Creates the folder `dir` with the commit of the attempt's job.
 * @throws AppError with a reason for the user of the job; ServerAway if no server can send the commit now
 */
export type Checkout = (input: WorkerInput) => Promise<void>;

/** For a process that serves requests: uses its own repositories, and requests all others from their servers. */
export function openCheckouts(services: {
  db: Db;
  git: Git;
  log: Logger;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): Checkout {
  const elsewhere = openRemoteCheckouts(services);
  return ({ attemptId, ...input }) =>
    services.cluster.remoteOwner(input.repositoryId)
      ? elsewhere({ attemptId, ...input })
      : checkout(services, input);
}

/** For a process without repositories. */
export function openRemoteCheckouts(services: {
  db: Db;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): Checkout {
  return async ({ attemptId, ...input }) => {
    const { repositoryId, commitSha, signal } = input;
    const member = services.cluster.remoteOwner(repositoryId);
    // The repository was moved to this process since the caller checked; the retry finds it here.
    if (!member) throw new ServerUnavailable('the repository has moved');
    const request = { repositoryId, input: { attemptId, commitSha }, signal };
    await readPack(services, member, request, (head, pack) =>
      receiveCheckout(services, input, head, pack),
    ).catch((error) => {
      // The attempt has changed in the database meanwhile, and the next try reads it again.
      const isChanged = error instanceof AppError && error.code === 'not_found';
      throw isChanged ? new ServerUnavailable('the server does not find the attempt') : error;
    });
  };
}

/** The semaphore key of all checkouts for other machines: together they get at most half of the transfers. */
const TRANSFER_KEY = 'checkouts for workers';

type CheckoutRequest = { attemptId: string; commitSha: string };

const readPack = defineRemoteStream<CheckoutRequest, CheckoutHead>(
  'checkout',
  async (services, repositoryId, { attemptId, commitSha }, { begin, signal }) => {
    const { git } = services;
    const limits = await demandWaitingAttempt(services, { attemptId, repositoryId, commitSha });
    const send = (stopping: AbortSignal) => {
      const until = AbortSignal.any([signal, stopping]);
      const input = { repositoryId, commitSha, signal: until, ...limits };
      return sendCheckout(services, input, begin);
    };
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
 * @returns the limits of the job's disk
 * @throws AppError 404 unless the attempt holds a job with this repository and commit and has not started
 */
async function demandWaitingAttempt(
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
