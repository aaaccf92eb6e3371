/** Groups that limit how many jobs run at once, and the texts that say what a blocked job waits for. */
import type { GroupConflict, JobStatus, NeedCondition } from '../../../prisma/generated/enums.ts';
import { isOver, PHASES, toProgress } from '../record/state.ts';

/** A slot that a job needs before it may start; see the model `JobSlot`. */
export type SlotRequest = {
  groupKey: string;
  /** Null: the job itself. */
  unit: string | null;
  maxRunning: number;
  onConflict: GroupConflict;
};

type GroupedJob = {
  namespaceId: string;
  repositoryId: string | null;
  concurrencyGroup: string | null;
  onConflict: GroupConflict | null;
};

/**
 * The slots that a job needs.
 * @param set the array or matrix of which it is a part, and how many of these may run at once
 */
export function listSlots(
  job: GroupedJob,
  set: { key: string; maxParallel: number | null } | null,
): SlotRequest[] {
  const { namespaceId, repositoryId, concurrencyGroup, onConflict } = job;
  const slots: SlotRequest[] = [];
  if (set?.maxParallel != null)
    slots.push({
      groupKey: set.key,
      unit: null,
      maxRunning: set.maxParallel,
      onConflict: 'queue',
    });
  // The namespace is a part of the key: jobs of other namespaces may run a commit of the same public repository.
  if (concurrencyGroup !== null)
    slots.push({
      groupKey: `${CONCURRENCY}${namespaceId} ${repositoryId ?? '-'} ${concurrencyGroup}`,
      unit: set?.key ?? null,
      maxRunning: 1,
      onConflict: onConflict ?? 'queue',
    });
  return slots;
}

const CONCURRENCY = 'concurrency ';

function describeGroup({ groupKey, maxRunning }: Pick<SlotRequest, 'groupKey' | 'maxRunning'>) {
  if (groupKey.startsWith(CONCURRENCY))
    return `the concurrency group ${groupKey.split(' ').slice(3).join(' ')}`;
  return maxRunning === 1
    ? 'its turn: one of these jobs runs at a time'
    : `its turn: at most ${maxRunning} of these jobs run at once`;
}

/** The `progress` of a job whose needs are met. */
export function describeSlots(slots: readonly Pick<SlotRequest, 'groupKey' | 'maxRunning'>[]) {
  return cut(
    slots.length === 0 ? PHASES.waiting : `waiting for ${slots.map(describeGroup).join(' and ')}`,
  );
}

const MAX_NAMES = 3;

/** The `progress` of a job that waits for others. */
export function describeNeeds(names: readonly string[]): string {
  const others = names.length - MAX_NAMES;
  const rest = others > 0 ? ` and ${others} other ${others === 1 ? 'job' : 'jobs'}` : '';
  return cut(`waiting for ${names.slice(0, MAX_NAMES).join(', ')}${rest}`);
}

/** A need for one job, or for all jobs that a matrix has made of a job of the file. */
export type NeedOutcome = {
  condition: NeedCondition;
  /** The job of the file; null outside of runs. */
  runJob: string | null;
  names: readonly string[];
  /** The statuses of the jobs, in the order of `names`; null for a job that was deleted before it ended. */
  statuses: readonly (JobStatus | null)[];
};

/** The `progress` of a job that can never start. */
export function describeUnmet({ condition, runJob, names, statuses }: NeedOutcome): string {
  if (condition === 'failed' && names.length > 1)
    return cut(`${PHASES.cancelled}: it needed a job of ${runJob} to fail, and none did`);
  const at = statuses.findIndex((status) => isNeedMet(condition, [status]) === false);
  const status = statuses[at] ?? null;
  const how = condition === 'failed' ? 'to fail' : 'to succeed';
  const ended = status === null ? 'which was deleted' : `which ${ENDINGS[status]}`;
  return cut(`${PHASES.cancelled}: it needed ${names[at]} ${how}, ${ended}`);
}

const ENDINGS: Record<JobStatus, string> = {
  queued: 'is queued',
  running: 'is running',
  succeeded: 'succeeded',
  failed: 'failed',
  cancelled: 'was cancelled',
  timed_out: 'timed out',
};

export function describeReplaced(replacedBy: string): string {
  return cut(`${PHASES.cancelled}: ${replacedBy} took its concurrency group`);
}

export const SKIPPED = `${PHASES.cancelled}: its concurrency group was taken`;

function cut(text: string): string {
  return toProgress(text);
}

/**
 * Whether jobs have ended as a need demands; null while that is open. The need is for one job, or for all jobs of a matrix:
 * `succeeded` demands that all of them have succeeded, `failed` that all have ended and at least one of them failed.
 * @param statuses null: the job was deleted before it ended
 */
export function isNeedMet(
  when: NeedCondition,
  statuses: readonly (JobStatus | null)[],
): boolean | null {
  const ended = statuses.filter(hasEnded);
  if (when === 'succeeded' && ended.some((status) => status !== 'succeeded')) return false;
  if (ended.length < statuses.length) return null;
  return when !== 'failed' || ended.some((status) => status === 'failed' || status === 'timed_out');
}

/** The names of the needed jobs that have not ended. */
export function listOpenNeeds({ names, statuses }: NeedOutcome): string[] {
  return names.filter((_, i) => !hasEnded(statuses[i] ?? null));
}

function hasEnded(status: JobStatus | null): boolean {
  return status === null || isOver(status);
}
