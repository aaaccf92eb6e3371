/**
 * What a push must pass, and what follows from it.
 *
 *   unpack into quarantine → judge → note that it was begun → git updates refs → record → answer the client
 *
 * Nothing takes effect before the judge has agreed, and the client gets success only after the record
 * is in the database. Where that cannot be written, the client's connection breaks off and it is tried again
 * (`recorder.ts`); killed between the two, the server finds its note at the next start and records then.
 */
import { type Actor, actorOf } from '../../audit/record.ts';
import type { Recheck } from '../../auth/rechecks.ts';
import { AppError, diskFull } from '../../errors.ts';
import type { Begun } from '../../git/disk/disk.ts';
import { isCommitId, isRefName, MAX_REF_BYTES } from '../../git/names.ts';
import { isFastForward, patchOf, sizeOf } from '../../git/objects/walk.ts';
import { type Command, NONE, type Push, type Verdict } from '../../git/transport/hooks.ts';
import type { PushRules } from '../../git/transport/transport.ts';
import { newId } from '../../ids.ts';
import { demandRoom, storageLeft } from '../../limits/quotas.ts';
import type { Services } from '../../services.ts';
import { changesOfLocked } from './locks.ts';
import type { BegunPush } from './record.ts';
import { findSecrets } from './secret-scanning.ts';

type Deps = Pick<Services, 'db' | 'git' | 'config' | 'log' | 'pushes' | 'space'>;

export type PushBy = {
  repositoryId: string;
  by: Actor;
  requestId: string;
  /** That the pusher may push; it is asked again before anything takes effect. */
  right: Pick<Recheck, 'fresh'>;
};

/** A look at what a push brings that takes longer is none: the push is refused and says so. */
const MAX_LOOK_MS = 60_000;
const MAX_FINDINGS = 10;
/** Of a ref's name in a refusal. */
const MAX_SHOWN = 300;

/**
 * For `receivePack`: one object per push. `by` may push: its caller has asked. The pack may
 * take hours to come, so the right is asked for again at its end. The request's id is shown where something fails on
 * our side, and stands in the log.
 */
export async function pushRules(
  services: Deps,
  { repositoryId: id, by, requestId, right }: PushBy,
): Promise<PushRules> {
  const { db, git, log, pushes } = services;
  const row = await db.repository.findUnique({
    where: { id },
    select: { namespace: { select: { plan: true, storageBytes: true } } },
    relationLoadStrategy: 'join',
  });
  let begun: Begun<BegunPush> | undefined;
  return {
    hooks: git.hooks,
    // Git takes 0 for no limit.
    maxBytes: Math.max(
      1,
      Math.min(row ? storageLeft(services, row.namespace) : 0, services.space.room),
    ),
    async judge(push, signal) {
      try {
        const verdict = await judge(services, { id, by }, push, signal);
        await right.fresh(signal);
        const at = new Date().toISOString();
        const { commands } = push;
        if (verdict.accepted)
          begun = await git.disk.begin(id, {
            kind: 'push',
            event: newId('evt'),
            pusher: by.username,
            by: actorOf(by),
            commands,
            at,
          });
        return verdict;
      } catch (error) {
        if (error instanceof AppError && error.status < 500) return refused(error.message);
        log.error({ err: error, repository: id, req: { id: requestId } }, 'a push was not judged');
        return refused(
          'The push could not be checked because of a fault on the server, and nothing was changed.',
          `Try again; the request id ${requestId} helps its operator to find the fault.`,
        );
      }
    },
    async settle(updated) {
      if (!begun) return;
      await pushes.record(begun, updated);
      git.maintenance.schedule(git.disk.pathOf(id));
    },
  };
}

async function judge(
  services: Deps,
  { id, by }: { id: string; by: Actor },
  { commands, quarantine }: Push,
  signal: AbortSignal,
): Promise<Verdict> {
  const row = await services.db.repository.findUnique({
    where: { id },
    select: {
      defaultBranch: true,
      branchProtection: true,
      secretScanning: true,
      namespace: { select: { id: true, plan: true } },
    },
    relationLoadStrategy: 'join',
  });
  if (!row) return refused('The repository was deleted');
  for (const { ref, after } of commands) {
    const problem = after === NONE ? undefined : problemOf(ref);
    if (problem) return refused(`${ref.slice(0, MAX_SHOWN)} ${problem}; choose another name`);
  }
  const place = { dir: services.git.disk.pathOf(id), quarantine, signal };
  const broken = row.branchProtection ? await breaks(row.defaultBranch, commands, place) : null;
  if (broken) return refused(broken);
  if (services.space.low) return refused(diskFull().message);
  const added = quarantine ? await sizeOf(quarantine) : 0;
  await demandRoom(services, row.namespace, 'storageBytes', added);
  const tips = commands.map(({ after }) => after).filter((after) => after !== NONE);
  const locked = await withinTime(COMPARED, place, (bounded) =>
    changesOfLocked(services.db, { repositoryId: id, userId: by.userId }, bounded, tips),
  );
  if (!Array.isArray(locked)) return locked;
  if (locked.length > 0)
    return refused(
      'The push changes files that others have locked:',
      ...locked,
      'Ask them to push their work and to unlock the files (git lfs unlock).',
    );
  if (row.secretScanning && quarantine) return scan(tips, place);
  return { accepted: true };
}

/** Why a ref of this name could not be asked for by it. */
function problemOf(ref: string): string | undefined {
  const name = ref.replace(/^refs\/(heads|tags)\//, '');
  if (isCommitId(name)) return "has the form of a commit's id, and would be taken for that commit";
  // What the hook's pipe gave for bytes that are no UTF-8.
  if (name.includes('\ufffd')) return 'is not UTF-8';
  if (!isRefName(name))
    return `is no name here: it may have ${MAX_REF_BYTES} bytes, not begin with "-", and not be "@"`;
  return undefined;
}

type Place = Parameters<typeof isFastForward>[0];

/** How the commands would break the protection of the default branch, or null. */
async function breaks(branch: string, commands: Command[], place: Place): Promise<string | null> {
  const command = commands.find(({ ref }) => ref === `refs/heads/${branch}`);
  if (!command) return null;
  const { before, after } = command;
  if (after === NONE) return `The branch ${branch} is protected and cannot be deleted`;
  if (before !== NONE && !(await isFastForward(place, before, after)))
    return `The branch ${branch} is protected: only fast-forward pushes are accepted`;
  return null;
}

async function scan(tips: readonly string[], place: Place): Promise<Verdict> {
  if (tips.length === 0) return { accepted: true };
  const findings = await withinTime(SCANNED, place, (bounded) =>
    findSecrets(patchOf(bounded, tips), MAX_FINDINGS),
  );
  if (!Array.isArray(findings)) return findings;
  if (findings.length === 0) return { accepted: true };
  return refused(
    'Secret scanning refused the push:',
    ...findings.map(
      (f) => `  ${f.path}:${f.line} adds ${f.secret} (commit ${f.commit.slice(0, 10)})`,
    ),
    'Take it out of the commits, and revoke it if it was real.',
  );
}

const COMPARED = ['compared with the locks of files', 'Push it in parts.'] as const;
const SCANNED = [
  'scanned for secrets',
  'Push it in parts, or switch secret scanning off for it.',
] as const;

/** What `look` finds within a minute; else the refusal of a push that could not be looked at so, with advice. */
async function withinTime<T>(
  [looked, advice]: readonly [looked: string, advice: string],
  place: Place,
  look: (bounded: Place) => Promise<T[]>,
): Promise<T[] | Verdict> {
  const limit = AbortSignal.timeout(MAX_LOOK_MS);
  try {
    return await look({ ...place, signal: AbortSignal.any([place.signal, limit]) });
  } catch (error) {
    if (!limit.aborted) throw error;
    return refused(`The push could not be ${looked} within ${MAX_LOOK_MS / 1000} seconds.`, advice);
  }
}

function refused(...reasons: string[]): Verdict {
  return { accepted: false, reasons };
}
