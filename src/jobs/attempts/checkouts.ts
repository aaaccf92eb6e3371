/**
 * Checks out the commit of a job on the worker, and reads the files of its repository inputs. The worker may be on another machine than
 * the repository. A process that owns the repository reads the repository's folder. Any other process requests a pack from the server that owns the repository, and
 * never reads the folder, because a network file system may show stale data. That server only sends the commit of a job, and
 * only to the attempt that holds the job and has not started yet.
 */

import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, busy, notFound } from '../../base/errors.ts';
import { diskLimits } from '../../base/hardware.ts';
import type { Logger } from '../../base/log.ts';
import { type Cluster, ServerUnavailable } from '../../cluster/cluster.ts';
import { defineRemoteStream } from '../../cluster/streams.ts';
import type { CheckoutLimits } from '../../git/disk/checkout.ts';
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
import { readFiles } from '../../repositories/commit-files.ts';
import type { LargeFiles } from '../../repositories/lfs/store/store.ts';
import { readRepositoryInputs } from '../requests/repository-inputs.ts';

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
    }).catch(retryIfNotFound);
    return bytes;
  };
}

/** The attempt or the repository was changed in the database in the meantime. The next try reads it again. */
function retryIfNotFound(error: unknown): never {
  const isNotFound = error instanceof AppError && error.code === 'not_found';
  throw isNotFound ? new ServerUnavailable('the server does not find the attempt') : error;
}

type InputSource = CheckoutLimits & {
  attemptId: string;
  repositoryId: string;
  commitSha: string;
  /** Empty for the root. */
  path: string;
  signal: AbortSignal;
};

/**
 * Passes the files of a repository input to `use`, as a tar with pointers for large files.
 * @throws AppError with a reason for the user of the job; ServerUnavailable; errors of `use`
 */
export type ReadInput = (
  source: InputSource,
  use: (tar: AsyncIterable<Buffer>) => Promise<void>,
) => Promise<void>;

/** For a process that owns repositories, as `createCheckout`. */
export function createInputReader(services: {
  db: Db;
  git: Git;
  log: Logger;
  cluster: Cluster;
}): ReadInput {
  const readRemotely = createRemoteInputReader(services);
  return (source, use) =>
    services.cluster.remoteOwner(source.repositoryId)
      ? readRemotely(source, use)
      : readFiles(services, source, use);
}

/** For a process without repositories. */
export function createRemoteInputReader(services: { cluster: Cluster }): ReadInput {
  return async ({ attemptId, repositoryId, commitSha, path, signal }, use) => {
    const owner = services.cluster.remoteOwner(repositoryId);
    if (!owner) throw new ServerUnavailable('the repository has moved');
    const input = { attemptId, commitSha, path };
    await inputStream(services, owner, { repositoryId, input, signal }, (_head, bytes) =>
      use(toBuffers(bytes)),
    ).catch(retryIfNotFound);
  };
}

async function* toBuffers(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  for await (const { buffer, byteOffset, byteLength } of bytes)
    yield Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
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
    await transfer(git, send, signal);
  },
);

type InputRequest = { attemptId: string; commitSha: string; path: string };

/** As `checkoutStream`, for the files of a repository input. */
const inputStream = defineRemoteStream<InputRequest, null>(
  'jobInput',
  async (services, repositoryId, { attemptId, commitSha, path }, { begin, signal }) => {
    const request = { attemptId, repositoryId, commitSha, path };
    const limits = await readLimitsOfWaitingAttempt(services, request);
    const send = (stopping: AbortSignal) => {
      const stopped = AbortSignal.any([signal, stopping]);
      return readFiles(services, { ...request, ...limits, signal: stopped }, (tar: Readable) =>
        pipeline(tar, begin(null), { end: false }),
      );
    };
    await transfer(services.git, send, signal);
  },
);

/** The semaphore limits the transfers; `git.tasks` makes the shutdown wait for them, and aborts them after a timeout. */
async function transfer(
  { transfers, tasks }: Git,
  send: (stopping: AbortSignal) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  await transfers
    .run(() => tasks.run(send), { key: TRANSFER_KEY, signal })
    .catch((error) => {
      throw error instanceof QueueTimeout
        ? busy('Too many fetches and pushes are under way')
        : error;
    });
}

/**
 * Checks that an attempt waits for a commit, or for a path of a commit as an input.
 * @returns the limits of the job's disk
 * @throws AppError 404 unless the attempt holds a job with this repository and commit and has not started
 */
async function readLimitsOfWaitingAttempt(
  { db }: { db: Db },
  { attemptId, repositoryId, commitSha, path }: WaitingFor,
): Promise<{ maxBytes: number; maxFiles: number }> {
  const attempt = await db.jobAttempt.findFirst({
    where: { id: attemptId, endedAt: null, handle: { equals: Prisma.DbNull }, job: { attemptId } },
    select: {
      job: {
        select: { diskGb: true, repositoryId: true, commitSha: true, repositoryInputs: true },
      },
    },
  });
  if (!attempt) throw notFound('Attempt');
  const { job } = attempt;
  const sources = path === undefined ? [job] : readRepositoryInputs(job);
  const isItsOwn = sources.some(
    (one) =>
      one.repositoryId === repositoryId &&
      one.commitSha === commitSha &&
      (!('path' in one) || one.path === path),
  );
  if (!isItsOwn) throw notFound('Attempt');
  return diskLimits(job.diskGb);
}

type WaitingFor = CheckoutRequest & {
  repositoryId: string;
  /** Undefined: the commit of the job itself. */
  path?: string;
};
