/**
 * Several servers on one database: each repository is with one of them at a time, and the others send there what is
 * asked of it. So what a server has read of it stays good, and two never work on it at once in the ordinary course.
 *
 *   a read      `calls.ts`: asked of the other server, and asked again elsewhere when that one dies
 *   a stream    `streams.ts`: what a worker needs of a repository that this process does not have
 *   a transfer  `forward.ts`: a fetch, a push or a download is sent on as it comes, in both directions
 *
 * A server without others does everything itself.
 */

import { type AppError, busy } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Keys } from '../platform/crypto/keys.ts';
import type { Member, Members } from './members.ts';
import { placeOf } from './placement.ts';

export type Cluster = {
  readonly members: Members;
  /** What requests between servers are signed under. */
  readonly key: Uint8Array;
  /**
   * The other server that has a repository; null: this one has it. A process that serves nothing has none.
   * @throws ServerAway when no server runs
   */
  elsewhere(repositoryId: string): Member | null;
};

/** The server that has a repository does not answer, or not to the end; another one soon takes its place. */
export class ServerAway extends Error {
  override name = 'ServerAway';
}

/** It has no `cause`, whose code would make it look like a database that is away. */
export function noAnswer(url: string, error: unknown): ServerAway {
  const { cause, message } = error as { cause?: { code?: unknown }; message?: unknown };
  return new ServerAway(`${url} does not answer: ${cause?.code ?? message}`);
}

/** `serves`: whether this process answers requests, and so has repositories. */
export function openCluster(
  members: Members,
  keys: Keys,
  { serves }: { serves: boolean },
): Cluster {
  return {
    members,
    key: keys.derive('calls between servers'),
    elsewhere(repositoryId) {
      const { id, serving } = members;
      if (serves && serving.length < 2) return null;
      if (serving.length === 0) throw new ServerAway('no server that has repositories runs');
      const place = placeOf(repositoryId, serving);
      return place.id === id ? null : place;
    },
  };
}

/** How long a request waits for another server to take over from one that does not answer: silence, and a beat. */
const PATIENCE_MS = 6_000;
/** Between two tries. */
const PAUSE_MS = 100;

/**
 * Does something where a repository is: `here`, or at another server with `there`, which is tried again, at whichever
 * server has it by then, for as long as it throws ServerAway.
 * @throws AppError 503 when none has answered in time; else what the two throw
 */
export async function whereItIs<T>(
  { cluster, log }: { cluster: Cluster; log: Logger },
  repositoryId: string,
  { here, there }: { here(): Promise<T>; there(member: Member): Promise<T> },
): Promise<T> {
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const member = cluster.elsewhere(repositoryId);
    if (!member) return here();
    try {
      return await there(member);
    } catch (error) {
      if (!(error instanceof ServerAway)) throw error;
      if (performance.now() > deadline) throw notAnswered(log, member, error);
    }
    await cluster.members.changed(PAUSE_MS);
  }
}

/** 503, and the reason for the log. */
export function notAnswered(log: Logger, { id }: Member, error: unknown): AppError {
  log.warn({ err: error, server: id }, 'another server does not answer');
  return busy('The server that has the repository does not answer');
}
