/** The draft of a new job: its defaults, its validation by the server's rules, and its price. */
import type { VariablesOf } from '../../../graphql/graphql.ts';
import type { CreateJob, JobOptions, RerunData } from './queries.ts';

export type Input = VariablesOf<typeof CreateJob>['input'];

/** The form values as text, so that nothing is corrected while the user types. */
export type Draft = {
  namespace: string;
  name: string;
  source: 'repository' | 'image';
  repo: string;
  branch: string;
  /** The working directory that the job to rerun got instead of a branch. */
  snapshot: string;
  image: string;
  command: string;
  gpu: JobOptions['gpus'][number]['gpu'];
  gpuCount: string;
  cpu: string;
  memoryGb: string;
  diskGb: string;
  region: JobOptions['regions'][number]['region'];
  timeoutMinutes: string;
  retries: string;
  holdOnFailureMinutes: string;
  shellAccess: NonNullable<Input['shellAccess']>;
  outputPath: string;
  /** Lines of paths and patterns. */
  testReports: string;
  /** Lines of `job:path:to` or `namespace/name@ref:path=to`. */
  inputs: string;
  /** Lines of `name:to`, with `:ro` or `:rw` at the end. */
  volumes: string;
  /** Lines of `path=key`, or `path=key | restore key`. */
  cache: string;
  checkpointPath: string;
  /** Has an effect only with a path. */
  checkpointMinutes: string;
  /** Lines of `NAME=value`. */
  env: string;
  secrets: string;
  /** Names of stored variables and secrets, separated by spaces. */
  variableNames: string;
  secretNames: string;
  /** Lines of `key=value`. */
  labels: string;
  /** Settings of the job to rerun for which the form has no fields. */
  kept: KeptSettings;
};

type KeptSettings = Pick<
  Input,
  'permissions' | 'idTokens' | 'checks' | 'needs' | 'concurrency' | 'maxCost' | 'idleTimeoutMinutes'
>;

type CheckInput = NonNullable<Input['checks']>[number];
type NeedInput = NonNullable<Input['needs']>[number];
type RerunJob = NonNullable<RerunData['job']>;

/** That of the server. */
const DEFAULT_CHECKPOINT_MINUTES = '10';

export type Problems = Partial<Record<keyof Draft, string>>;

export function newDraft(options: JobOptions, given: Partial<Draft>): Draft {
  const text = (value: number | null) => String(value ?? '');
  return {
    namespace: '',
    name: '',
    source: given.image ? 'image' : 'repository',
    repo: '',
    branch: '',
    snapshot: '',
    image: '',
    command: '',
    gpu: 'NONE',
    gpuCount: '1',
    cpu: text(options.suggestedSize.cpu),
    memoryGb: text(options.suggestedSize.memoryGb),
    diskGb: text(options.diskGb.default),
    region: options.defaultRegion,
    timeoutMinutes: text(options.timeoutMinutes.default),
    retries: text(options.retries.default),
    holdOnFailureMinutes: text(options.holdOnFailureMinutes.default),
    shellAccess: 'ALLOWED',
    outputPath: '',
    testReports: '',
    inputs: '',
    volumes: '',
    cache: '',
    checkpointPath: '',
    checkpointMinutes: DEFAULT_CHECKPOINT_MINUTES,
    env: '',
    secrets: '',
    variableNames: '',
    secretNames: '',
    labels: '',
    kept: {},
    ...given,
  };
}

/** The settings of the job to rerun. The server returns only the names of its variables, not their values. */
export function draftFromJob({ job, namespace }: RerunData): Partial<Draft> {
  if (!job) return {};
  const base = job.name.replace(/-\d+$/, '');
  const numbers = (namespace?.jobs?.nodes ?? []).map(({ name }) =>
    Number(name.startsWith(`${base}-`) ? name.slice(base.length + 1) : 1),
  );
  const lines = (names: readonly string[]) => names.map((name) => `${name}=`).join('\n');
  return {
    namespace: job.namespace,
    name: `${base}-${Math.max(1, ...numbers.filter(Number.isSafeInteger)) + 1}`,
    source: job.repo ? 'repository' : 'image',
    repo: job.repo ?? '',
    branch: job.branch ?? '',
    snapshot: job.snapshot ?? '',
    image: job.image ?? '',
    command: job.command,
    gpu: job.gpu,
    gpuCount: String(job.gpuCount),
    cpu: String(job.cpu),
    memoryGb: String(job.memoryGb),
    diskGb: String(job.diskGb),
    region: job.region,
    timeoutMinutes: String(job.timeoutMinutes),
    retries: String(job.retries),
    holdOnFailureMinutes: String(job.holdOnFailureMinutes),
    shellAccess: job.shellAccess,
    outputPath: job.outputPath ?? '',
    testReports: job.testReports.join('\n'),
    inputs: [
      ...job.inputs.map(({ jobName, path, to }) => formatInput({ job: jobName, path, to })),
      ...job.repositoryInputs.map(formatInput),
    ].join('\n'),
    volumes: job.volumes
      .map(({ name, to, readOnly }) => `${name}:${to}:${readOnly ? 'ro' : 'rw'}`)
      .join('\n'),
    cache: job.caches
      .map(({ path, key, restoreKeys }) => [`${path}=${key}`, ...restoreKeys].join(' | '))
      .join('\n'),
    checkpointPath: job.checkpointPath ?? '',
    checkpointMinutes: String(job.checkpointMinutes ?? DEFAULT_CHECKPOINT_MINUTES),
    env: lines(job.environmentNames),
    secrets: lines(job.secretNames),
    kept: keptSettingsOf(job),
    variableNames: job.storedVariableNames.join(' '),
    secretNames: job.storedSecretNames.join(' '),
    labels: job.labels.map(({ key, value }) => (value ? `${key}=${value}` : key)).join('\n'),
  };
}

/** Without the fields that do not apply. */
function toCheckInput({
  metric,
  min,
  max,
  regressPercent,
  better,
  baselineJob,
}: RerunJob['checks'][number]): CheckInput {
  return {
    metric,
    ...(min !== null && { min }),
    ...(max !== null && { max }),
    ...(regressPercent !== null && { regressPercent, better, baselineJob }),
  };
}

function keptSettingsOf({
  permissions,
  idTokens,
  checks,
  needs,
  concurrency,
  maxCost,
  idleTimeoutMinutes,
}: RerunJob): KeptSettings {
  const existingNeeds = needs.flatMap((need) => toNeedInput(need) ?? []);
  return {
    ...(permissions && { permissions: { repo: permissions.repo, jobs: permissions.jobs } }),
    ...(idTokens.length > 0 && {
      idTokens: idTokens.map(({ variable, audience }) => ({ variable, audience })),
    }),
    ...(checks.length > 0 && { checks: checks.map(toCheckInput) }),
    ...(existingNeeds.length > 0 && { needs: existingNeeds }),
    ...(concurrency && {
      concurrency: { group: concurrency.group, onConflict: concurrency.onConflict },
    }),
    ...(maxCost !== null && { maxCost }),
    ...(idleTimeoutMinutes !== null && { idleTimeoutMinutes }),
  };
}

/** Null if the needed job was deleted. One that has ended does not keep the new job from running, even if it failed, as with `rerunJob`. */
function toNeedInput({ job, array, when }: RerunJob['needs'][number]): NeedInput | null {
  const needed = array ?? job;
  if (!needed) return null;
  const statuses = array ? array.counts.map(({ status }) => status) : [job?.status];
  const isOpen = statuses.includes('QUEUED') || statuses.includes('RUNNING');
  return { job: needed.name, when: isOpen ? when : 'FINISHED' };
}

/** Whether the draft equals the job, so that the server can rerun it with the stored values of its variables. */
export function isUnchanged(draft: Draft, first: Draft): boolean {
  return (Object.keys(first) as (keyof Draft)[]).every(
    (field) => field === 'name' || draft[field] === first[field],
  );
}

/** Variables of the job to rerun that have no value yet and would be empty. */
export function findMissingValues(draft: Draft, first: Draft): Problems {
  const problems: Problems = {};
  for (const field of ['env', 'secrets'] as const) {
    const names = first[field].split('\n').filter((line) => line.endsWith('='));
    const missing = draft[field].split('\n').find((line) => line && names.includes(line));
    if (missing)
      problems[field] =
        `Enter the value of ${missing.slice(0, -1)}, or remove the line. Values are not shown again.`;
  }
  return problems;
}

/** Validates by the rules in `jobOptions`; the server validates again. */
export function validateDraft(draft: Draft, options: JobOptions): Problems {
  const problems: Problems = {};
  const { name, source, repo, image, command } = draft;
  const { maxLength, pattern } = options.name;
  if (!name) problems.name = 'Enter a name';
  else if (name.length > (maxLength ?? Infinity) || !matches(pattern, name))
    problems.name = `At most ${maxLength} letters, digits, hyphens and underscores`;
  if (source === 'repository' && !repo) problems.repo = 'Choose a repository or an image';
  if (source === 'image' && !image) problems.image = 'Enter an image or choose a repository';
  else if (source === 'image' && !matches(options.image.pattern, image))
    problems.image = 'Must be the name of an image, such as python:3.12-slim';
  if (!command.trim()) problems.command = 'Enter a command';
  else if (new TextEncoder().encode(command).length > (options.command.maxBytes ?? Infinity))
    problems.command = `At most ${options.command.maxBytes} bytes`;

  const gpuCount = Number(draft.gpuCount);
  const cpu = Number(draft.cpu);
  // After a change of the namespace, whose own machines may have more models.
  if (!options.gpus.some(({ gpu }) => gpu === draft.gpu))
    problems.gpu = `Choose a GPU that is offered to ${draft.namespace}`;
  if (draft.gpu === 'NONE' && gpuCount > 1) problems.gpuCount = 'Must be 1 without a GPU';
  if (cpu < gpuCount) problems.cpu = `${gpuCount} GPUs need at least ${gpuCount} vCPUs`;
  const minMemory = Math.max(options.memoryGb.min, Math.ceil(cpu * options.minMemoryGbPerCpu));
  const maxMemory = Math.floor(Math.min(options.memoryGb.max, cpu * options.maxMemoryGbPerCpu));
  const ranges = {
    ...(options.cpuRange && { cpu: options.cpuRange }),
    memoryGb: { min: minMemory, max: maxMemory },
    diskGb: options.diskGb,
    timeoutMinutes: options.timeoutMinutes,
    retries: options.retries,
    holdOnFailureMinutes: options.holdOnFailureMinutes,
  };
  for (const [field, { min, max }] of Object.entries(ranges)) {
    const value = Number(draft[field as keyof Draft]);
    if (!(Number.isInteger(value) && value >= min && value <= max))
      problems[field as keyof Draft] = `From ${min} to ${max}`;
  }
  if (/(^|\/)\.\.(\/|$)/.test(draft.outputPath))
    problems.outputPath = 'No part of the path may be ..';
  if (parseInputs(draft.inputs).includes(null))
    problems.inputs = 'Each line must be job:path:to or namespace/name@ref:path=to';
  if (/^\/|(^|\/)\.\.(\/|$)/.test(draft.checkpointPath))
    problems.checkpointPath = 'Must be a folder in the working directory, such as checkpoints';
  if (draft.checkpointPath && !/^\d{1,4}$/.test(draft.checkpointMinutes))
    problems.checkpointMinutes = 'From 0 to 1440';
  if (parseVolumes(draft.volumes).includes(null))
    problems.volumes = 'Each line must be name:folder, with :ro or :rw at the end if wanted';
  if (parseCaches(draft.cache).includes(null))
    problems.cache = 'Each line must be path=key, with beginnings of other keys after |';
  for (const field of ['env', 'secrets'] as const) {
    const wrong = parsePairs(draft[field]).find(
      (each) => !each || !matches(options.variables.namePattern, each[0]),
    );
    if (wrong !== undefined)
      problems[field] =
        'Each line must be NAME=value, with letters, digits and underscores in the name.';
  }
  if (parsePairs(draft.labels, true).some((each) => !each))
    problems.labels = 'Each line must be key=value';
  return problems;
}

export function toCreateInput(draft: Draft): Input {
  const holdOnFailureMinutes = Number(draft.holdOnFailureMinutes);
  const isOfRepository = draft.source === 'repository';
  const { idleTimeoutMinutes, ...kept } = draft.kept;
  const variables = (text: string) =>
    parsePairs(text).flatMap((pair) => (pair ? [{ name: pair[0], value: pair[1] }] : []));
  const names = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  const labels = parsePairs(draft.labels, true).flatMap((pair) =>
    pair ? [{ key: pair[0], value: pair[1] }] : [],
  );
  return {
    namespace: draft.namespace,
    name: draft.name,
    command: draft.command,
    ...(isOfRepository && {
      repo: draft.repo,
      ...(draft.branch && { branch: draft.branch }),
      ...(draft.snapshot && { snapshot: draft.snapshot }),
    }),
    ...(draft.image && { image: draft.image }),
    gpu: draft.gpu,
    gpuCount: Number(draft.gpuCount),
    cpu: Number(draft.cpu),
    memoryGb: Number(draft.memoryGb),
    diskGb: Number(draft.diskGb),
    region: draft.region,
    timeoutMinutes: Number(draft.timeoutMinutes),
    retries: Number(draft.retries),
    ...(holdOnFailureMinutes > 0 && { holdOnFailureMinutes }),
    ...(draft.shellAccess === 'NONE' && { shellAccess: draft.shellAccess }),
    ...(draft.outputPath && { outputPath: draft.outputPath }),
    ...(draft.testReports.trim() && {
      testReports: readLines(draft.testReports).map((line) => line.trim()),
    }),
    ...(draft.inputs.trim() && {
      inputs: parseInputs(draft.inputs).flatMap((input) => input ?? []),
    }),
    ...(draft.volumes.trim() && {
      volumes: parseVolumes(draft.volumes).flatMap((volume) => volume ?? []),
    }),
    ...(draft.cache.trim() && {
      cache: parseCaches(draft.cache).flatMap((cache) => cache ?? []),
    }),
    ...(draft.checkpointPath && {
      checkpointPath: draft.checkpointPath,
      checkpointMinutes: Number(draft.checkpointMinutes),
    }),
    ...(draft.env.trim() && { env: variables(draft.env) }),
    ...(draft.secrets.trim() && { secrets: variables(draft.secrets) }),
    ...(draft.variableNames.trim() && { variableNames: names(draft.variableNames) }),
    ...(draft.secretNames.trim() && { secretNames: names(draft.secretNames) }),
    ...(labels.length > 0 && { labels }),
    ...kept,
    ...(draft.gpu !== 'NONE' && idleTimeoutMinutes != null && { idleTimeoutMinutes }),
  };
}

/** Null for a line that is not `path=key`, or `path=key | restore key`. */
function parseCaches(text: string) {
  return readLines(text).map((line) => {
    const [first = '', ...restoreKeys] = line.split('|').map((part) => part.trim());
    const [, path, key] = /^([^=]+)=(.+)$/.exec(first) ?? [];
    return path && key ? { path, key, ...(restoreKeys.length > 0 && { restoreKeys }) } : null;
  });
}

/** Null for a line that is not `name:to`, `name:to:ro` or `name:to:rw`. */
function parseVolumes(text: string) {
  return readLines(text).map((line) => {
    const [, name, to, mode] = /^([^:]+):([^:]+)(?::(ro|rw))?$/.exec(line.trim()) ?? [];
    return name && to ? { name, to, ...(mode && { readOnly: mode === 'ro' }) } : null;
  });
}

/** Why no worker can run the job now; null if one can. */
export function findLackingCapacity(
  { gpu, gpuCount }: Draft,
  { gpus, largestMachine }: JobOptions,
): string | null {
  if (!largestMachine) return 'No worker runs jobs now.';
  const option = gpus.find((each) => each.gpu === gpu);
  const offered = option?.maxOffered ?? Number.POSITIVE_INFINITY;
  if (!option || offered >= Number(gpuCount)) return null;
  return offered === 0
    ? `No worker has the GPU ${option.name} now.`
    : `No worker has more than ${offered} × ${option.name} now.`;
}

/** Per hour, of GPUs, vCPUs, memory and disk. */
export function pricePerHour(draft: Draft, options: JobOptions): number {
  const gpu = options.gpus.find((each) => each.gpu === draft.gpu);
  const gpus = draft.gpu === 'NONE' ? 0 : Number(draft.gpuCount) * Number(gpu?.pricePerHour ?? 0);
  const cpus = Number(draft.cpu) * Number(options.cpuPricePerHour);
  const memory = Number(draft.memoryGb) * Number(options.memoryGbPricePerHour);
  return gpus + cpus + memory + Number(draft.diskGb) * Number(options.diskGbPricePerHour);
}

type FilesInput = NonNullable<Input['inputs']>[number];

/** Formats an input as a line of the draft, which is also the form that `loam run --input` takes. */
export function formatInput({ job, repo, ref, path, to, readOnly }: FilesInput): string {
  if (repo)
    return `${repo}${ref ? `@${ref}` : ''}${path ? `:${path}` : ''}${to ? `=${to}` : ''}${readOnly ? ':ro' : ''}`;
  return [job, path, to].join(':').replace(/:+$/, '');
}

/**
 * Parses lines of `job`, `job:path` or `job:path:to`, or of `namespace/name`, `@ref`, `:path` and `=to` or `=to:ro`; null for any other line. A
 * slash in the name says that it is a repository.
 */
function parseInputs(text: string): (FilesInput | null)[] {
  return readLines(text).map((line) => {
    if (/^[^:=@]*\//.test(line.trim())) {
      const pattern = /^([^/:=@]+\/[^/:=@]+)(?:@([^:=]+))?(?::([^=]*))?(?:=(.*?)(:ro)?)?$/;
      const [, repo, ref, path, to, mode] = pattern.exec(line.trim()) ?? [];
      const readOnly = mode !== undefined && { readOnly: true };
      return repo
        ? { repo, ...(ref && { ref }), path: path ?? '', to: to ?? '', ...readOnly }
        : null;
    }
    const [job = '', path = '', to = '', ...more] = line.trim().split(':');
    return job && more.length === 0 ? { job, path, to } : null;
  });
}

/** Parses lines of `name=value`; null for a line that is not a pair. */
function parsePairs(
  text: string,
  isValueOptional = false,
): ([name: string, value: string] | null)[] {
  return readLines(text).map((line) => {
    const at = line.indexOf('=');
    if (at < 0) return isValueOptional ? [line.trim(), ''] : null;
    return at === 0 ? null : [line.slice(0, at).trim(), line.slice(at + 1)];
  });
}

function readLines(text: string): string[] {
  return text.split('\n').filter((line) => line.trim());
}

function matches(pattern: string | null, text: string): boolean {
  return pattern === null || new RegExp(pattern, 'u').test(text);
}
