/** Validates requests that create a job, and lists the options that a form can offer. */

import { posix } from 'node:path';
import type pg from 'pg';
import type { ShellAccess } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, invalid } from '../../base/errors.ts';
import {
  type Catalogue,
  checkHardware,
  defaultSize,
  defaultsOf,
  NO_GPU,
  type Size,
} from '../../base/hardware.ts';
import { parseImageReference } from '../../base/image-reference.ts';
import { checkMoney } from '../../base/money.ts';
import { entersGitFolder } from '../../git/names.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { anyTargetIn, can, demandAccount, type Viewer } from '../../identity/permissions.ts';
import { isSnapshotId } from '../../repositories/repositories.ts';
import { VALUE_RULES } from '../../repositories/secrets/secrets.ts';
import { WORKING_DIR } from '../../runners/runner.ts';
import { type CacheRequest, checkCaches } from '../caches/request.ts';
import { checkCheckpoint } from '../checkpoints/checkpoints.ts';
import { type CheckRequest, checkMetricChecks } from '../metrics/checks.ts';
import { countGpus, countWaiting, estimateWait } from '../queue/availability.ts';
import { type OfferDeps, offerOf } from '../queue/offer.ts';
import type { QueuePositions } from '../queue/queue-position.ts';
import {
  describeNeed,
  isSuitable,
  readLiveMachines,
  type WorkerCapacity,
} from '../queue/worker-capacity.ts';
import { type CredentialsInput, checkCredentials } from '../record/job-credentials.ts';
import { checkLabels, type Label } from '../record/labels.ts';
import { checkTestReports } from '../reports/request.ts';
import { readFullVolumes } from '../volumes/usage.ts';
import { assumeAccess, checkVolumes, overlaps, type VolumeRequest } from '../volumes/volumes.ts';
import { checkDependencies, type DependencyInput } from './needs.ts';

/** An environment variable. */
export type NamedValue = { name: string; value: string };

/** Files that a job finds in its working directory: artifacts of another job, or files of a repository. */
export type InputRequest = {
  /** The name of a job of the same namespace; this or `repo`. */
  job?: string | null | undefined;
  /** `namespace/name`. */
  repo?: string | null | undefined;
  /** A branch, a tag or a commit id of `repo`; null: the default branch. */
  ref?: string | null | undefined;
  /** A file or folder among the artifacts, or of the repository; null: all. */
  path?: string | null | undefined;
  /** A folder of `repo` may be mounted instead of copied, so that the job cannot change it. */
  readOnly?: boolean | null | undefined;
  /**
   * Where it is put in the working directory; null: the working directory itself. A single file is put into this folder if it
   * ends with a slash, otherwise this is the new path of the file.
   */
  to?: string | null | undefined;
};

/** A checked `InputRequest` of artifacts. Empty paths are the roots. */
export type InputPaths = { job: string; path: string; to: string };

/** A checked `InputRequest` of a repository. */
export type RepositoryInputPaths = {
  repo: string;
  ref: string | null;
  path: string;
  to: string;
  readOnly: boolean;
};

export type CreateInput = {
  namespace: string;
  name: string;
  command: string;
  repo?: string | null;
  image?: string | null;
  branch?: string | null;
  snapshot?: string | null;
  gpu: string;
  gpuCount?: number | null;
  cpu?: number | null;
  memoryGb?: number | null;
  diskGb?: number | null;
  env?: readonly NamedValue[] | null;
  secrets?: readonly NamedValue[] | null;
  /** Names of stored secrets and variables of the repository or namespace. */
  secretNames?: readonly string[] | null;
  variableNames?: readonly string[] | null;
  labels?: readonly Label[] | null;
  region?: string | null;
  timeoutMinutes?: number | null;
  /** A decimal number. */
  maxCost?: string | null;
  idleTimeoutMinutes?: number | null;
  holdOnFailureMinutes?: number | null;
  shellAccess?: ShellAccess | null;
  retries?: number | null;
  outputPath?: string | null;
  inputs?: readonly InputRequest[] | null;
  volumes?: readonly VolumeRequest[] | null;
  cache?: readonly CacheRequest[] | null;
  /** A folder in the working directory whose content the next attempt gets. */
  checkpointPath?: string | null;
  /** How often it is stored while the job runs; 0: only at the end of attempts. */
  checkpointMinutes?: number | null;
  /** What the metrics of the job must meet for it to succeed. */
  checks?: readonly CheckRequest[] | null;
  /** Paths and patterns of JUnit files. */
  testReports?: readonly string[] | null;
} & CredentialsInput &
  DependencyInput;

/** The rules of `checkRequest`, in addition to the rules of hardware and labels. Bytes are bytes of UTF-8. */
export const REQUEST_RULES = {
  name: { maxLength: 100, pattern: /^[A-Za-z0-9_-]+$/ },
  timeoutMinutes: { min: 1, max: 10_080, default: 1_440 },
  retries: { min: 0, max: 5, default: 0 },
  holdOnFailureMinutes: { min: 0, max: 1_440, default: 0 },
  idleTimeoutMinutes: { min: 1, max: 10_080 },
  /** Linux limits one argument to 128 KiB, and the command is an argument of the shell. */
  commandBytes: 100_000,
  repoBytes: 200,
  image: { maxBytes: 512, pattern: /^[\w][\w.:/@+-]*$/ },
  branchBytes: 255,
  outputPathBytes: 1_024,
  inputs: { maxEntries: 20, maxRepositories: 16, pathBytes: 1_024 },
  variables: {
    pattern: /^[A-Za-z_][A-Za-z0-9_]*$/,
    /** bubblewrap reads at most 9000 options, and each variable takes three. */
    maxEntries: 1_000,
    /** For all names and values together. Twice as much (`env` and `secrets`) still fits into the environment of a process. */
    maxBytes: 64 * 1024,
  },
} as const;

/**
 * Validates a request and adds the defaults.
 * @param offer what jobs may request (`readOffer`)
 * @throws AppError 400, 422
 */
export function checkRequest(input: CreateInput, offer: Catalogue) {
  const { name, command, repo, image, branch, snapshot, outputPath } = input;
  checkJobName('name', name);
  checkText('command', command, REQUEST_RULES.commandBytes);
  if (!command.trim()) throw invalid('command', 'must not be empty');
  if (repo == null && image == null) throw invalid(null, 'repo or image is required');
  if (repo != null) checkText('repo', repo, REQUEST_RULES.repoBytes);
  if (image != null) {
    checkText('image', image, REQUEST_RULES.image.maxBytes);
    if (!REQUEST_RULES.image.pattern.test(image) || !parseImageReference(image))
      throw invalid(
        'image',
        'must be the name of an image in lowercase letters, such as "debian:12" or "registry.example.com/team/tool:1.0"',
      );
  }
  if (branch != null) {
    checkText('branch', branch, REQUEST_RULES.branchBytes);
    if (repo == null) throw invalid('branch', 'can only be given with repo');
    if (!branch) throw invalid('branch', 'must not be empty');
  }
  if (snapshot != null) {
    if (!isSnapshotId(snapshot))
      throw invalid('snapshot', 'must be 32 lowercase hexadecimal digits');
    if (repo == null) throw invalid('snapshot', 'can only be given with repo');
    if (branch != null) throw invalid('snapshot', 'cannot be given with branch');
  }
  if (outputPath != null) checkOutputPath(outputPath);

  const defaults = defaultsOf(offer);
  const hardware = {
    gpu: input.gpu,
    gpuCount: input.gpuCount ?? defaults.gpuCount,
    cpu: input.cpu ?? defaults.cpu,
    memoryGb: input.memoryGb ?? defaults.memoryGb,
    diskGb: input.diskGb ?? defaults.diskGb,
    region: input.region ?? defaults.region,
  };
  checkHardware(hardware, offer);
  const inputs = checkInputs(input.inputs ?? []);
  const env = checkVariables('env', input.env);
  const secrets = checkVariables('secrets', input.secrets);
  const variableNames = checkNames('variableNames', input.variableNames, { env, secrets });
  const secretNames = checkNames('secretNames', input.secretNames, { env, secrets, variableNames });
  const volumes = checkVolumes(input.volumes ?? []);
  const cache = checkCaches(input.cache ?? [], {
    hasRepository: repo != null,
    mounts: listMounts(inputs.repositoryInputs, volumes),
  });
  return {
    name,
    command,
    repo: repo ?? null,
    image: image ?? null,
    branch: branch ?? null,
    outputPath: outputPath ?? null,
    ...hardware,
    timeoutMinutes: checkRange('timeoutMinutes', input.timeoutMinutes),
    maxCost: input.maxCost == null ? null : checkMoney('maxCost', input.maxCost),
    idleTimeoutMinutes: checkIdleTimeout(input.idleTimeoutMinutes ?? null, hardware.gpu),
    ...checkShells(input),
    retries: checkRange('retries', input.retries),
    env,
    secrets,
    secretNames,
    variableNames,
    credentials: checkCredentials(input, repo != null, [
      ...Object.keys({ ...env, ...secrets }),
      ...variableNames,
      ...secretNames,
    ]),
    labels: checkLabels(input.labels ?? []),
    ...inputs,
    volumes,
    cache,
    ...checkCheckpoint(input, {
      inputs: [...inputs.inputs, ...inputs.repositoryInputs],
      volumes,
      cache,
    }),
    checks: checkMetricChecks(input.checks ?? [], { hasRepository: repo != null }),
    testReports: checkTestReports(input.testReports ?? []),
    ...checkDependencies(input, { name, command, env, secrets }),
  };
}

/** @throws AppError 400 naming `field` */
export function checkJobName(field: string, name: string): void {
  if (!isJobName(name))
    throw invalid(field, 'must be 1 to 100 letters, digits, hyphens and underscores');
}

export function isJobName(text: string): boolean {
  const { maxLength, pattern } = REQUEST_RULES.name;
  return text.length <= maxLength && pattern.test(text);
}

function checkRange(
  field: 'timeoutMinutes' | 'retries' | 'holdOnFailureMinutes',
  requested: number | null | undefined,
): number {
  const { min, max, default: byDefault } = REQUEST_RULES[field];
  const value = requested ?? byDefault;
  if (value < min || value > max) throw invalid(field, `must be from ${min} to ${max}`);
  return value;
}

function checkShells({ holdOnFailureMinutes, shellAccess }: CreateInput) {
  const minutes = checkRange('holdOnFailureMinutes', holdOnFailureMinutes);
  const access = shellAccess ?? 'allowed';
  if (access === 'none' && minutes > 0)
    throw invalid(
      'holdOnFailureMinutes',
      'must be 0 in a job without shells (shellAccess), which nobody can look into',
    );
  return { holdOnFailureMinutes: minutes, shellAccess: access };
}

function checkIdleTimeout(minutes: number | null, gpu: string): number | null {
  if (minutes === null) return null;
  const { min, max } = REQUEST_RULES.idleTimeoutMinutes;
  if (minutes < min || minutes > max)
    throw invalid('idleTimeoutMinutes', `must be from ${min} to ${max}`);
  if (gpu === NO_GPU) throw invalid('idleTimeoutMinutes', 'can only be given with a GPU');
  return minutes;
}

/** Neither PostgreSQL nor a process argument can contain NUL, and a lone surrogate is not valid text. */
function checkText(field: string, value: string, maxBytes: number): void {
  if (value.includes('\0') || !value.isWellFormed())
    throw invalid(field, 'must be well-formed Unicode without NUL');
  if (Buffer.byteLength(value) > maxBytes)
    throw invalid(field, `must not be longer than ${maxBytes} bytes`);
}

function checkOutputPath(path: string): void {
  checkText('outputPath', path, REQUEST_RULES.outputPathBytes);
  if (!path) throw invalid('outputPath', 'must not be empty');
  if (path.split('/').includes('..')) throw invalid('outputPath', 'must not contain ".."');
}

/** @throws AppError 400 naming the field `inputs` */
export function checkInputs(requests: readonly InputRequest[]): {
  inputs: InputPaths[];
  repositoryInputs: RepositoryInputPaths[];
} {
  const { maxEntries, maxRepositories } = REQUEST_RULES.inputs;
  if (requests.length > maxEntries)
    throw invalid('inputs', `must not have more than ${maxEntries} entries`);
  const inputs: InputPaths[] = [];
  const repositoryInputs: RepositoryInputPaths[] = [];
  for (const { job, repo, ref, path: from, to: target, readOnly } of requests) {
    const to = checkInputPath('to', target);
    if (entersGitFolder(to)) throw invalid('inputs', 'to must not be inside .git');
    // Files and folders are found without a slash at the end.
    const path = checkInputPath('path', from).replace(/\/$/, '');
    if ((job == null) === (repo == null))
      throw invalid('inputs', 'each must have either job or repo');
    if (ref != null && repo == null) throw invalid('inputs', 'ref can only be given with repo');
    if (readOnly && (repo == null || to === ''))
      throw invalid('inputs', 'those that are read only must have repo and to');
    if (job != null) {
      checkJobName('inputs', job);
      inputs.push({ job, path, to });
    }
    if (repo != null) {
      checkText('inputs', repo, REQUEST_RULES.repoBytes);
      checkText('inputs', ref ?? '', REQUEST_RULES.branchBytes);
      repositoryInputs.push({ repo, ref: ref || null, path, to, readOnly: readOnly ?? false });
    }
  }
  if (repositoryInputs.length > maxRepositories)
    throw invalid('inputs', `must not have more than ${maxRepositories} repositories`);
  return { inputs, repositoryInputs };
}

/**
 * Lists where volumes and inputs that are only read are mounted.
 * @throws AppError 400 if one of them hides another one
 */
function listMounts(
  inputs: readonly RepositoryInputPaths[],
  volumes: readonly { to: string }[],
): string[] {
  const places = volumes.map(({ to }) => to);
  for (const { to, readOnly } of inputs) {
    if (!readOnly) continue;
    const place = posix.resolve(WORKING_DIR, to);
    const other = places.find((one) => overlaps(one, place));
    if (other !== undefined)
      throw invalid('inputs', `${to} is read only, and overlaps what is mounted at ${other}`);
    places.push(place);
  }
  return places;
}

/** Normalizes a relative path. The root becomes the empty path. */
function checkInputPath(name: 'path' | 'to', path: string | null | undefined): string {
  if (!path) return '';
  checkText('inputs', path, REQUEST_RULES.inputs.pathBytes);
  if (path.startsWith('/')) throw invalid('inputs', `${name} must be relative`);
  if (path.split('/').includes('..')) throw invalid('inputs', `${name} must not contain ".."`);
  return posix.normalize(path).replace(/^\.\/?$/, '');
}

function checkVariables(
  field: string,
  entries: readonly NamedValue[] | null | undefined,
): Record<string, string> {
  if (!entries) return {};
  const { pattern, maxEntries, maxBytes } = REQUEST_RULES.variables;
  if (entries.length > maxEntries)
    throw invalid(field, `must not have more than ${maxEntries} entries`);
  let bytes = 0;
  const values = new Map<string, string>();
  for (const { name, value } of entries) {
    if (!pattern.test(name))
      throw invalid(field, 'names must be letters, digits and _, not starting with a digit');
    if (values.has(name)) throw invalid(field, `${name} is given more than once`);
    checkText(field, value, maxBytes);
    bytes += name.length + Buffer.byteLength(value);
    values.set(name, value);
  }
  if (bytes > maxBytes) throw invalid(field, `must not be longer than ${maxBytes} bytes in total`);
  return Object.fromEntries(values);
}

/**
 * @param others the names of other fields, which must not be given again: the job would get only one of both values
 * @throws AppError 400 naming `field`
 */
function checkNames(
  field: string,
  names: readonly string[] | null | undefined,
  others: Record<string, object | readonly string[]>,
): string[] {
  const { maxEntries } = VALUE_RULES;
  const { maxLength, pattern } = VALUE_RULES.name;
  if ((names?.length ?? 0) > maxEntries)
    throw invalid(field, `must not have more than ${maxEntries} entries`);
  const seen = new Map<string, string>();
  for (const [other, given] of Object.entries(others))
    for (const name of Array.isArray(given) ? given : Object.keys(given)) seen.set(name, other);
  for (const name of names ?? []) {
    if (name.length > maxLength || !pattern.test(name))
      throw invalid(
        field,
        `names must be 1 to ${maxLength} letters, digits and _, not starting with a digit`,
      );
    const other = seen.get(name);
    if (other !== undefined)
      throw invalid(
        field,
        `${name} is given ${other === field ? 'more than once' : `in ${other}, too`}`,
      );
    seen.set(name, field);
  }
  return [...(names ?? [])];
}

/** A GPU model that a job may request, with its price and availability. */
export type GpuOption = {
  gpu: string;
  /** Null if it is unknown, and for `none`. */
  memoryGb: number | null;
  pricePerHour: string;
  /** How many a job may request. */
  counts: readonly number[];
  /** The largest number of these GPUs in one machine of a live worker; null for `none`. */
  maxOffered: number | null;
  /** The GPUs on machines of live workers, and how many of them no job has; null for `none`. */
  free: number | null;
  total: number | null;
  /** The waiting jobs that request the model, at most 10,000 of a region. */
  waiting: number;
  /** Seconds that a new job with one GPU would wait; null if that is not known. */
  estimatedWait: number | null;
};

/** The catalogue, and the namespace whose machines the options include. */
export type Options = Catalogue & { namespaceId: string | undefined };

/**
 * The options that any signed-in user may read.
 * @param namespace includes the machines that run jobs of this namespace only, if the viewer may see its jobs. Otherwise it has no
 *   effect, whether it exists or not: the form of a new job begins with the namespace of the current page.
 * @throws AppError 401
 */
export async function readOptions(
  { pool, config }: OfferDeps,
  viewer: Viewer,
  namespace?: string | null,
): Promise<Options> {
  demandAccount(viewer);
  const found = namespace == null ? null : await findNamespace(pool, namespace);
  const mayRead = found && can(viewer, 'job.read', anyTargetIn(viewer, found.id));
  return { ...config.hardware.current, namespaceId: mayRead ? found.id : undefined };
}

async function findNamespace(pool: pg.Pool, name: string): Promise<{ id: string } | null> {
  return resolveNamespace(pool, name).catch((error) => {
    if (error instanceof AppError && error.code === 'not_found') return null;
    throw error;
  });
}

export type MachineSize = { cpus: number; memoryGb: number };

/** Returns the size of the machine with the most vCPUs, and among equals the most memory; null without a live worker. */
export async function findLargestMachine(
  services: { pool: pg.Pool },
  { namespaceId }: Pick<Options, 'namespaceId'>,
): Promise<MachineSize | null> {
  return largestOf(await readLiveMachines(services, namespaceId));
}

function largestOf(machines: readonly WorkerCapacity[]): MachineSize | null {
  const [largest] = machines
    .filter(({ away }) => !away)
    .toSorted((a, b) => b.cpus - a.cpus || b.memoryBytes - a.memoryBytes);
  return largest ? { cpus: largest.cpus, memoryGb: largest.memoryBytes / 2 ** 30 } : null;
}

type SizeRequest = {
  gpu?: string | null;
  gpuCount?: number | null;
  region?: string | null;
  image?: string | null;
  cpu?: number | null;
  memoryGb?: number | null;
};

/** Returns the default vCPUs and memory, reduced to the largest machine that can run the job. Given values stay. */
export async function suggestSize(
  services: { pool: pg.Pool },
  { namespaceId, ...catalogue }: Options,
  request: SizeRequest,
): Promise<Size> {
  const machines = await readLiveMachines(services, namespaceId);
  const defaults = defaultsOf(catalogue);
  const hardware = {
    gpu: request.gpu ?? NO_GPU,
    gpuCount: request.gpuCount ?? defaults.gpuCount,
    region: request.region ?? defaults.region,
    image: request.image ?? null,
  };
  const suitable = machines.filter((machine) => isSuitable(machine, hardware));
  return defaultSize(largestOf(suitable) ?? largestOf(machines), request, catalogue);
}

/** Finds what is allowed, but probably a mistake: a job that no worker can run now, or that gets less than it asks for. */
export async function findWarnings(
  services: { pool: pg.Pool; config: Pick<Config, 'volumes'> },
  request: Pick<
    ReturnType<typeof checkRequest>,
    'gpu' | 'gpuCount' | 'cpu' | 'memoryGb' | 'region' | 'image' | 'volumes'
  >,
  namespaceId: string,
): Promise<string[]> {
  const machines = await readLiveMachines(services, namespaceId);
  const volumes = assumeAccess(services.config.volumes, request.volumes);
  const full = await readFullVolumes(services);
  const { waitsFor, missing } = describeNeed({ ...request, volumes }, machines, full);
  if (missing !== null)
    return [`No worker can run this job now. It needs ${waitsFor}: ${missing}.`];
  const largest = largestOf(
    machines.filter((machine) => isSuitable(machine, { ...request, volumes })),
  );
  if (!largest || (largest.cpus >= request.cpu && largest.memoryGb >= request.memoryGb)) return [];
  const size = `${largest.cpus} vCPUs and ${Math.floor(largest.memoryGb * 10) / 10} GB`;
  return [
    `The largest machine for this job has ${size}. The job asks for ${request.cpu} vCPUs and ${request.memoryGb} GB, and gets no more than the machine has.`,
  ];
}

/** Lists all GPU models that a job may request, with their availability on live workers, and `none` last. */
export async function listGpuOptions(
  services: Pick<OfferDeps, 'config'> & { queuePositions: QueuePositions },
  { namespaceId }: Pick<Options, 'namespaceId'>,
): Promise<GpuOption[]> {
  const found = await services.queuePositions.readAvailability(namespaceId);
  const { machines } = found;
  const offer = offerOf(services, machines);
  const { cpu } = defaultsOf(offer);
  const queueOf = (gpu: string) => ({
    waiting: countWaiting(found, { gpu, region: null }),
    estimatedWait: estimateWait(found, { gpu, gpuCount: 1, cpu, region: null }),
  });
  const models = offer.gpus.map(({ name: gpu, memoryGb, pricePerHour, counts }): GpuOption => {
    const maxOffered = Math.max(0, ...machines.map(({ gpus }) => gpus[gpu] ?? 0));
    const count = countGpus(found, gpu);
    return { gpu, memoryGb, pricePerHour, counts, maxOffered, ...count, ...queueOf(gpu) };
  });
  const none: GpuOption = {
    gpu: NO_GPU,
    memoryGb: null,
    pricePerHour: '0',
    counts: [1],
    maxOffered: null,
    free: null,
    total: null,
    ...queueOf(NO_GPU),
  };
  return [...models, none];
}
