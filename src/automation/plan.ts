/** Decides which jobs of a file a trigger starts, and in what order. Pure functions. */
import type { NeedCondition } from '../../prisma/generated/enums.ts';
import { matchesPattern } from '../repositories/repositories.ts';
import { type JobFile, type JobSettings, toRequest } from './file.ts';
import type { FileJob } from './file-schema.ts';

export type Trigger =
  | {
      kind: 'push';
      branch: string /** Null: unknown, so that every filter matches. */;
      paths: readonly string[] | null;
    }
  | { kind: 'tag'; tag: string }
  /** `jobs`: null for all jobs that users may start. */
  | { kind: 'manual'; job: string | null }
  | { kind: 'schedule'; jobs: readonly string[] };

/** `job`: the position of the needed job in the list. */
type PlannedNeed = { job: number; when: NeedCondition };

export type PlannedJob = {
  /** The name in the file. */
  key: string;
  /** Counts the combinations of the matrix from 1; null without a matrix. */
  number: number | null;
  combination: Readonly<Record<string, string>>;
  settings: JobSettings;
  needs: readonly PlannedNeed[];
  maxParallel: number | null;
  inputs: readonly { job: string; path?: string | undefined; to?: string | undefined }[];
};

/**
 * Selects the jobs that the trigger matches, the jobs that these need, and the jobs without `on` that need only jobs of
 * the run. Empty if the trigger matches no job.
 * @returns names in the order of the file
 */
export function selectJobs({ jobs }: JobFile, trigger: Trigger): string[] {
  const selected = new Set<string>();
  const add = (name: string) => {
    if (selected.has(name)) return;
    selected.add(name);
    for (const need of jobs.get(name)?.needs ?? []) add(need.job);
  };
  for (const [name, job] of jobs) if (isStartedBy(name, job, trigger)) add(name);
  if (selected.size === 0) return [];
  for (let isGrowing = true; isGrowing; ) {
    isGrowing = false;
    for (const [name, { on, needs }] of jobs) {
      if (on || !needs || selected.has(name)) continue;
      if (!needs.every(({ job }) => selected.has(job))) continue;
      selected.add(name);
      isGrowing = true;
    }
  }
  return [...jobs.keys()].filter((name) => selected.has(name));
}

function isStartedBy(name: string, { on }: FileJob, trigger: Trigger): boolean {
  switch (trigger.kind) {
    case 'push': {
      if (!on?.push) return false;
      const { branches, paths } = on.push === true ? {} : on.push;
      if (branches && !matchesAny(branches, trigger.branch, matchesPattern)) return false;
      const changed = trigger.paths;
      return !paths || !changed || changed.some((path) => matchesAny(paths, path, matchesPath));
    }
    case 'tag':
      return on?.tag !== undefined && matchesAny(on.tag, trigger.tag, matchesPattern);
    case 'manual':
      return on?.manual === true && (trigger.job === null || trigger.job === name);
    case 'schedule':
      return trigger.jobs.includes(name);
  }
}

/** The last pattern that matches decides; one with `!` excludes. */
function matchesAny(
  patterns: readonly string[],
  name: string,
  matches: (pattern: string, name: string) => boolean,
): boolean {
  const last = patterns.findLast((pattern) => matches(pattern.replace(/^!/, ''), name));
  return last !== undefined && !last.startsWith('!');
}

/** Two stars and a slash also match zero folders, unlike in patterns of branch names. */
function matchesPath(pattern: string, path: string): boolean {
  if (matchesPattern(pattern, path)) return true;
  return pattern.startsWith('**/') && matchesPattern(pattern.slice('**/'.length), path);
}

/** Whether a filter of the file needs the changed paths. */
export function hasPathFilters({ jobs }: JobFile): boolean {
  return [...jobs.values()].some(({ on }) => on?.push && on.push !== true && on.push.paths);
}

/**
 * Lists the jobs to create, each after those that it needs.
 * @param names as of `selectJobs`; needs of jobs that are not among them are left out
 */
export function planJobs(file: JobFile, names: readonly string[], branch: string): PlannedJob[] {
  const planned: PlannedJob[] = [];
  const positions = new Map<string, number[]>();
  for (const name of orderByNeeds(file, names)) {
    const job = file.jobs.get(name);
    if (!job) continue;
    const combinations = combine(job.matrix ?? {});
    for (const [i, combination] of combinations.entries()) {
      positions.set(name, [...(positions.get(name) ?? []), planned.length]);
      planned.push({
        key: name,
        number: job.matrix ? i + 1 : null,
        combination,
        settings: toRequest({ job, defaults: file.defaults, branch, combination }),
        needs: [],
        maxParallel: job.max_parallel ?? null,
        inputs: job.inputs ?? [],
      });
    }
  }
  return planned.map((job) => ({
    ...job,
    needs: (file.jobs.get(job.key)?.needs ?? []).flatMap(({ job: needed, when }) =>
      (positions.get(needed) ?? []).map((position) => ({ job: position, when })),
    ),
  }));
}

/** The checks of the file exclude circles. */
function orderByNeeds({ jobs }: JobFile, names: readonly string[]): string[] {
  const ordered = new Set<string>();
  const add = (name: string) => {
    if (ordered.has(name) || !names.includes(name)) return;
    for (const { job } of jobs.get(name)?.needs ?? []) add(job);
    ordered.add(name);
  };
  for (const name of names) add(name);
  return [...ordered];
}

/**
 * Selects the jobs to run again of a run that is over: those that did not succeed, without those that were not needed, such as
 * one that needs the failure of a job that succeeded.
 */
export function selectUnsuccessful(
  file: JobFile,
  names: readonly string[],
  succeeded: ReadonlySet<string>,
): string[] {
  const again = new Set<string>();
  for (const name of orderByNeeds(file, names)) {
    const needs = file.jobs.get(name)?.needs ?? [];
    const isNeeded = needs.every(
      ({ job, when }) =>
        again.has(job) ||
        when === 'finished' ||
        !names.includes(job) ||
        (when === 'succeeded' && succeeded.has(job)),
    );
    if (isNeeded && !succeeded.has(name)) again.add(name);
  }
  return names.filter((name) => again.has(name));
}

/** All combinations of the values, the last key varying fastest. One without values. */
function combine(matrix: Readonly<Record<string, readonly string[]>>): Record<string, string>[] {
  let combinations: Record<string, string>[] = [{}];
  for (const [key, values] of Object.entries(matrix))
    combinations = combinations.flatMap((before) =>
      values.map((value) => ({ ...before, [key]: value })),
    );
  return combinations;
}
