/**
 * What a killed server had begun with repositories is finished or undone: by itself, first thing after its next
 * start, or by another server that shares the repositories, as soon as it is seen to be dead. What fails does not
 * stop a start: a push is tried again in the background, the rest at the next start.
 */

import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Begun } from '../git/disk/disk.ts';
import type { BegunReceiving } from '../git/disk/quarantines.ts';
import { removeCutRefs, storeRefs } from '../git/disk/ref-files.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import type { Session } from '../platform/database/session.ts';
import { alignHead, type BegunDefaultBranch } from './default-branch.ts';
import { removeQuarantines } from './folder.ts';
import type { PushRecorder } from './pushes/recorder.ts';
import type { BegunPush } from './pushes/rows.ts';

type Deps = { db: Db; git: Git; log: Logger; pushes: PushRecorder; cluster: Cluster };

/** Its work is that which was in flight, never that of all repositories. */
export async function recoverRepositories(services: Deps): Promise<void> {
  await finishAll(services, await services.git.disk.begun());
}

/** What nobody wants, and what was left while it was removed. */
export async function removeAbandoned({ git }: { git: Git }): Promise<boolean> {
  await git.disk.removeAbandoned();
  return false;
}

/** Between two looks while a dead server's work is still its own: its lock is held on, or its notes are too young. */
const SOON_MS = 2_000;
/** Without a server that came or went. */
const SELDOM_MS = 60_000;

/** Takes over what servers that died had begun, until it is disposed. */
export function takeOverFromDead(services: Deps, session: Session): AsyncDisposable {
  const stopping = new AbortController();
  const { signal } = stopping;
  const { members } = services.cluster;

  /** @returns whether something is left of them */
  async function takeOverAll(): Promise<boolean> {
    const { disk } = services.git;
    const isServing = (server: string) => members.serving.some(({ id }) => id === server);
    for (const server of await disk.othersWithBegun()) {
      if (isServing(server)) continue;
      const taken = await session.insteadOf(server, () => disk.takeOver(server));
      if (taken) await finishAll(services, taken);
    }
    return (await disk.othersWithBegun()).some((server) => !isServing(server));
  }

  const working = (async () => {
    while (!signal.aborted) {
      const isLeft = await takeOverAll().catch((error) => {
        services.log.warn({ err: error }, 'the work of a dead server was not taken over yet');
        return true;
      });
      await members.changed(isLeft ? SOON_MS : SELDOM_MS, signal);
    }
  })();
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
    },
  };
}

/** For git that outlives its server: it is told to end, or is nearly done. A push to a server that lives takes longer. */
const OUTLIVED_MS = 10_000;

async function finishAll(services: Deps, all: Begun[]): Promise<void> {
  const byRepository = Map.groupBy(all, ({ id }) => id);
  for (const [id, begun] of byRepository) {
    try {
      await finish(services, id, begun);
      services.log.info({ repository: id, begun: begun.length }, 'finished what had been begun');
    } catch (error) {
      services.log.error({ err: error, repository: id }, 'what had been begun is not finished yet');
    }
  }
}

async function finish(services: Deps, id: string, begun: Begun[]): Promise<void> {
  const { db, git, log, pushes } = services;
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  // Created but never committed, or deleted but not removed.
  if (!row) await git.disk.remove(id);
  const [pushed, others] = row
    ? [begun.filter(isPush), begun.filter((one) => !isPush(one))]
    : [[], begun];
  if (others.some(isDefaultBranch)) await alignHead(services, id);
  const isLeft = row !== null && others.some(isReceiving);
  // In the background: the server that has the repository is another, and may be slow to answer.
  if (isLeft)
    git.tasks.background(async () => {
      await removeQuarantines(services, id);
      for (const { done } of others) await done();
    });
  else for (const { done } of others) await done();
  // By their times; those of an earlier version have none, and come first.
  pushed.sort((a, b) => ((a.data.at ?? '') < (b.data.at ?? '') ? -1 : 1));
  if (!row) return;
  const dir = git.disk.pathOf(id);
  // A git that moves a ref after it was looked at would have its push recorded by nobody.
  if (pushed.length > 0 && !(await git.locks.outlive(dir, OUTLIVED_MS)))
    log.warn(
      { repository: id },
      'a git of a dead server still works here, and may move refs unseen',
    );
  await git.locks.remove(dir);
  if (pushed.length === 0) return;
  const refs = pushed.flatMap(({ data }) => data.commands.map(({ ref }) => ref));
  await removeCutRefs(dir, refs);
  await storeRefs(dir, refs);
  await pushes.recover(id, pushed);
}

function isDefaultBranch({ data }: Begun): boolean {
  return (data as Partial<BegunDefaultBranch> | null)?.kind === 'default-branch';
}

function isReceiving({ data }: Begun): boolean {
  return (data as Partial<BegunReceiving> | null)?.kind === 'receiving';
}

function isPush(begun: Begun): begun is Begun<BegunPush> {
  return (begun.data as { kind?: unknown } | null)?.kind === 'push';
}
