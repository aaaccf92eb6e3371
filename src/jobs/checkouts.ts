/**
 * The commit of a job on its way to the worker, which may be on another machine than the repository.
 *
 * A process that has the repository checks it out of its folder. Any other asks the server that has it for a pack, and
 * never reads the folder itself: a network file system may show it what was there seconds ago. The server sends
 * nothing but the commit of a job, to the attempt that holds the job and has not started yet.
 */

import { Prisma } from '../../prisma/generated/client.ts';
import { AppError, busy, notFound } from '../base/errors.ts';
import { diskRoom } from '../base/hardware.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { ServerAway } from '../cluster/cluster.ts';
import { streamOfServer } from '../cluster/streams.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { QueueTimeout } from '../platform/limits/fair-semaphore.ts';
import {
  type CheckoutHead,
  checkout,
  receiveCheckout,
  sendCheckout,
  type WholeInput,
} from '../repositories/checkouts.ts';
import type { LargeFiles } from '../repositories/lfs/store/store.ts';

type WorkerInput = WholeInput & { attemptId: string; signal: AbortSignal };

/**
 * Makes the folder `dir`, with the commit of the attempt's job.
 * @throws AppError with the reason for the job's user; ServerAway when no server can send the commit at the moment
 */
export type Checkout = (input: WorkerInput) => Promise<void>;

/** For a process that answers requests: what it has itself comes out of its folder. */
export function openCheckouts(services: {
  db: Db;
  git: Git;
  log: Logger;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): Checkout {
  const elsewhere = openRemoteCheckouts(services);
  return ({ attemptId, ...input }) =>
    services.cluster.elsewhere(input.repositoryId)
      ? elsewhere({ attemptId, ...input })
      : checkout(services, input);
}

/** For a process that has no repositories. */
export function openRemoteCheckouts(services: {
  db: Db;
  cluster: Cluster;
  largeFiles: LargeFiles;
}): Checkout {
  return async ({ attemptId, ...input }) => {
    const { repositoryId, commitSha, signal } = input;
    const member = services.cluster.elsewhere(repositoryId);
    // It has come to this process since it was looked for elsewhere.
    if (!member) throw new ServerAway('the repository has moved');
    const asked = { repositoryId, input: { attemptId, commitSha }, signal };
    await readPack(services, member, asked, (head, pack) =>
      receiveCheckout(services, input, head, pack),
    ).catch((error) => {
      // What stands in the database has changed: the next try looks there again.
      const changed = error instanceof AppError && error.code === 'not_found';
      throw changed ? new ServerAway('the server does not find the attempt') : error;
    });
  };
}

/** All checkouts of other machines together have half of the transfers at most. */
const TRANSFER_KEY = 'checkouts for workers';

type CheckoutRequest = { attemptId: string; commitSha: string };

const readPack = streamOfServer<CheckoutRequest, CheckoutHead>(
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
      .take(() => git.tasks.run(send), { key: TRANSFER_KEY, signal })
      .catch((error) => {
        throw error instanceof QueueTimeout
          ? busy('Too many fetches and pushes are under way')
          : error;
      });
  },
);

/**
 * What the disk of the job has room for.
 * @throws AppError 404 unless the attempt holds a job of this commit and repository, and waits for them
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
  return diskRoom(attempt.job.diskGb);
}
