/**
 * Finishes or undoes the pending operations of a killed server. The server itself does this at its next start, or
 * another server that shares the repositories does it as soon as it finds the server dead. Failures do not stop a
 * start: the loop that takes over from dead servers retries them. A push that the recorder has is retried by the
 * recorder.
 */

import { dataFolderLock } from '../base/advisory-locks.ts';
import { Backoff } from '../base/backoff.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { PendingOperation } from '../git/disk/disk.ts';
import type { PendingReceive } from '../git/disk/quarantines.ts';
import { removeTruncatedRefs, syncRefs } from '../git/disk/ref-files.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import type { Session } from '../platform/database/session.ts';
import { startLoop } from '../platform/loop.ts';
import { type DefaultBranchNote, syncHead } from './default-branch.ts';
import { removeQuarantines } from './folder.ts';
import type { PushRecorder } from './pushes/recorder.ts';
import type { PushNote } from './pushes/rows.ts';

type Deps = { db: Db; git: Git; log: Logger; pushes: PushRecorder; cluster: Cluster };

/**
 * The cost depends on the number of interrupted operations, not on the number of repositories.
 * @returns the operations that failed, for `takeOverFromDeadServers`
 */
export async function recoverRepositories(services: Deps): Promise<PendingOperation[]> {
  return finishAll(services, await services.git.disk.pendingOperations());
}

/** Maintenance task: deletes abandoned folders, including those whose earlier removal was interrupted. */
export async function removeAbandoned({ git }: { git: Git }): Promise<boolean> {
  await git.disk.removeAbandoned();
  return false;
}

/**
 * Poll interval while the operations of a dead server cannot be taken over yet: its lock is still held, or its notes
 * are too recent.
 */
const RETRY_MS = 2_000;
/** Poll interval while the set of servers does not change. */
const IDLE_MS = 60_000;

/**
 * Takes over the unfinished operations of dead servers, until disposed.
 * @param failed operations of this server that `recoverRepositories` could not finish, which are retried
 */
export function takeOverFromDeadServers(
  services: Deps,
  session: Pick<Session, 'runAlone'>,
  failed: readonly PendingOperation[],
): AsyncDisposable {
  const { members } = services.cluster;
  const backoff = new Backoff({ firstMs: RETRY_MS, longestMs: IDLE_MS });
  /** Operations of this server. No other server has them, and only one step runs at a time, so each is finished once. */
  let unfinished = [...failed];
  let hasMore = false;

  /** @returns whether dead servers still have unfinished operations */
  async function takeOverAll(): Promise<boolean> {
    const { disk } = services.git;
    const isServing = (server: string) => members.serving.some(({ id }) => id === server);
    for (const server of await disk.serversWithPendingOperations()) {
      if (isServing(server)) continue;
      // The other server cannot start while this session holds its lock.
      await session.runAlone(dataFolderLock(server), async () => {
        for await (const operation of disk.takeOverOperations(server)) unfinished.push(operation);
      });
    }
    return (await disk.serversWithPendingOperations()).some((server) => !isServing(server));
  }

  function retryMs(): number {
    if (unfinished.length === 0) backoff.reset();
    const pauseMs = unfinished.length > 0 ? backoff.next() : IDLE_MS;
    return hasMore ? Math.min(RETRY_MS, pauseMs) : pauseMs;
  }

  return startLoop(
    {
      name: 'Taking over the operations of dead servers',
      every: retryMs,
      async *wakes(signal, everyMs) {
        for (; !signal.aborted; await members.waitForChange(everyMs(), signal)) yield;
      },
      backoff: { firstMs: RETRY_MS, longestMs: RETRY_MS },
      log: services.log,
    },
    async () => {
      try {
        hasMore = await takeOverAll();
      } finally {
        unfinished = await finishAll(services, unfinished);
      }
    },
  );
}

/**
 * How long to wait for git processes of a dead server, which are told to exit or are nearly done. A push to a running
 * server may take longer.
 */
const ORPHANED_GIT_MS = 10_000;

/** @returns the operations of the repositories that failed */
async function finishAll(services: Deps, all: PendingOperation[]): Promise<PendingOperation[]> {
  const failed: PendingOperation[] = [];
  const byRepository = Map.groupBy(all, ({ id }) => id);
  for (const [id, operations] of byRepository) {
    try {
      await finish(services, id, operations);
      services.log.info(
        { repository: id, operations: operations.length },
        'finished the interrupted operations of a repository',
      );
    } catch (error) {
      failed.push(...operations);
      services.log.error(
        { err: error, repository: id },
        'could not finish the interrupted operations of a repository; retrying',
      );
    }
  }
  return failed;
}

/** @throws if a step fails that can be repeated. Steps that are retried elsewhere come last and do not throw. */
async function finish(services: Deps, id: string, operations: PendingOperation[]): Promise<void> {
  const { db, git, log } = services;
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  // The creation never committed, or the deletion did not remove the folder.
  if (!row) await git.disk.remove(id);
  const [pushes, others] = row
    ? [operations.filter(isPush), operations.filter((operation) => !isPush(operation))]
    : [[], operations];
  if (others.some(isDefaultBranch)) await syncHead(services, id);
  const hasQuarantines = row !== null && others.some(isReceiving);
  if (!hasQuarantines) for (const operation of others) await operation.finish();
  if (!row) return;
  pushes.sort((a, b) => (a.data.at < b.data.at ? -1 : 1));
  const dir = git.disk.pathOf(id);
  // If a git process moved a ref after the refs were read, nothing would record its push.
  if (pushes.length > 0 && !(await git.locks.waitForWriters(dir, ORPHANED_GIT_MS)))
    log.warn(
      { repository: id },
      'a git process of a dead server is still running and may move refs without a record',
    );
  await git.locks.removeAll(dir);
  if (pushes.length > 0) {
    const refs = pushes.flatMap(({ data }) => data.commands.map(({ ref }) => ref));
    await removeTruncatedRefs(dir, refs);
    await syncRefs(dir, refs);
  }
  // In the background, because a different server may have the repository and may be slow to respond.
  if (hasQuarantines)
    git.tasks.background(async () => {
      await removeQuarantines(services, id);
      for (const operation of others) await operation.finish();
    });
  // The recorder logs the error of the first try, and retries.
  if (pushes.length > 0) await services.pushes.recover(id, pushes).catch(() => {});
}

function isDefaultBranch({ data }: PendingOperation): boolean {
  return (data as Partial<DefaultBranchNote> | null)?.kind === 'default-branch';
}

function isReceiving({ data }: PendingOperation): boolean {
  return (data as Partial<PendingReceive> | null)?.kind === 'receiving';
}

function isPush(operation: PendingOperation): operation is PendingOperation<PushNote> {
  return (operation.data as { kind?: unknown } | null)?.kind === 'push';
}
