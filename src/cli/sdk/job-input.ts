/** What a job runs and on what, in the form of people, and its conversion to the input of `createJob`. */
import { LoamError } from './errors.ts';
import type { Gpu, Region } from './job-info.ts';
import { checkOptions, type OptionNames } from './options.ts';

export type JobOptions = {
  /** By default the namespace of `repo`, else that of the caller. */
  namespace?: string | undefined;
  /** Letters, digits, hyphens and underscores. By default made of the command, with a random suffix. */
  name?: string | undefined;
  /** The repository to check out: `namespace/name`, or `name` of the caller. `namespace/name@branch` names a branch. */
  repo?: string | undefined;
  branch?: string | undefined;
  /** The id of a snapshot of `repo` that was pushed to `refs/loam/snapshots/<id>`; instead of a branch. */
  snapshot?: string | undefined;
  /** The container image. */
  image?: string | undefined;
  /** A model and a number, such as `A100-80GB:2`; `none` by default. */
  gpu?: string | undefined;
  /** vCPUs. */
  cpu?: number | undefined;
  memoryGb?: number | undefined;
  diskGb?: number | undefined;
  /** Such as `us-east-1`. */
  region?: string | undefined;
  /** Of one attempt. */
  timeoutMinutes?: number | undefined;
  /** The job is cancelled when it has cost this, such as `5.00`. */
  maxCost?: string | undefined;
  /** The job is cancelled when its GPUs were idle for so long. */
  idleTimeoutMinutes?: number | undefined;
  /** How long the sandbox stays when the command of the last attempt fails, so that one can look into it. */
  holdOnFailureMinutes?: number | undefined;
  /** `none`: nobody can open a shell in the job, not even an admin. */
  shellAccess?: 'allowed' | 'none' | undefined;
  /** How many times a failed job is retried. */
  retries?: number | undefined;
  env?: Record<string, string> | undefined;
  /** Stored encrypted, masked in the log, and never shown. */
  secrets?: Record<string, string> | undefined;
  /** Names of secrets of the repository or its namespace, which each attempt gets as environment variables. */
  secretNames?: readonly string[] | undefined;
  /** Names of variables of the repository or its namespace. */
  variableNames?: readonly string[] | undefined;
  labels?: Record<string, string> | undefined;
  /** Files under this path are kept as artifacts when the job ends. */
  outputPath?: string | undefined;
  /** What the job may do in Loam while it runs, with `LOAM_TOKEN` at `LOAM_URL`. Nothing by default. */
  permissions?: { repo?: 'read' | 'write'; jobs?: 'read' | 'write' } | undefined;
  /** Identity tokens for other systems: the variable of each, and its audience. `<variable>_FILE` names a file that is renewed. */
  idTokens?: Record<string, string> | undefined;
  /** Jobs or arrays of the namespace that must have ended before this one starts: by default with success. */
  needs?: readonly (string | NeededJob)[] | undefined;
  /** Creates many jobs, `<name>-0` and so on, with `JOB_ARRAY_INDEX` in the environment. The job of the answer is the first. */
  array?: { size: number; maxParallel?: number | undefined } | undefined;
  /** A group of which one job runs at a time. */
  concurrency?: { group: string; onConflict?: OnConflict | undefined } | undefined;
  /** Artifacts of other jobs of the namespace and files of repositories, which are copied into the working directory. */
  inputs?: (InputArtifacts | InputRepository)[] | undefined;
  /** Volumes of the server, data on its machines, which the job mounts. */
  volumes?: VolumeMount[] | undefined;
  /** Folders that the job finds as an earlier job of the repository has left them. */
  cache?: JobCache[] | undefined;
  /**
   * A folder in the working directory whose content the next attempt gets. The command finds its path, relative to the working
   * directory, in `JOB_CHECKPOINT`.
   */
  checkpointPath?: string | undefined;
  /** How often that folder is stored while the job runs, by default every 10 minutes; 0: only at the end of attempts. */
  checkpointMinutes?: number | undefined;
  /** What its metrics must meet for the job to succeed. */
  checks?: MetricCheck[] | undefined;
  /** JUnit files of the tests, relative to the working directory: paths or patterns such as `reports/*.xml`. */
  testReports?: string[] | undefined;
};

export type NeededJob = { job: string; when?: 'succeeded' | 'failed' | 'finished' };

/** If another job of the group has not ended: wait for it, cancel it, or be cancelled. */
type OnConflict = 'queue' | 'cancel-running' | 'skip';

export type InputArtifacts = {
  /** The name of the job. */
  job: string;
  /** A file or folder among its artifacts; by default all. */
  path?: string | undefined;
  /** Where it is put in the working directory; a file is put into a folder that ends with a slash. */
  to?: string | undefined;
};

export type InputRepository = {
  /** `namespace/name`. */
  repo: string;
  /** A branch, a tag or a commit id; by default the default branch. */
  ref?: string | undefined;
  /** A file or folder of the repository; by default all. */
  path?: string | undefined;
  /** As for artifacts. */
  to?: string | undefined;
  /** Whether a folder may be mounted, so that the job cannot change it and need not wait for a copy. */
  readOnly?: boolean | undefined;
};

export type VolumeMount = {
  /** The name of the volume. */
  name: string;
  /** The folder at which the job has it: below the working directory, such as `data`, or `/data`. */
  to: string;
  /** Whether the job can only read it; by default as the volume permits. */
  readOnly?: boolean | undefined;
};

export type JobCache = {
  /** Below the working directory, such as `node_modules`, or below the home folder: `~/.npm`. */
  path: string;
  /**
   * A name of its contents, such as `npm-${hash:package-lock.json}`. `${hash:path}` stands for the contents of a file of the commit,
   * `${branch}`, `${os}` and `${arch}` for those of the job.
   */
  key: string;
  /** Beginnings of keys that are restored if no cache has the key. */
  restoreKeys?: string[] | undefined;
};

/** The value that the successful attempt printed last counts. */
export type MetricCheck = {
  metric: string;
  /** The lowest value with which the job succeeds. */
  min?: number | undefined;
  /** The highest one. */
  max?: number | undefined;
  /** How many percent worse than the baseline it may be. */
  regressPercent?: number | undefined;
  /** Which values are better, for `regressPercent`; by default higher ones. */
  better?: 'higher' | 'lower' | undefined;
  /** The job in `.loam/jobs.yml` whose last success on the default branch is the baseline. */
  baselineJob?: string | undefined;
};

const JOB_OPTIONS: OptionNames<JobOptions> = {
  namespace: true,
  name: true,
  repo: true,
  branch: true,
  snapshot: true,
  image: true,
  gpu: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  region: true,
  timeoutMinutes: true,
  maxCost: true,
  idleTimeoutMinutes: true,
  holdOnFailureMinutes: true,
  shellAccess: true,
  retries: true,
  env: true,
  secrets: true,
  secretNames: true,
  variableNames: true,
  labels: true,
  outputPath: true,
  permissions: true,
  idTokens: true,
  needs: true,
  array: true,
  concurrency: true,
  inputs: true,
  volumes: true,
  cache: true,
  checkpointPath: true,
  checkpointMinutes: true,
  checks: true,
  testReports: true,
};

const CHECK_OPTIONS: OptionNames<MetricCheck> = {
  metric: true,
  min: true,
  max: true,
  regressPercent: true,
  better: true,
  baselineJob: true,
};

type ShellAccess = 'ALLOWED' | 'NONE';
type Need = { job: string; when?: 'SUCCEEDED' | 'FAILED' | 'FINISHED' };
type Conflict = 'QUEUE' | 'CANCEL_RUNNING' | 'SKIP';
type Access = 'READ' | 'WRITE';
type Pair<Key extends string> = { [K in Key]: string } & { value: string };

/** `CreateJobInput` of the schema. */
type CreateInput = {
  namespace: string;
  name: string;
  command: string;
  gpu: Gpu;
  gpuCount?: number;
  repo?: string;
  branch?: string;
  snapshot?: string;
  image?: string;
  cpu?: number;
  memoryGb?: number;
  diskGb?: number;
  region?: Region;
  timeoutMinutes?: number;
  maxCost?: string;
  idleTimeoutMinutes?: number;
  holdOnFailureMinutes?: number;
  shellAccess?: ShellAccess;
  retries?: number;
  outputPath?: string;
  needs?: Need[];
  array?: { size: number; maxParallel?: number };
  concurrency?: { group: string; onConflict?: Conflict };
  inputs?: {
    job?: string;
    repo?: string;
    ref?: string;
    path?: string;
    to?: string;
    readOnly?: boolean;
  }[];
  volumes?: { name: string; to: string; readOnly?: boolean }[];
  cache?: { path: string; key: string; restoreKeys?: string[] }[];
  checkpointPath?: string;
  checkpointMinutes?: number;
  checks?: (Omit<MetricCheck, 'better'> & { better?: 'HIGHER' | 'LOWER' })[];
  testReports?: string[];
  env?: Pair<'name'>[];
  secrets?: Pair<'name'>[];
  secretNames?: string[];
  variableNames?: string[];
  labels?: Pair<'key'>[];
  permissions?: { repo?: Access; jobs?: Access };
  idTokens?: { variable: string; audience: string }[];
};

/** @throws LoamError `invalid_request`: the field is that of `JobOptions` */
export function createInput(
  command: string,
  options: JobOptions & { namespace: string },
): CreateInput {
  checkOptions(options, JOB_OPTIONS);
  const { array, cache, checks, concurrency, inputs, needs, permissions, volumes } = options;
  if (array) checkOptions(array, { size: true, maxParallel: true }, 'array');
  if (concurrency) checkOptions(concurrency, { group: true, onConflict: true }, 'concurrency');
  if (permissions) checkOptions(permissions, { repo: true, jobs: true }, 'permissions');
  for (const input of inputs ?? [])
    checkOptions(
      input,
      'repo' in input
        ? { repo: true, ref: true, path: true, to: true, readOnly: true }
        : { job: true, path: true, to: true },
      'inputs',
    );
  for (const volume of volumes ?? [])
    checkOptions(volume, { name: true, to: true, readOnly: true }, 'volumes');
  for (const one of cache ?? [])
    checkOptions(one, { path: true, key: true, restoreKeys: true }, 'cache');
  for (const one of checks ?? []) checkOptions(one, CHECK_OPTIONS, 'checks');
  for (const need of needs ?? [])
    if (typeof need !== 'string') checkOptions(need, { job: true, when: true }, 'needs');
  const { gpu, gpuCount } = parseGpu(options.gpu ?? 'none');
  const [repo, branch] = parseRepo(options.repo);
  return {
    namespace: options.namespace,
    name: options.name ?? nameFor(command),
    command,
    gpu,
    ...(gpuCount !== undefined && { gpuCount }),
    ...definedOf({
      repo,
      branch: options.branch ?? branch,
      snapshot: options.snapshot,
      image: options.image,
      cpu: options.cpu,
      memoryGb: options.memoryGb,
      diskGb: options.diskGb,
      region: options.region && enumOf<Region>(options.region),
      timeoutMinutes: options.timeoutMinutes,
      maxCost: options.maxCost,
      idleTimeoutMinutes: options.idleTimeoutMinutes,
      holdOnFailureMinutes: options.holdOnFailureMinutes,
      shellAccess: options.shellAccess && enumOf<ShellAccess>(options.shellAccess),
      retries: options.retries,
      outputPath: options.outputPath,
      needs: needs?.map(toNeed),
      array,
      concurrency: concurrency && toConcurrency(concurrency),
      inputs,
      volumes,
      cache,
      checkpointPath: options.checkpointPath,
      checkpointMinutes: options.checkpointMinutes,
      checks: checks?.map(({ better, ...one }) => ({
        ...one,
        ...(better && { better: enumOf<'HIGHER' | 'LOWER'>(better) }),
      })),
      testReports: options.testReports,
      env: options.env && pairs(options.env, 'name'),
      secrets: options.secrets && pairs(options.secrets, 'name'),
      secretNames: options.secretNames && [...options.secretNames],
      variableNames: options.variableNames && [...options.variableNames],
      labels: options.labels && pairs(options.labels, 'key'),
      permissions: permissions && toPermissions(permissions),
      idTokens:
        options.idTokens &&
        Object.entries(options.idTokens).map(([variable, audience]) => ({ variable, audience })),
    }),
  };
}

function toNeed(need: string | NeededJob): Need {
  const { job, when } = typeof need === 'string' ? { job: need, when: undefined } : need;
  return { job, ...(when && { when: enumOf<NonNullable<Need['when']>>(when) }) };
}

function toConcurrency({ group, onConflict }: NonNullable<JobOptions['concurrency']>) {
  return { group, ...(onConflict && { onConflict: enumOf<Conflict>(onConflict) }) };
}

/** `A100-80GB:2` → the model and the number. The server checks both. */
export function parseGpu(text: string): { gpu: Gpu; gpuCount?: number } {
  const [model = '', count, ...more] = text.split(':');
  const isCount = count === undefined || /^\d+$/.test(count);
  if (!isCount || more.length > 0 || !/^[\w./-]+$/.test(model))
    throw new LoamError(
      'invalid_request',
      `gpu: ${text} must be a model and a number, such as A100-80GB:2`,
      { status: 400, field: 'gpu' },
    );
  return { gpu: gpuOf(model), ...(count !== undefined && { gpuCount: Number(count) }) };
}

const CONTRACT_GPUS: readonly Gpu[] = ['NONE', 'T4', 'L4', 'A100_40GB', 'A100_80GB', 'H100_80GB'];

/** A model as people write it, as the schema has it: those of the contract in any case, others unchanged. */
export function gpuOf(text: string): Gpu {
  const name = enumOf<Gpu>(text);
  return CONTRACT_GPUS.includes(name) ? name : text;
}

/** A value as people write it, `us-east-1`, as the schema has it. The server refuses unknown values. */
export function enumOf<E extends string>(text: string): E {
  return text.toUpperCase().replaceAll('-', '_') as E;
}

/** A value of the schema as people write it. */
export function fromEnum(value: string): string {
  return value.toLowerCase().replaceAll('_', '-');
}

function toPermissions(permissions: NonNullable<JobOptions['permissions']>): {
  repo?: Access;
  jobs?: Access;
} {
  const given = Object.entries(permissions).filter(([, access]) => access !== undefined);
  return Object.fromEntries(given.map(([name, access]) => [name, enumOf<Access>(access)]));
}

/** Whether a repository is named with its namespace. The name of a branch may have slashes, too. */
export function hasNamespace(repo: string): boolean {
  return /^[^@]*\//.test(repo);
}

/** `namespace/name@branch` → repository and branch. */
function parseRepo(text: string | undefined): [string | undefined, string | undefined] {
  const at = text?.indexOf('@') ?? -1;
  return at === -1 ? [text, undefined] : [text?.slice(0, at), text?.slice(at + 1)];
}

function pairs<Key extends string>(values: Record<string, string>, key: Key): Pair<Key>[] {
  return Object.entries(values).map(([name, value]) => ({ [key]: name, value }) as Pair<Key>);
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined | ''> };

function definedOf<T extends object>(values: T): Defined<T> {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as Defined<T>;
}

/** A name of the first two words of a command, and five random characters: `python-train-x7k2p`. */
export function nameFor(command: string): string {
  const words = command
    .split(/\s+/)
    .map((word) =>
      word
        .replace(/^.*\//, '')
        .replace(/\.\w+$/, '')
        .replace(/[^A-Za-z0-9_]+/g, '-'),
    )
    .map((word) => word.replace(/^-+|-+$/g, ''))
    .filter((word) => word !== '');
  const stem = words.slice(0, 2).join('-').slice(0, 40).toLowerCase() || 'job';
  const letters = 'abcdefghijkmnpqrstuvwxyz23456789';
  const random = crypto.getRandomValues(new Uint8Array(5));
  return `${stem}-${Array.from(random, (byte) => letters[byte % letters.length]).join('')}`;
}
