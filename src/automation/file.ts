/** Reads and checks `.loam/jobs.yml`. */
import { LRUCache } from 'lru-cache';
import { AppError, invalid } from '../base/errors.ts';
import { type Catalogue, NO_GPU } from '../base/hardware.ts';
import {
  describeIssues,
  MAX_FILE_BYTES,
  MAX_PROBLEMS,
  type Path,
  type Problem,
  quote,
  type ReadYaml,
  readYaml,
} from '../base/yaml.ts';
import type { CheckRequest } from '../jobs/metrics/checks.ts';
import { type OfferDeps, readLastingOffer } from '../jobs/queue/offer.ts';
import { type CreateInput, checkRequest } from '../jobs/requests/jobs.ts';
import type { InputRequest } from '../jobs/requests/run-jobs.ts';
import type { JobsFile } from '../repositories/pushes/triggers.ts';
import { validatePattern } from '../repositories/repositories.ts';
import { type CronTime, cronProblem } from './cron.ts';
import {
  type FileDefaults,
  type FileJob,
  fileSchema,
  JOBS_FILE,
  MAX_IMAGE,
} from './file-schema.ts';
import { type Combination, combine, countOriginals, MAX_COMBINATIONS } from './matrix.ts';
import { defaultRunInputs, inputsOf, type RunValue } from './run-inputs.ts';

export type { Problem } from '../base/yaml.ts';

/** How pushed files are found and checked (`repositories/pushes/triggers.ts`). */
export function createJobsFile(services: OfferDeps): JobsFile {
  return {
    path: JOBS_FILE,
    maxBytes: MAX_FILE_BYTES,
    check: async (text) => readJobFile(text, await readLastingOffer(services)).problems,
  };
}

/** Jobs by name, in the order of the file. */
export type JobFile = { defaults: FileDefaults; jobs: ReadonlyMap<string, FileJob> };

/** `file` is null if there are problems. */
export type ReadFile = { file: JobFile | null; problems: Problem[] };

const MAX_RUN_JOBS = 1_000;
const MAX_PATH_PATTERN = 240;
const MAX_STARS = 8;
/** Times at which the file starts jobs, because each takes about a millisecond to check. */
const MAX_TIMES = 20;
/** Of the settings of all jobs, because a combination repeats the text of the file. */
const MAX_SETTINGS_BYTES = 8 * 2 ** 20;

/** Variables and labels of all jobs, with the defaults in each: checking them takes a microsecond each. */
const MAX_SETTINGS = 20_000;

/** A push reads the same text several times: to show its problems, and to create its run and its schedules. */
const recent = new WeakMap<Catalogue, LRUCache<string, ReadFile>>();

/** @param offer what jobs may request (`readLastingOffer`) */
export function readJobFile(text: string, offer: Catalogue): ReadFile {
  const read = recent.get(offer) ?? new LRUCache<string, ReadFile>({ max: 16 });
  recent.set(offer, read);
  const known = read.get(text) ?? readAndClean(text, offer);
  read.set(text, known);
  return known;
}

function readAndClean(text: string, offer: Catalogue): ReadFile {
  const { file, problems } = checkFile(text, offer);
  // Problems repeat parts of the file, and PostgreSQL stores neither NUL nor half of a surrogate pair.
  const clean = (message: string) => message.replaceAll(/[\p{Cc}\p{Cs}]/gu, '?');
  return { file, problems: problems.map((one) => ({ ...one, message: clean(one.message) })) };
}

function checkFile(text: string, offer: Catalogue): ReadFile {
  const yaml = readYaml(text);
  if (yaml.problems.length > 0) return { file: null, problems: yaml.problems };
  const parsed = fileSchema.safeParse(yaml.value ?? {});
  if (!parsed.success) return { file: null, problems: describeIssues(yaml, parsed.error.issues) };
  const file = {
    defaults: parsed.data.defaults ?? {},
    jobs: new Map(Object.entries(parsed.data.jobs)),
  };
  const checker = new FileChecker(yaml, file, offer);
  checker.check();
  return checker.problems.length > 0
    ? {
        file: null,
        problems: checker.problems.sort((a, b) => a.line - b.line || a.column - b.column),
      }
    : { file, problems: [] };
}

/** The rules that a schema cannot express. */
class FileChecker {
  readonly problems: Problem[] = [];
  readonly #times = new Map<string, ReturnType<typeof cronProblem>>();
  /** By variable: the first job that declares it, and how. */
  readonly #runInputs = new Map<string, { name: string; text: string }>();
  #settingsBytes = 0;
  #settings = 0;
  readonly #yaml: ReadYaml;
  readonly #file: JobFile;
  readonly #offer: Catalogue;
  /** Of each job; none for a job with too many, and if the file has too many, because they would take long. */
  readonly #combinations: ReadonlyMap<string, readonly Combination[]>;

  constructor(yaml: ReadYaml, file: JobFile, offer: Catalogue) {
    this.#yaml = yaml;
    this.#file = file;
    this.#offer = offer;
    const jobs = [...file.jobs];
    const total = jobs.reduce((sum, [, { matrix }]) => sum + countOriginals(matrix), 0);
    this.#combinations = new Map(
      jobs
        .filter(([, { matrix }]) => countOriginals(matrix) <= MAX_COMBINATIONS)
        .filter(() => total <= MAX_RUN_JOBS)
        .map(([name, { matrix }]) => [name, combine(matrix)]),
    );
  }

  check(): void {
    for (const [name, job] of this.#file.jobs) {
      this.#checkStart(name, job);
      this.#checkNeeds(name, job);
      this.#checkInputs(name, job);
      this.#checkRunInputs(name, job);
      this.#checkMatrix(name, job);
      this.#checkGroup(name, job);
      this.#checkRequest(name, job);
      if (this.#settings > MAX_SETTINGS) {
        this.#report(
          ['jobs', name],
          `The jobs have more than ${MAX_SETTINGS} variables and labels together, with the defaults in each job`,
        );
        break;
      }
    }
    if (this.problems.length === 0) this.#checkCycles();
    this.#checkCounts();
  }

  #report(path: Path, message: string): void {
    if (this.problems.length < MAX_PROBLEMS)
      this.problems.push({ ...this.#yaml.locate(path), message });
  }

  #checkStart(name: string, { on, needs }: FileJob): void {
    const path = ['jobs', name];
    if (!on && !needs)
      this.#report(path, `${name}: give \`on\` or \`needs\`, or the job never runs`);
    if (on && !on.push && !on.tag && !on.schedule && !on.manual)
      this.#report([...path, 'on'], `${name}: \`on\` must have push, tag, schedule or manual`);
    if (!on) return;
    const push = on.push === true ? undefined : on.push;
    this.#checkPatterns([...path, 'on', 'push', 'branches'], push?.branches, validatePattern);
    this.#checkPatterns([...path, 'on', 'push', 'paths'], push?.paths, pathPatternProblem);
    this.#checkPatterns([...path, 'on', 'tag'], on.tag, validatePattern);
    for (const [i, schedule] of (on.schedule ?? []).entries()) {
      const problem = this.#checkTime(schedule);
      if (problem)
        this.#report(
          [...path, 'on', 'schedule', i, problem.field],
          `${problem.field} ${problem.message}`,
        );
    }
  }

  #checkTime(time: CronTime): ReturnType<typeof cronProblem> {
    const key = `${time.timezone} ${time.cron}`;
    const known = this.#times.get(key);
    if (known !== undefined) return known;
    // The search for a time that never comes takes the longest.
    if (this.#times.values().some((problem) => problem !== null)) return null;
    const problem =
      this.#times.size < MAX_TIMES
        ? cronProblem(time)
        : { field: 'cron' as const, message: `is one of more than ${MAX_TIMES} times of the file` };
    this.#times.set(key, problem);
    return problem;
  }

  #checkPatterns(
    path: Path,
    patterns: readonly string[] | undefined,
    problemOf: (pattern: string) => string | null,
  ): void {
    for (const [i, pattern] of (patterns ?? []).entries()) {
      const problem = problemOf(pattern.replace(/^!/, ''));
      if (problem) this.#report([...path, i], `${quote(pattern)} ${problem}`);
    }
    if (patterns?.every((pattern) => pattern.startsWith('!')))
      this.#report(path, 'must have a pattern without "!", such as "**"');
  }

  #checkNeeds(name: string, { needs = [] }: FileJob): void {
    const seen = new Set<string>();
    for (const [i, need] of needs.entries()) {
      const path = ['jobs', name, 'needs', i];
      if (need.job === name) this.#report(path, `${name} cannot need itself`);
      else if (!this.#file.jobs.has(need.job))
        this.#report(path, `${name} needs the unknown job ${quote(need.job)}`);
      else if (seen.has(need.job)) this.#report(path, `${name} needs ${need.job} twice`);
      seen.add(need.job);
    }
  }

  #checkInputs(name: string, { inputs = [], needs = [] }: FileJob): void {
    for (const [i, { job }] of inputs.entries()) {
      if (job === undefined) continue;
      const path = ['jobs', name, 'inputs', i, 'job'];
      const other = this.#file.jobs.get(job);
      if (!other) continue;
      if (!needs.some((need) => need.job === job))
        this.#report(path, `${name} must need ${job} to get its artifacts`);
    }
  }

  /** Jobs of a run share the values, so they must declare an input alike. */
  #checkRunInputs(name: string, job: FileJob): void {
    for (const [key, input] of inputsOf(job)) {
      const path = ['jobs', name, 'on', 'manual', 'inputs', key];
      const variable = key.toUpperCase();
      const text = JSON.stringify([key, input]);
      const known = this.#runInputs.get(variable) ?? { name, text };
      this.#runInputs.set(variable, known);
      if (known.name === name && known.text !== text)
        this.#report(path, `${variable} is given twice`);
      else if (known.text !== text)
        this.#report(path, `${name} and ${known.name} declare ${key} differently`);
      const axes = job.matrix ? [job.matrix.axes, ...job.matrix.include] : [];
      const isInMatrix = axes.some((values) =>
        Object.keys(values).some((one) => one.toUpperCase() === variable),
      );
      if (isInMatrix) this.#report(path, `${variable} is also in matrix`);
      if (job.env && variable in job.env) this.#report(path, `${variable} is also in env`);
    }
  }

  #countCombinations(name: string): number {
    const matrix = this.#file.jobs.get(name)?.matrix;
    return this.#combinations.get(name)?.length ?? countOriginals(matrix);
  }

  #checkMatrix(name: string, { matrix, env, max_parallel: maxParallel }: FileJob): void {
    const path = ['jobs', name, 'matrix'];
    if (!matrix) {
      if (maxParallel)
        this.#report(['jobs', name, 'max_parallel'], 'can only be given with matrix');
      return;
    }
    const keys = new Map<string, string>();
    for (const key of [...Object.keys(matrix.axes), ...matrix.include.flatMap(Object.keys)]) {
      const variable = key.toUpperCase();
      const known = keys.get(variable) ?? key;
      if (known !== key) this.#report(path, `${variable} is given twice: ${known} and ${key}`);
      if (env && variable in env) this.#report(path, `${variable} is also in env`);
      keys.set(variable, known);
    }
    const count = this.#countCombinations(name);
    if (count === 0) this.#report(path, '`exclude` leaves no combination');
    if (count > MAX_COMBINATIONS)
      this.#report(path, `must have at most ${MAX_COMBINATIONS} combinations`);
  }

  /**
   * Refuses expressions other than `${branch}` in the name of a group. An expression of another system, such as
   * `${{ github.ref }}`, would stay in the name unchanged, so the jobs of all branches would share one group.
   */
  #checkGroup(name: string, { concurrency }: FileJob): void {
    const unknown = concurrency?.group.replaceAll(BRANCH, '').match(/\$\{[^}]*\}*/)?.[0];
    if (unknown !== undefined)
      this.#report(
        ['jobs', name, 'concurrency', 'group'],
        `${name}: only ${BRANCH} stands for a value (got ${quote(unknown)})`,
      );
  }

  /** The rules of every job, with the same messages. */
  #checkRequest(name: string, job: FileJob): void {
    const { defaults } = this.#file;
    const combinations = this.#combinations.get(name) ?? [];
    const image = job.image ?? defaults.image;
    const common = { namespace: 'n', name: 'n', repo: 'n/n' };
    try {
      const images = new Set<string>();
      for (const values of combinations) {
        if (image === undefined) break;
        const one = expandValues(image, values);
        if (images.has(one)) continue;
        images.add(one);
        const unknown = one.match(/\$\{[^}]{0,60}\}?/)?.[0];
        if (unknown !== undefined)
          throw invalid('image', `${quote(unknown)} is not a key in all combinations of a matrix`);
        checkRequest({ ...common, command: 'true', gpu: NO_GPU, image: one }, this.#offer);
      }
      const combination = longestValues(combinations);
      const inputs = defaultRunInputs(this.#file.jobs, [name]);
      const settings = toRequest({ name, job, defaults, branch: 'main', combination, inputs });
      this.#settings += (settings.env?.length ?? 0) + (settings.labels?.length ?? 0);
      const request = { ...settings, ...common, image: null, inputs: toInputs(job) };
      checkRequest(request, this.#offer);
      const bytes = Buffer.byteLength(JSON.stringify([settings, job.inputs]));
      this.#settingsBytes += bytes * this.#countCombinations(name);
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      const field = toSnakeCase(error.field ?? '');
      const place =
        field in job
          ? ['jobs', name, field]
          : field in defaults
            ? ['defaults', field]
            : ['jobs', name];
      const message = error.field ? error.message.slice(error.field.length + 2) : error.message;
      const what = message.startsWith('[') ? field : `${field} `;
      this.#report(place, `${name}: ${field ? what : ''}${message}`);
    }
  }

  #checkCycles(): void {
    const { jobs } = this.#file;
    const state = new Map<string, 'open' | 'done'>();
    // Depth first; at most 100 jobs, so recursion is bounded.
    const follow = (name: string, trail: readonly string[]): boolean => {
      if (state.get(name) === 'done') return false;
      if (state.get(name) === 'open') {
        const cycle = [...trail.slice(trail.indexOf(name)), name];
        this.#report(['jobs', name, 'needs'], `The jobs need each other: ${cycle.join(' → ')}`);
        return true;
      }
      state.set(name, 'open');
      const isCyclic = (jobs.get(name)?.needs ?? []).some(({ job }) =>
        follow(job, [...trail, name]),
      );
      state.set(name, 'done');
      return isCyclic;
    };
    for (const name of jobs.keys()) if (follow(name, [])) return;
  }

  #checkCounts(): void {
    const sizes = new Map(
      [...this.#file.jobs.keys()].map((name) => [name, this.#countCombinations(name)]),
    );
    const total = [...sizes.values()].reduce((sum, size) => sum + size, 0);
    if (total > MAX_RUN_JOBS)
      this.#report(
        ['jobs'],
        `The file has ${total} jobs with their combinations; at most ${MAX_RUN_JOBS} are allowed`,
      );
    if (this.#settingsBytes > MAX_SETTINGS_BYTES)
      this.#report(
        ['jobs'],
        `The jobs have commands and variables of more than ${MAX_SETTINGS_BYTES / 2 ** 20} MiB with their combinations: move long commands into a file of the repository`,
      );
    for (const [name, { needs = [] }] of this.#file.jobs) {
      const own = sizes.get(name) ?? 1;
      const needed = needs.reduce((sum, { job }) => sum + (sizes.get(job) ?? 1), 0);
      if (own * needed > MAX_NEEDS)
        this.#report(
          ['jobs', name, 'needs'],
          `${name}: at most ${MAX_NEEDS} pairs of combinations may need each other`,
        );
    }
  }
}

/** Between the combinations of one job and those that it needs. */
const MAX_NEEDS = 10_000;

function pathPatternProblem(pattern: string): string | null {
  if (pattern === '' || pattern.length > MAX_PATH_PATTERN)
    return `must have 1 to ${MAX_PATH_PATTERN} characters`;
  if (pattern.startsWith('/'))
    return 'must not begin with "/"; paths begin at the root of the repository';
  if ((pattern.match(/\*+/g) ?? []).length > MAX_STARS)
    return `must have at most ${MAX_STARS} wildcards`;
  return /\*{3}/.test(pattern) ? 'must not contain ***' : null;
}

type RequestSource = {
  /** The name in the file. */
  name: string;
  job: FileJob;
  defaults: FileDefaults;
  /** The name of the branch or tag. */
  branch: string;
  /** The values of the matrix for this job. */
  combination: Combination;
  /** The values of the run. */
  inputs: readonly RunValue[];
};

/** The settings of a job, apart from its name and its commit. */
export type JobSettings = Omit<CreateInput, 'namespace' | 'name' | 'repo' | 'branch' | 'snapshot'>;

export function toRequest({
  name,
  job,
  defaults,
  branch,
  combination,
  inputs,
}: RequestSource): JobSettings {
  const env = {
    ...defaults.env,
    ...Object.fromEntries(inputs.map(({ name, value }) => [name.toUpperCase(), value])),
    ...job.env,
    ...Object.fromEntries(
      Object.entries(combination).map(([key, value]) => [key.toUpperCase(), value]),
    ),
  };
  const labels = { ...defaults.labels, ...job.labels };
  const either = { ...defaults, ...withoutUndefined(job) };
  return {
    command: job.command,
    image: either.image && expandValues(either.image, combination),
    gpu: either.gpu ?? NO_GPU,
    gpuCount: either.gpu_count,
    cpu: either.cpu,
    memoryGb: either.memory_gb,
    diskGb: either.disk_gb,
    region: either.region,
    timeoutMinutes: either.timeout_minutes,
    retries: either.retries,
    env: Object.entries(env).map(([name, value]) => ({ name, value })),
    labels: Object.entries(labels).map(([key, value]) => ({
      key,
      value: value.includes(BRANCH) ? toLabelValue(expandBranch(value, branch)) : value,
    })),
    outputPath: job.output_path,
    secretNames: job.secrets,
    variableNames: job.variables,
    permissions: job.permissions,
    idTokens: job.id_tokens,
    maxCost: job.max_cost,
    idleTimeoutMinutes: job.idle_timeout_minutes,
    holdOnFailureMinutes: job.hold_minutes,
    shellAccess: job.shell,
    volumes: job.volumes?.map(({ name, to, read_only: readOnly }) => ({ name, to, readOnly })),
    cache: job.cache?.map(({ path, key, restore_keys: keys = [] }) => ({
      path,
      key: expandValues(key, combination),
      restoreKeys: keys.map((one) => expandValues(one, combination)),
    })),
    checkpointPath: job.checkpoint_path,
    checkpointMinutes: job.checkpoint_minutes,
    checks: toChecks(name, job),
    testReports: job.test_reports,
    concurrency: job.concurrency && {
      group: expandBranch(job.concurrency.group, branch),
      onConflict: job.concurrency.on_conflict,
    },
  };
}

/** The baseline of a job is the job itself. */
function toChecks(name: string, { check = [] }: FileJob): CheckRequest[] {
  return [check].flat().map(({ regress, ...one }) => ({
    ...one,
    ...(regress !== undefined && {
      regressPercent: Number.parseFloat(regress),
      baselineJob: name,
    }),
  }));
}

/** Inputs in the form of requests, with the names that jobs have in the file. */
export function toInputs({ inputs = [] }: FileJob): InputRequest[] {
  return inputs.map(({ read_only: readOnly, ...input }) => ({ ...input, readOnly }));
}

// biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
const BRANCH = '${branch}';

/** Inserts the name of the branch as plain text. It is never put into a command. */
function expandBranch(text: string, branch: string): string {
  return text.replaceAll(BRANCH, () => branch);
}

/** The longest value of each key, because the limits of a job are also limits of lengths. */
function longestValues(combinations: readonly Combination[]): Combination {
  const longest: Record<string, string> = {};
  for (const [key, value] of combinations.flatMap((one) => Object.entries(one)))
    if (value.length >= (longest[key] ?? '').length) longest[key] = value;
  return longest;
}

/** Inserts the values of the matrix: `node:${version}`. */
function expandValues(text: string, combination: Combination): string {
  return text.replaceAll(/\$\{(\w{1,60})\}/g, (whole, key) =>
    // A longer image is refused.
    Object.hasOwn(combination, key) ? (combination[key] ?? whole).slice(0, MAX_IMAGE + 1) : whole,
  );
}

/** Names of branches have characters that values of labels must not have. */
function toLabelValue(text: string): string {
  return text
    .replaceAll(/[^A-Za-z0-9_.-]/g, '-')
    .slice(0, 63)
    .replaceAll(/^[^A-Za-z0-9]+|[^A-Za-z0-9]+$/g, '');
}

function withoutUndefined<T extends object>(values: T): Partial<T> {
  return Object.fromEntries(
    Object.entries(values).filter(([, value]) => value !== undefined),
  ) as Partial<T>;
}

/** Names in the file that differ from those of the API. */
const FILE_NAMES: Readonly<Record<string, string>> = {
  secretNames: 'secrets',
  variableNames: 'variables',
  checks: 'check',
};

function toSnakeCase(field: string): string {
  const known = FILE_NAMES[field];
  if (known) return known;
  return field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
