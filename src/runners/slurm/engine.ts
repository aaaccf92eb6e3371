/**
 * Jobs on a Slurm cluster, driven by Slurm's commands on a machine that may submit jobs. One batch job per attempt runs the
 * agent. One `squeue` a second watches all attempts of this worker while any of them is open.
 */
import { chmod, mkdir, readdir } from 'node:fs/promises';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { type Config, ConfigError } from '../../base/config/config.ts';
import type { SlurmConfig } from '../../base/config/slurm.ts';
import type { Logger } from '../../base/log.ts';
import { runLoop } from '../../platform/loop.ts';
import type { EngineState, SharingEngine, Submission } from '../agent/engine.ts';
import type { AgentVolume } from '../agent/protocol.ts';
import { RunnerFault, RunnerUnavailable, Unstartable, type VolumeMount } from '../runner.ts';
import { findOwnFolder, ON_NODES, refusePlace } from '../supervisor/mounted-folders.ts';
import { openRemoval, type Removal } from '../supervisor/removal.ts';
import { Attempts } from './attempts.ts';
import { batchArguments, batchScript, nameOf, type Placement, sharedFolder } from './batch-job.ts';
import { type Commands, createCommands, Refusal } from './commands.ts';
import { attemptOf, isLive, JOB_FORMAT, type Job, parseJobs, workerOf } from './jobs.ts';
import { findAnsweringNodes, type Partition, readPartition } from './nodes.ts';
import { accountOf, readUsers, type Users } from './users.ts';

const INTERVAL_MS = 1_000;
/** How long the job of an agent that is about to exit may take before it is cancelled. */
const EXIT_MS = 3_000;
/** A job that does not end is cancelled again after this time. */
const CANCEL_AGAIN_MS = 60_000;
/** Added to the time that Slurm leaves between TERM and KILL. */
const RETURN_MS = 10_000;

export type SlurmEngineOptions = {
  config: SlurmConfig;
  /** Distinguishes the jobs of this worker from those of other workers; without white space, the same after a restart. */
  worker: string;
  /** The volumes of the nodes; unset: none. */
  volumes?: Config['volumes'];
  log: Logger;
};

/**
 * Returns also while the controller does not answer; then the capacity is zero until it does.
 * @throws ConfigError when Slurm cannot be used as it is configured
 */
export async function openSlurmEngine(options: SlurmEngineOptions): Promise<SharingEngine> {
  const { config, worker, log } = options;
  await using cleanup = new AsyncDisposableStack();
  const users = await openUsers(config);
  const shared = config.dir && sharedFolder(config.dir, worker);
  if (shared) await makeSharedFolder(shared, users !== undefined);
  const removal =
    shared &&
    cleanup.use(
      await openRemoval(join(shared, '.trash'), (error, message) =>
        log.error({ err: error }, message),
      ),
    );
  const commands = createCommands(config.conf);
  const folders = shared && removal ? { path: shared, removal } : undefined;
  const engine = cleanup.use(new SlurmEngine(options, { commands, users, folders }));
  await engine.start();
  const owned = cleanup.move();
  return Object.assign(engine, { [Symbol.asyncDispose]: () => owned.disposeAsync() });
}

async function openUsers({ users: file }: SlurmConfig): Promise<Users | undefined> {
  const isRoot = process.getuid?.() === 0;
  if (file === undefined) {
    if (isRoot)
      throw new ConfigError(
        'LOAM_SLURM_USERS: Loam runs as root, so its jobs would run as root on the nodes. Name a file that maps namespaces to accounts, or run Loam as another user',
      );
    return undefined;
  }
  if (!isRoot)
    throw new ConfigError(
      'LOAM_SLURM_USERS: only root can submit jobs of other accounts; run Loam as root, or unset the variable',
    );
  return readUsers(file);
}

/** @param isForAll agents of several accounts make folders in it */
async function makeSharedFolder(folder: string, isForAll: boolean): Promise<void> {
  try {
    await mkdir(folder, { recursive: true });
    await chmod(folder, isForAll ? 0o1777 : 0o700);
  } catch (error) {
    throw new ConfigError(`LOAM_SLURM_DIR: ${(error as Error).message}`);
  }
}

type Parts = {
  commands: Commands;
  users: Users | undefined;
  /** Folder of this worker that the nodes share. */
  folders: { path: string; removal: Removal } | undefined;
};

/** `cancelAt`: in milliseconds of `performance.now()`. */
type Removing = { cancelAt: number };

class SlurmEngine implements SharingEngine {
  readonly gpuSetting = 'LOAM_SLURM_GPUS';
  readonly title = 'Slurm';
  readonly #config: SlurmConfig;
  readonly #worker: string;
  readonly #volumes: SlurmEngineOptions['volumes'];
  readonly #log: Logger;
  readonly #commands: Commands;
  readonly #users: Users | undefined;
  readonly #folders: Parts['folders'];
  readonly #attempts: Attempts;
  /** Attempts whose jobs must end. */
  readonly #removing = new Map<string, Removing>();
  readonly #closing = new AbortController();
  /** Undefined until the controller has answered once. */
  #cluster: { partition: Partition; returnMs: number } | undefined;
  #failure: string | undefined;
  #watching: Promise<void> | undefined;

  constructor(
    { config, worker, volumes, log }: SlurmEngineOptions,
    { commands, users, folders }: Parts,
  ) {
    this.#config = config;
    this.#worker = worker;
    this.#volumes = volumes;
    this.#log = log;
    this.#commands = commands;
    this.#users = users;
    this.#folders = folders;
    this.#attempts = new Attempts(() => this.#cluster?.returnMs ?? RETURN_MS);
  }

  async start(): Promise<void> {
    try {
      await this.#poll();
    } catch (error) {
      if (!(error instanceof RunnerUnavailable))
        throw new ConfigError(`Slurm: ${(error as Error).message}`);
      this.#report(error);
    }
    const { signal } = this.#closing;
    this.#watching = runLoop(
      { name: 'Polling Slurm', every: INTERVAL_MS, waitsFirst: true, signal, log: this.#log },
      () => this.#pollIfNeeded(signal),
    );
  }

  get capacity() {
    const largest = this.#cluster?.partition.groups[0];
    const { maxCpus, maxMemoryGb, gpus, images } = this.#config;
    return {
      cpus: Math.min(largest?.cpus ?? 0, maxCpus ?? Number.POSITIVE_INFINITY),
      memoryBytes: Math.min(
        (largest?.memoryMb ?? 0) * 2 ** 20,
        (maxMemoryGb ?? Number.POSITIVE_INFINITY) * 2 ** 30,
      ),
      gpus: Object.fromEntries(Object.entries(gpus).map(([model, { max }]) => [model, max])),
      withImage: images !== undefined,
      withoutImage: true,
      volumes: (this.#volumes?.current ?? []).flatMap(({ name, path }) => (path ? [name] : [])),
    };
  }

  get unavailableReason(): string | undefined {
    return this.#failure ?? this.#commands.unavailableReason;
  }

  placeVolumes(mounts: readonly VolumeMount[], image: string | null): AgentVolume[] {
    return mounts.map(({ volume: name, to, readOnly, folder }) => {
      const from = this.#volumes?.find(name)?.path;
      if (!from) throw new Unstartable(`Slurm does not have the volume ${name} here.`);
      if (image === null && !findOwnFolder(to)) throw refusePlace(name, to, ON_NODES);
      // These characters separate the parts of an option.
      if (image !== null && /[,:]/.test(from + to))
        throw new Unstartable(`The volume ${name} cannot be mounted at ${to} in an image here.`);
      return { volume: name, from, to, readOnly, folder };
    });
  }

  async submit(submission: Submission): Promise<void> {
    const { attempt } = submission;
    const placement = this.#place(submission);
    if (this.#attempts.state(attempt).kind !== 'unknown') return;
    const name = nameOf(attempt);
    const existing = await this.#listJobs([`--name=${name}`]);
    if (existing.length > 0) {
      this.#attempts.add(existing);
    } else {
      const args = batchArguments(submission, this.#config, this.#worker, placement);
      const input = batchScript(submission, this.#config, this.#worker);
      const output = await this.#commands.run('sbatch', args, { input }).catch(toSubmitError);
      const [id = ''] = output.trim().split(';');
      this.#attempts.add([{ ...SUBMITTED, id, name }]);
    }
  }

  state(attempt: string): EngineState {
    return this.#attempts.state(attempt);
  }

  nextChange(attempt: string, signal: AbortSignal): Promise<void> {
    return this.#attempts.nextChange(attempt, signal);
  }

  describe(attempt: string) {
    const where = this.#attempts.where(attempt);
    return where && { node: where.node || undefined, inspect: `scontrol show job ${where.job}` };
  }

  async remove(attempt: string, { hasEnded = false } = {}): Promise<void> {
    if (!hasEnded) await this.#cancel(attempt);
    const cancelAt = performance.now() + (hasEnded ? EXIT_MS : CANCEL_AGAIN_MS);
    this.#removing.set(attempt, { cancelAt });
    this.#attempts.forget(attempt);
  }

  async list(): Promise<string[]> {
    const jobs = await this.#listJobs();
    const running = jobs.filter(isLive).flatMap((job) => attemptOf(job) ?? []);
    const left = (await this.#listFolders()).flatMap((name) => FOLDER_NAME.exec(name)?.[1] ?? []);
    return [...new Set([...running, ...left])].filter((attempt) => !this.#removing.has(attempt));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await this.#watching;
    // Nobody watches any more whether their agents exit by themselves. What fails here is left to the next start.
    if (this.unavailableReason !== undefined) return;
    await Promise.allSettled([...this.#removing.keys()].map((attempt) => this.#cancel(attempt)));
  }

  /** @throws Unstartable, RunnerUnavailable */
  #place({ hardware: { gpu, gpuCount }, job }: Submission): Placement {
    const { gpus, maxCpus, maxMemoryGb } = this.#config;
    if (!this.#cluster) throw new RunnerUnavailable(this.unavailableReason);
    const { groups, maxMinutes } = this.#cluster.partition;
    const account = this.#users && accountOf(this.#users, job.namespace);
    if (this.#users && account === undefined)
      throw new Unstartable(
        `The namespace ${job.namespace} has no account in the Slurm cluster. Ask the operator to add it to the file of LOAM_SLURM_USERS.`,
      );
    const gres = Object.entries(gpus).find(([model]) => model === gpu)?.[1]?.gres;
    const [largest = groups[0]] = gres ? groups.filter((group) => hasGres(group.gres, gres)) : [];
    return {
      node: {
        cpus: Math.min(largest?.cpus ?? 1, maxCpus ?? Number.POSITIVE_INFINITY),
        memoryMb: Math.min(
          largest?.memoryMb ?? 1,
          (maxMemoryGb ?? Number.POSITIVE_INFINITY) * 2 ** 10,
        ),
      },
      maxMinutes,
      ...(gres && { gres: `${gres}:${gpuCount}` }),
      account,
    };
  }

  /** The jobs of this worker that Slurm knows, ended ones included until it forgets them. */
  async #listJobs(filter: readonly string[] = [], signal?: AbortSignal): Promise<Job[]> {
    const accounts = this.#users && [...this.#users.values()].map(({ name }) => name);
    const users = [...new Set(accounts ?? [userInfo().username])].join(',');
    const args = ['--noheader', '--all', '--states=all', `--user=${users}`];
    const output = await this.#commands
      .run('squeue', [...args, ...filter, JOB_FORMAT], { signal })
      .catch(toFault);
    return parseJobs(output).filter(
      (job) => attemptOf(job) !== undefined && workerOf(job) === this.#worker,
    );
  }

  /** By name, because an id may belong to another job by now. Does nothing if no such job runs. */
  async #cancel(attempt: string): Promise<void> {
    // A user may cancel no jobs of others, and is refused if one has the same name.
    const own = this.#users ? [] : [`--user=${userInfo().username}`];
    const args = ['--quiet', `--name=${nameOf(attempt)}`, ...own];
    await this.#commands.run('scancel', args).catch(toFault);
  }

  async #pollIfNeeded(signal: AbortSignal): Promise<void> {
    if (!this.#hasWork()) return;
    try {
      await this.#poll(signal);
      if (this.#failure !== undefined) this.#log.info('Slurm can be used again');
      this.#failure = undefined;
    } catch (error) {
      if (!signal.aborted) this.#report(error as Error);
    }
  }

  #hasWork(): boolean {
    return (
      this.unavailableReason !== undefined || this.#removing.size > 0 || this.#attempts.isAnyOpen
    );
  }

  #report(error: Error): void {
    if (this.#failure === undefined) this.#log.warn(`Slurm cannot be used: ${error.message}`);
    this.#failure = error.message;
  }

  async #poll(signal?: AbortSignal): Promise<void> {
    const isFirst = this.#cluster === undefined;
    this.#cluster ??= await this.#readCluster();
    const listedAt = this.#attempts.now();
    const removing = [...this.#removing];
    const jobs = await this.#listJobs([], signal);
    // Jobs of an earlier process of this worker.
    if (isFirst)
      this.#attempts.add(jobs.filter((job) => !this.#removing.has(attemptOf(job) ?? '')));
    const nodes = this.#attempts.nodesInDoubt(jobs);
    const answering =
      nodes.length > 0
        ? await findAnsweringNodes(this.#commands, nodes).catch(toFault)
        : new Set<string>();
    this.#attempts.update(jobs, listedAt, answering);
    await this.#finishRemovals(removing, jobs);
  }

  async #readCluster() {
    const partition = await readPartition(this.#commands, this.#config.partition);
    const settings = await this.#commands.run('scontrol', ['show', 'config']);
    const [, killWait = 30] = /^KillWait\s*=\s*(\d+)/m.exec(settings) ?? [];
    return { partition, returnMs: Number(killWait) * 1_000 + RETURN_MS };
  }

  /** Cancels jobs that have not ended in time, and removes the folders of those that have. */
  async #finishRemovals(
    removing: readonly (readonly [string, Removing])[],
    jobs: readonly Job[],
  ): Promise<void> {
    const live = new Set(jobs.filter(isLive).map(attemptOf));
    for (const [attempt, entry] of removing) {
      if (!live.has(attempt)) {
        await this.#discardFolders(attempt);
        this.#removing.delete(attempt);
      } else if (performance.now() >= entry.cancelAt) {
        await this.#cancel(attempt);
        entry.cancelAt = performance.now() + CANCEL_AGAIN_MS;
      }
    }
  }

  /** Names of the folders of agents that the nodes share, including those whose node has died. */
  async #listFolders(): Promise<string[]> {
    return this.#folders ? readdir(this.#folders.path) : [];
  }

  async #discardFolders(attempt: string): Promise<void> {
    for (const name of await this.#listFolders())
      if (FOLDER_NAME.exec(name)?.[1] === attempt && this.#folders)
        await this.#folders.removal.discard(join(this.#folders.path, name));
  }
}

/** Each agent makes a folder with a name of its own, even if it is a second one of the attempt. */
const FOLDER_NAME = /^loam-([\w-]+)-\w{6}$/;

/** A job that Slurm has just accepted. */
const SUBMITTED: Job = {
  id: '',
  name: '',
  user: '',
  partition: '',
  comment: '',
  state: 'PENDING',
  reason: '',
  node: '',
  status: 0,
  startAt: null,
};

function toSubmitError(error: Error): never {
  if (error instanceof Refusal) throw new Unstartable(`Slurm refused the job: ${error.message}`);
  throw error;
}

/** A refusal of a request that does not depend on a job. */
function toFault(error: Error): never {
  throw error instanceof Refusal ? new RunnerFault(`Slurm: ${error.message}`) : error;
}

/** @param offered such as `gpu:a100:4(S:0-1),license:2` */
function hasGres(offered: string, gres: string): boolean {
  return offered
    .split(',')
    .some((one) => one === gres || (/^[:(]/.test(one.slice(gres.length)) && one.startsWith(gres)));
}
