/**
 * Finds the refs of a push whose commit has a job file. The transaction that records the push inserts a row into
 * `run_triggers` for each, and the server creates a run from the row later. So an accepted push starts its runs exactly once.
 * A server that is killed loses no trigger, because triggers are also in the push's note on disk.
 */
import { findPushedFiles, readPushedFiles } from '../../git/objects/pushed-files.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { type ReceivedRefUpdate, ZERO_ID } from '../../git/transport/hooks.ts';
import { type Account, can } from '../../identity/permissions.ts';
import type { IncomingPush } from './incoming-push.ts';

/** What the server knows of files of jobs, which the floor above it defines. */
export type JobsFile = {
  /** The path in the repository. */
  path: string;
  maxBytes: number;
  /** Returns the problems of a file. */
  check(text: string): Promise<{ line: number; message: string }[]>;
};

/** A ref whose update may start jobs. */
export type PushTrigger = {
  ref: string;
  before: string;
  after: string;
  /** Whether the push starts jobs, or only changes the schedules. */
  startsRun: boolean;
  /** Whether the pusher's credential may create jobs. */
  mayCreateJobs: boolean;
};

/** Pushes of more refs start only this many runs. */
const MAX_RUNS = 20;
/** Refs that are searched for the file. */
const MAX_REFS = 1_000;
const MAX_SHOWN_PROBLEMS = 10;
const SKIP = /\[skip jobs\]/i;

type PushInput = Omit<IncomingPush, 'by' | 'tips' | 'options'> & {
  by: Account;
  defaultBranch: string;
};

/** @returns the triggers, and lines to show to the pusher */
export async function findTriggers(
  { path, maxBytes, check }: JobsFile,
  { repository, by, commands, quarantined, defaultBranch }: PushInput,
): Promise<{ triggers: PushTrigger[]; notes: string[] }> {
  const defaultRef = REF_PREFIX.branch + defaultBranch;
  const updated = commands.filter(isUpdateOfBranchOrTag);
  // First, because its schedules depend on it.
  const first = updated.filter(({ ref }) => ref === defaultRef);
  const refs = [...first, ...updated.filter(({ ref }) => ref !== defaultRef)].slice(0, MAX_REFS);
  if (refs.length === 0) return { triggers: [], notes: [] };
  const before = first.map((command) => command.before).filter((id) => id !== ZERO_ID);
  const tips = [...new Set([...refs.map(({ after }) => after), ...before])];
  const found = new Map(
    (await findPushedFiles(quarantined, tips, path)).map((one) => [one.tip, one]),
  );
  const withFile = refs.filter(({ after }) => found.has(after));
  const starting = withFile.slice(0, MAX_RUNS);
  const startingRefs = new Set(starting.map(({ ref }) => ref));
  const startingTips = [...new Set(starting.map(({ after }) => after))];
  const files = await readPushedFiles(
    quarantined,
    startingTips.flatMap((tip) => found.get(tip) ?? []),
    maxBytes,
  );
  // Pushes by jobs start no jobs, which could push again.
  const isByJob = by.credential.kind === 'job';
  const target = { namespaceId: repository.namespaceId, repositoryId: repository.id };
  const mayCreateJobs =
    by.credential.kind !== 'deploy' && !isByJob && can(by, 'job.create', target);
  const triggers = refs.flatMap(({ ref, before, after }): PushTrigger[] => {
    const message = startingRefs.has(ref) ? files.get(after)?.message : undefined;
    const startsRun = message !== undefined && !isByJob && !SKIP.test(message);
    const changesSchedules = ref === defaultRef && (found.has(after) || found.has(before));
    return startsRun || changesSchedules ? [{ ref, before, after, startsRun, mayCreateJobs }] : [];
  });
  const texts = triggers
    .filter(({ startsRun }) => startsRun)
    .map(({ after }) => files.get(after)?.text ?? null);
  const problems: string[] = [];
  for (const text of new Set(texts))
    if (text === null)
      problems.push(`${path}: the file must not be larger than ${maxBytes / 1024} KiB`);
    else
      for (const { line, message } of await check(text))
        problems.push(`${path}:${line}: ${message}`);
  const notes = problems.slice(0, MAX_SHOWN_PROBLEMS);
  if (!isByJob) notes.push(...describeLimits(updated.length, withFile.length, path));
  return { triggers, notes };
}

/** @param withFile the number of refs with the file among those that were searched */
function describeLimits(pushed: number, withFile: number, path: string): string[] {
  const all = pushed > MAX_REFS ? pushed : withFile;
  if (withFile > MAX_RUNS)
    return [`Jobs start for ${MAX_RUNS} of the ${all} refs only, the limit for one push.`];
  if (pushed > MAX_REFS)
    return [
      `Only ${MAX_REFS} of the ${pushed} refs were searched for ${path}: push fewer at once.`,
    ];
  return [];
}

function isUpdateOfBranchOrTag({ ref, after }: ReceivedRefUpdate): boolean {
  if (after === ZERO_ID) return false;
  return ref.startsWith(REF_PREFIX.branch) || ref.startsWith(REF_PREFIX.tag);
}
