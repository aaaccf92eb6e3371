/** Decides which jobs of a file a trigger starts, and in what order. Pure functions. */
import type { NeedCondition } from '../../prisma/generated/enums.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import { type OfferDeps, readLastingOffer } from '../jobs/queue/offer.ts';
import type { InputRequest } from '../jobs/requests/run-jobs.ts';
import { type MatchingWork, Pattern } from '../repositories/repositories.ts';
import {
  type JobFile,
  type JobSettings,
  type Problem,
  readJobFile,
  toInputs,
  toRequest,
} from './file.ts';
import { type Combination, combine } from './matrix.ts';
import type { RunValue } from './run-inputs.ts';

export type Trigger =
  /** `paths`: null if unknown, so that every filter matches. */
  | { kind: 'push'; branch: string; paths: readonly string[] | null }
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
  combination: Combination;
  settings: JobSettings;
  needs: readonly PlannedNeed[];
  /** The jobs whose outputs it gets, in the order of the file. A number is a position in the list, a text the id of a job of an earlier run. */
  outputsOf: readonly (string | number)[];
  maxParallel: number | null;
  inputs: readonly InputRequest[];
};

/**
 * Selects the jobs that the trigger matches, the jobs that these need, and the jobs without `on` that need only jobs of
 * the run. Empty if the trigger matches no job.
 * @returns names in the order of the file
 */
export function selectJobs(file: JobFile, trigger: Trigger): string[] {
  const { jobs } = file;
  const selected = new Set<string>();
  const add = (name: string) => {
    if (selected.has(name)) return;
    selected.add(name);
    for (const need of jobs.get(name)?.needs ?? []) add(need.job);
  };
  for (const name of findStarted(file, trigger)) add(name);
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

/** The jobs that the trigger starts by itself. */
function findStarted({ jobs }: JobFile, trigger: Trigger): string[] {
  const matcher = new FilterMatcher();
  const names = [...jobs.keys()];
  const onOf = (name: string) => jobs.get(name)?.on;
  switch (trigger.kind) {
    case 'push': {
      const filterOf = (name: string) => {
        const push = onOf(name)?.push;
        return push === true ? {} : push;
      };
      const ofBranch = names.filter((name) => {
        const filter = filterOf(name);
        return filter && (!filter.branches || matcher.matches(filter.branches, trigger.branch));
      });
      return matcher.selectByPaths(ofBranch, (name) => filterOf(name)?.paths, trigger.paths);
    }
    case 'tag':
      return names.filter((name) => matcher.matches(onOf(name)?.tag ?? [], trigger.tag));
    case 'manual':
      return names.filter((name) => onOf(name)?.manual && (trigger.job ?? name) === name);
    case 'schedule':
      return names.filter((name) => trigger.jobs.includes(name));
  }
}

/** Takes about 50 ms. */
const MAX_MATCHING_STEPS = 2_000_000;

/**
 * Matches the filters of one trigger. After `MAX_MATCHING_STEPS`, every filter counts as matching: a job too many is better than
 * a missing one, or than a server that does nothing else.
 */
class FilterMatcher {
  readonly #work: MatchingWork = { steps: 0 };
  readonly #patterns = new Map<string, Pattern>();

  /** Whether the patterns select the name. The last pattern that matches decides; one with `!` excludes. */
  matches(
    patterns: readonly string[],
    name: string,
    matchesOne = (text: string) => this.#patternOf(text).matches(name, this.#work),
  ): boolean {
    if (patterns.length === 0) return false;
    const last = patterns.findLast(
      (pattern) => this.#isExhausted() || matchesOne(pattern.replace(/^!/, '')),
    );
    return this.#isExhausted() || (last !== undefined && !last.startsWith('!'));
  }

  /**
   * Selects the jobs whose patterns match one of the paths, each distinct pattern once for each path.
   * @param patternsOf undefined for a job that any path starts
   * @param paths null: unknown, so that every filter matches
   */
  selectByPaths(
    names: readonly string[],
    patternsOf: (name: string) => readonly string[] | undefined,
    paths: readonly string[] | null,
  ): string[] {
    const filters = new Map(names.map((name) => [name, patternsOf(name)]));
    const selected = new Set(names.filter((name) => !paths || !filters.get(name)));
    for (const path of paths ?? []) {
      if (selected.size === filters.size) break;
      const known = new Map<string, boolean>();
      const matchesOne = (text: string) => {
        this.#work.steps++;
        const matches = known.get(text) ?? this.#matchesPath(text, path);
        known.set(text, matches);
        return matches;
      };
      for (const [name, patterns = []] of filters)
        if (!selected.has(name) && this.matches(patterns, path, matchesOne)) selected.add(name);
    }
    return names.filter((name) => selected.has(name));
  }

  /** Two stars and a slash also match zero folders, unlike in patterns of branch names. */
  #matchesPath(text: string, path: string): boolean {
    if (this.#patternOf(text).matches(path, this.#work)) return true;
    const inRoot = text.startsWith('**/') ? text.slice('**/'.length) : null;
    return inRoot !== null && this.#patternOf(inRoot).matches(path, this.#work);
  }

  #patternOf(text: string): Pattern {
    return this.#patterns.getOrInsertComputed(text, () => new Pattern(text));
  }

  #isExhausted(): boolean {
    return this.#work.steps > MAX_MATCHING_STEPS;
  }
}

/** Whether a filter of the file needs the changed paths. */
export function hasPathFilters({ jobs }: JobFile): boolean {
  return [...jobs.values()].some(({ on }) => on?.push && on.push !== true && on.push.paths);
}

/**
 * Lists the jobs to create, each after those that it needs.
 * @param names as of `selectJobs`; needs of jobs that are not among them are left out
 * @param earlier ids of jobs of an earlier run whose outputs replace those of jobs that are left out, by their name in the file
 */
export function planJobs(
  file: JobFile,
  names: readonly string[],
  branch: string,
  inputs: readonly RunValue[] = [],
  earlier: ReadonlyMap<string, readonly string[]> = new Map(),
): PlannedJob[] {
  const planned: PlannedJob[] = [];
  const positions = new Map<string, number[]>();
  for (const name of orderByNeeds(file, names)) {
    const job = file.jobs.get(name);
    if (!job) continue;
    const combinations = combine(job.matrix);
    for (const [i, combination] of combinations.entries()) {
      positions.set(name, [...(positions.get(name) ?? []), planned.length]);
      planned.push({
        key: name,
        number: job.matrix ? i + 1 : null,
        combination,
        settings: toRequest({ name, job, defaults: file.defaults, branch, combination, inputs }),
        needs: [],
        outputsOf: [],
        maxParallel: job.max_parallel ?? null,
        inputs: toInputs(job),
      });
    }
  }
  return planned.map((job) => {
    const needs = file.jobs.get(job.key)?.needs ?? [];
    return {
      ...job,
      needs: needs.flatMap(({ job: needed, when }) =>
        (positions.get(needed) ?? []).map((position) => ({ job: position, when })),
      ),
      outputsOf: needs.flatMap(({ job: needed }) => [
        ...(positions.get(needed) ?? earlier.get(needed) ?? []),
      ]),
    };
  });
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

export type FileCheck = { problems: Problem[]; jobs: PlannedJob[] };

/**
 * Checks a file for its author, before it is pushed.
 * @returns the problems of the file, or all jobs that it can start @throws AppError 401
 */
export async function checkJobFile(
  services: OfferDeps,
  viewer: Viewer,
  text: string,
): Promise<FileCheck> {
  demandAccount(viewer);
  const { file, problems } = readJobFile(text, await readLastingOffer(services));
  return { problems, jobs: file ? planJobs(file, [...file.jobs.keys()], 'main') : [] };
}
