/**
 * Several servers on one database. Each repository is owned by one server at a time, and the other servers send requests for
 * the repository to its owner. So the owner's caches stay valid, and two servers work on a repository at the same time only
 * for a moment after a failure.
 *
 *   call      `calls.ts`: a function that runs on the owner; repeated on the next owner if the owner dies
 *   stream    `streams.ts`: data that a worker needs of a repository that its process does not own
 *   transfer  `forward.ts`: a fetch, push or download over HTTP that is proxied in both directions
 *   tunnel    `tunnels.ts`: an SSH session whose bytes are relayed in both directions
 *
 * A single server owns all repositories.
 */

import { type AppError, busy } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Keys } from '../platform/crypto/keys.ts';
import { DEAD_AFTER_S, HEARTBEAT_MS, type Member, type Members } from './members.ts';
import { chooseOwner } from './placement.ts';

export type Cluster = {
  readonly members: Members;
  /** Key that signs requests between servers. */
  readonly key: Uint8Array;
  /**
   * The other server that owns a repository; null if this server owns it. Never null in a process of the role `work`.
   * @throws ServerUnavailable if no server is running
   */
  remoteOwner(repositoryId: string): Member | null;
};

/** The owner of a repository does not answer, or has disconnected. If it is dead, another server takes over soon. */
export class ServerUnavailable extends Error {
  override name = 'ServerUnavailable';
}

/** The result has no `cause`, because a code such as ECONNREFUSED would make it look like an unavailable database. */
export function toServerUnavailable(baseUrl: string, error: unknown): ServerUnavailable {
  const { cause, message } = error as { cause?: { code?: unknown }; message?: unknown };
  return new ServerUnavailable(`${baseUrl} does not answer: ${cause?.code ?? message}`);
}

/** @param options `serves`: whether this process answers requests, and so owns repositories */
export function openCluster(
  members: Members,
  keys: Keys,
  { serves }: { serves: boolean },
): Cluster {
  return {
    members,
    key: keys.derive('calls between servers'),
    remoteOwner(repositoryId) {
      const { id, serving } = members;
      if (serves && serving.length < 2) return null;
      if (serving.length === 0)
        throw new ServerUnavailable('no server that owns repositories is running');
      const owner = chooseOwner(repositoryId, serving);
      return owner.id === id ? null : owner;
    },
  };
}

/**
 * How long a request waits until another server takes over: the time after which the owner counts as dead, the heartbeat
 * with which this server notices, and a margin.
 */
const TAKEOVER_TIMEOUT_MS = DEAD_AFTER_S * 1_000 + HEARTBEAT_MS + 2_000;
/** Pause between attempts, unless the set of servers changes earlier. */
const RETRY_PAUSE_MS = 100;

type OwnerWork<T> = {
  /** Runs if this server owns the repository. */
  runLocally(): Promise<T>;
  /** Runs if `member` owns the repository. Must be safe to repeat if it throws ServerUnavailable. */
  runRemotely(member: Member): Promise<T>;
};

/**
 * Runs `here` if this server owns the repository, otherwise `there` with the owner. `there` is retried with the current owner
 * while it throws ServerUnavailable, for at most 6 s.
 * @throws AppError 503 if no owner answers in time; every other error of `here` and `there`
 */
export async function runAtOwner<T>(
  { cluster, log }: { cluster: Cluster; log: Logger },
  repositoryId: string,
  work: OwnerWork<T>,
): Promise<T> {
  const deadline = performance.now() + TAKEOVER_TIMEOUT_MS;
  for (;;) {
    const member = cluster.remoteOwner(repositoryId);
    if (!member) return work.runLocally();
    try {
      return await work.runRemotely(member);
    } catch (error) {
      if (!(error instanceof ServerUnavailable)) throw error;
      if (performance.now() > deadline) throw logOwnerUnavailable(log, member, error);
    }
    await cluster.members.waitForChange(RETRY_PAUSE_MS);
  }
}

/** Logs the reason, and returns the 503 for the client. */
export function logOwnerUnavailable(log: Logger, { id }: Member, error: unknown): AppError {
  log.warn({ err: error, server: id }, 'another server does not answer');
  return busy('The server that owns the repository does not answer');
}
