/**
 * Several servers on one database. Each repository is owned by one server at a time, and the others send requests for it
 * there. So a server's caches of a repository stay valid, and normally two servers never work on it at the same time.
 *
 *   read      `calls.ts`: sent to the owner, and repeated on the next owner if that server dies
 *   stream    `streams.ts`: data that a worker needs of a repository that this process does not own
 *   transfer  `forward.ts`: a fetch, push or download is proxied in both directions
 *
 * A single server does everything itself.
 */

import { type AppError, busy } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Keys } from '../platform/crypto/keys.ts';
import type { Member, Members } from './members.ts';
import { chooseOwner } from './placement.ts';

export type Cluster = {
  readonly members: Members;
  /** Key that signs requests between servers. */
  readonly key: Uint8Array;
  /**
   * The other server that owns a repository; null: this server. A process of the role `work` owns none.
   * @throws ServerAway if no server is running
   */
  remoteOwner(repositoryId: string): Member | null;
};

/** The owner of a repository does not answer, or disconnected; another server takes over soon. */
export class ServerUnavailable extends Error {
  override name = 'ServerAway';
}

/** Without `cause`, whose code would make the error look like an unavailable database. */
export function toServerAway(url: string, error: unknown): ServerUnavailable {
  const { cause, message } = error as { cause?: { code?: unknown }; message?: unknown };
  return new ServerUnavailable(`${url} does not answer: ${cause?.code ?? message}`);
}

/** `serves`: whether this process answers requests, and so owns repositories. */
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

/** How long a request waits until another server takes over: the time to detect the failure, and a heartbeat. */
const TIMEOUT_MS = 6_000;
/** Pause between attempts. */
const PAUSE_MS = 100;

/**
 * Runs `here` if this server owns the repository, otherwise `there` with the owner. `there` is retried with the current owner
 * as long as it throws ServerAway.
 * @throws AppError 503 if no owner answers in time; every other error of the two
 */
export async function runAtOwner<T>(
  { cluster, log }: { cluster: Cluster; log: Logger },
  repositoryId: string,
  { here, there }: { here(): Promise<T>; there(member: Member): Promise<T> },
): Promise<T> {
  const deadline = performance.now() + TIMEOUT_MS;
  for (;;) {
    const member = cluster.remoteOwner(repositoryId);
    if (!member) return here();
    try {
      return await there(member);
    } catch (error) {
      if (!(error instanceof ServerUnavailable)) throw error;
      if (performance.now() > deadline) throw reportUnavailable(log, member, error);
    }
    await cluster.members.changed(PAUSE_MS);
  }
}

/** Logs the reason and returns a 503. */
export function reportUnavailable(log: Logger, { id }: Member, error: unknown): AppError {
  log.warn({ err: error, server: id }, 'another server does not answer');
  return busy('The server that has the repository does not answer');
}
