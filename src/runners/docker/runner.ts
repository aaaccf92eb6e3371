/**
 * Runs jobs in containers of an engine with Docker's API.
 *
 * A container outlives this server, and a restarted server finds it by its name, which contains the attempt's id. The
 * attempt's folder (`attempt-dir.ts`) is written before the container is created. The engine stores the exit code, and the
 * log where no shim does (`shim.ts`).
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { DockerConfig } from '../../base/config/docker.ts';
import { createLog, type Logger } from '../../base/log.ts';
import {
  buildEnvironmentScript,
  buildStartScript,
  READ_ENVIRONMENT,
} from '../container/wrapper.ts';
import { CpuShares } from '../cpu-share.ts';
import { type GpuAccess, resolveGpuAccess } from '../gpus/gpus.ts';
import { type GpuLedger, openGpuLedger } from '../gpus/ledger.ts';
import {
  type AttemptSpec,
  type ExecSession,
  type ExecSpec,
  FILES_DIR,
  GRACE_MS,
  type Handle,
  LOCAL_MACHINE,
  type LogBatch,
  type LogCursor,
  type Machine,
  type MountedFolder,
  NotExecutable,
  type Outcome,
  type ReadOptions,
  type Runner,
  type Usage,
} from '../runner.ts';
import {
  type Accounts,
  DEFAULT_UIDS,
  openAccounts,
  type UidRange,
} from '../supervisor/accounts.ts';
import { renewLease } from '../supervisor/lease.ts';
import { computeLimits, type JobLimits, readMachineCapacity } from '../supervisor/limits.ts';
import { createMountPoints } from '../supervisor/mounted-folders.ts';
import { providedVariables } from '../supervisor/provided-files.ts';
import { openRemoval, type Removal } from '../supervisor/removal.ts';
import { noteResultFiles } from '../supervisor/result-files.ts';
import { type LocalVolumes, locateVolumes } from '../volumes.ts';
import { readArtifacts } from './artifacts.ts';
import {
  type AttemptRecord,
  createAttemptDir,
  createSharedFiles,
  type JobScripts,
  readRecord,
  type StopRequest,
  setFolderOwner,
  writeFiles,
  writeRecord,
} from './attempt-dir.ts';
import {
  buildContainerOptions,
  ContainerCreator,
  containerName,
  LABEL_READER,
  LABEL_WORKER,
} from './container.ts';
import { type ContainerShims, createShimFiles, openContainerShims } from './container-shims.ts';
import { type GpuUtilization, openGpuUtilization, readUsageSample } from './container-usage.ts';
import { watchContainerDisk } from './disk-watch.ts';
import { connect, type Engine } from './engine.ts';
import { type EngineHealth, type EngineStatus, monitorEngine } from './engine-health.ts';
import { ExecSessions } from './exec.ts';
import { type ContainerUser, type ImageUsers, openImageUsers } from './image-users.ts';
import { type Image, type Images, type ImagesOptions, openImages } from './images.ts';
import { followLog } from './logs.ts';
import { type ContainerNetwork, type NetworkOptions, openContainerNetwork } from './network.ts';
import { findOrphans } from './orphans.ts';
import { readContainerState } from './outcome.ts';
import { createRemoteFolders, sendCheckout, sendFiles } from './remote-folders.ts';
import { openSharedCgroup, type SharedCgroup } from './shared-cgroup.ts';
import { removeContainer, removeUnstarted, startContainer } from './start-container.ts';
import {
  ENGINE_TIMEOUT_MS,
  requestStop,
  type SupervisedContainer,
  superviseContainer,
} from './supervision.ts';

/**
 * A container is recreated when its engine died in the middle of its start. The limit is for images whose `/bin/sh` does not
 * wait at the start barrier: their containers end there each time.
 */
const MAX_RECREATIONS = 3;
/** Contains the folders of ended attempts until they are removed. */
const TRASH_DIR = '.trash';

export type DockerRunnerOptions = {
  /** Parent of the attempt folders. */
  dir: string;
  docker: DockerConfig;
  /** The engine's name in `LOAM_DOCKER_HOSTS`, if any. A named engine offers no capacity while it is unavailable. */
  engine?: string;
  images: Omit<ImagesOptions, 'log'>;
  network?: NetworkOptions;
  /** Images whose user is root run as root in their container. */
  root?: boolean;
  /** Time between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** How long the engine may be unavailable before attempts that have certainly ended or were cancelled count as lost. */
  engineTimeoutMs?: number;
  /** User ids for jobs, when this server is root. */
  uids?: UidRange;
  /** Free bytes on the disk below which the server stops writing. The largest jobs are ended before that. */
  diskFloor?: number;
  /** GPUs of this machine, if other runners use them too. */
  gpus?: GpuLedger;
  /** GPUs of a remote engine's machine: model → count. */
  remoteGpus?: Readonly<Record<string, number>>;
  /** Replaces limits that would follow from the requested hardware. */
  limits?: Partial<JobLimits>;
  /** The volumes of this machine, for a local engine; unset: it has none. */
  volumes?: LocalVolumes | undefined;
  log?: Logger;
};

type Parts = {
  engine: Engine;
  health: EngineHealth;
  images: Images;
  users: ImageUsers;
  network: ContainerNetwork;
  containerCreator: ContainerCreator;
  sharedCgroup: SharedCgroup;
  shims: ContainerShims;
  removal: Removal;
  /** Null when this server is not root or cannot change its user. */
  accounts: Accounts | null;
  localGpus: GpuLedger;
  remoteGpus: GpuLedger;
  gpuUtilization: GpuUtilization;
  /** Label value that distinguishes this server's containers from containers of other servers on the same engine. */
  worker: string;
  /** Label value of the containers in which this process reads files of images. */
  reader: string;
  log: Logger;
  /** Owns the parts that must be closed. */
  owned: AsyncDisposable;
};

export async function openDockerRunner(options: DockerRunnerOptions): Promise<DockerRunner> {
  const { dir, uids = DEFAULT_UIDS } = options;
  await using cleanup = new AsyncDisposableStack();
  const log = options.log ?? createLog('silent');
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const engine = connect(options.docker, options.engine);
  const health = cleanup.use(await monitorEngine(engine, dir, log));
  const images = openImages(engine, { ...options.images, log });
  const network = await openContainerNetwork(engine, options.network ?? {}, health.getFacts, log);
  const worker = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  const reader = randomUUID();
  const accounts = await openUsableAccounts(dir, uids);
  const removal = cleanup.use(
    await openRemoval(join(dir, TRASH_DIR), (error, message) => log.error({ err: error }, message)),
  );
  const shims = cleanup.use(await openContainerShims(dir));
  const users = openImageUsers(engine, {
    root: options.root ?? false,
    reserved: uids,
    labels: { [LABEL_WORKER]: worker, [LABEL_READER]: reader },
  });
  const localGpus = options.gpus ?? (await openGpuLedger());
  const remoteGpus = await openGpuLedger({ configured: options.remoteGpus ?? {} });
  await restoreGpus(dir, localGpus, remoteGpus);
  const sharedCgroup = openSharedCgroup({
    facts: health.getFacts,
    name: `loam-${worker}`,
    memoryBytes: options.limits?.allJobsMemoryBytes ?? readMachineCapacity().memoryBytes,
    log,
  });
  cleanup.defer(() => sharedCgroup.remove());
  return new DockerRunner(options, {
    engine,
    health,
    images,
    users,
    network,
    containerCreator: new ContainerCreator(engine, health.getFacts),
    sharedCgroup,
    shims,
    removal,
    accounts,
    localGpus,
    remoteGpus,
    gpuUtilization: openGpuUtilization(engine),
    worker,
    reader,
    log,
    owned: cleanup.move(),
  });
}

async function openUsableAccounts(dir: string, uids: UidRange): Promise<Accounts | null> {
  const accounts = await openAccounts(uids, dir);
  return accounts && !('missing' in accounts) ? accounts : null;
}

/** Reserves the GPUs of attempts that an earlier process of this server started. */
async function restoreGpus(
  dir: string,
  localGpus: GpuLedger,
  remoteGpus: GpuLedger,
): Promise<void> {
  for (const attempt of (await readdir(dir)).filter((name) => !name.startsWith('.'))) {
    const record = await readRecord(join(dir, attempt), 'attempt');
    if (record) (record.remote ? remoteGpus : localGpus).restore(attempt, record.gpus, record.gpu);
  }
}

/** Disposing of it leaves jobs running. The next start completes unfinished removals. */
export class DockerRunner implements Runner, AsyncDisposable {
  readonly name = 'docker';
  readonly warning?: string;
  readonly #options: DockerRunnerOptions;
  readonly #parts: Parts;
  readonly #graceMs: number;
  readonly #cpuShares = new CpuShares();
  readonly #sessions = new ExecSessions();
  /** Bytes on disk at the last measurement, by attempt. */
  readonly #diskUse = new Map<string, number>();
  /** How often the container of an attempt was recreated. */
  readonly #recreations = new Map<string, number>();
  /** Dispatches an event named after the attempt when a stop was requested. */
  readonly #stopEvents = new EventTarget();

  constructor(options: DockerRunnerOptions, parts: Parts) {
    this.#options = options;
    this.#parts = parts;
    this.#graceMs = options.graceMs ?? GRACE_MS;
    if (parts.network.warning) this.warning = parts.network.warning;
  }

  get engine(): EngineStatus {
    return this.#parts.health;
  }

  get hasUnavailableEngine(): boolean {
    return this.#parts.health.unavailableReason !== undefined;
  }

  /** Until an engine has answered for the first time, it counts as local if its address is a socket. */
  get machines(): readonly Machine[] {
    const { engine, health } = this.#parts;
    const { facts } = health;
    if (this.#options.engine !== undefined && this.hasUnavailableEngine) return [];
    if (!facts && !this.#options.docker.host.startsWith('unix:')) return [];
    const { cpus, memoryBytes } = facts ?? readMachineCapacity();
    const isRemote = facts?.isLocal === false;
    const gpus = this.#gpuLedger(isRemote).models;
    return [{ id: isRemote ? engine.id : LOCAL_MACHINE, cpus, memoryBytes, gpus }];
  }

  async prepare(spec: AttemptSpec, abort: AbortSignal): Promise<Handle> {
    const { images, health } = this.#parts;
    const { id } = spec;
    const attemptDir = this.#attemptDirOf(id);
    if (existsSync(attemptDir)) await this.#removeAttempt(id);
    const image = await images.ensure(spec.image, spec.report, abort);
    const facts = await health.getFacts();
    const isRemote = !facts.isLocal;
    const limits = { ...computeLimits(spec.hardware, facts), ...this.#options.limits };
    // Paths of the file are those of this machine, and a remote engine has other ones.
    const local = isRemote ? undefined : this.#options.volumes;
    const mounts = await locateVolumes(local, spec);
    await createAttemptDir(attemptDir);
    if (!isRemote) await createShimFiles(attemptDir);
    const gpus = this.#gpuLedger(isRemote).take(id, spec.hardware);
    const user = await this.#resolveUser(image, attemptDir, abort);
    const owner = { uid: user.uid, gid: user.gid };
    await writeRecord(attemptDir, 'attempt', {
      machine: spec.machine,
      remote: isRemote,
      owner,
      timeoutMs: spec.timeoutMs,
      leaseMs: spec.leaseMs,
      graceMs: this.#graceMs,
      log: spec.log,
      cpus: limits.cpus,
      memoryBytes: limits.memoryBytes,
      diskBytes: limits.diskBytes,
      files: limits.files,
      gpus: gpus.map(({ index }) => index),
      ...(gpus.length > 0 && { gpu: spec.hardware.gpu }),
    });
    const work = join(attemptDir, 'work');
    const mount = isRemote ? undefined : (one: MountedFolder) => void mounts.push(one);
    if (spec.checkout) await spec.checkout(work, abort, join(attemptDir, 'home'), mount);
    else await mkdir(work);
    abort.throwIfAborted();
    createMountPoints(attemptDir, mounts);
    await setFolderOwner(attemptDir, owner);
    if (!isRemote && Object.keys(spec.files).length > 0) writeFiles(attemptDir, spec.files, owner);
    const access = resolveGpuAccess(gpus);
    const variables = {
      USER: 'job',
      ...spec.env,
      ...providedVariables(FILES_DIR, spec.files),
      ...access.env,
    };
    const scripts = {
      start: buildStartScript(spec.command, READ_ENVIRONMENT),
      environment: buildEnvironmentScript(variables),
    };
    if (!isRemote) await createSharedFiles(attemptDir, scripts, owner);
    await this.#createContainer(spec, { image, user, limits, isRemote, access, mounts });
    if (isRemote) await this.#sendFolders(spec, scripts, user, abort);
    abort.throwIfAborted();
    return { runner: 'docker', attempt: id, gpus: gpus.map(({ index }) => index).join(',') };
  }

  async #resolveUser(image: Image, attemptDir: string, abort: AbortSignal): Promise<ContainerUser> {
    const { accounts, users } = this.#parts;
    const account = await accounts?.allocate(attemptDir);
    const owner = account ? { uid: account.uid, gid: account.uid } : null;
    return users.resolveUser(image, owner, abort);
  }

  async #createContainer(
    spec: AttemptSpec,
    {
      image,
      user,
      limits,
      isRemote,
      access,
      mounts,
    }: {
      image: Image;
      user: ContainerUser;
      limits: JobLimits;
      isRemote: boolean;
      access: GpuAccess;
      mounts: readonly MountedFolder[];
    },
  ): Promise<void> {
    const { worker, sharedCgroup, network, containerCreator } = this.#parts;
    const options = buildContainerOptions({
      attemptId: spec.id,
      workerId: worker,
      attemptDir: isRemote ? null : this.#attemptDirOf(spec.id),
      image,
      user,
      files: spec.files,
      mounts,
      gpus: access,
      timeoutMs: spec.timeoutMs,
      graceMs: this.#graceMs,
      limits,
      parentGroup: await sharedCgroup.cgroupParent(),
      log: spec.log,
      network: await network.options(),
      runtime: this.#options.network?.runtime,
    });
    await containerCreator.create(options, image, limits.diskBytes);
  }

  /** Sends the job's folders into the container on a remote engine, then discards the local copies. */
  async #sendFolders(
    spec: AttemptSpec,
    scripts: JobScripts,
    user: ContainerUser,
    abort: AbortSignal,
  ): Promise<void> {
    const { engine, removal } = this.#parts;
    const attemptDir = this.#attemptDirOf(spec.id);
    const target = { engine, container: containerName(spec.id) };
    await createRemoteFolders(target, scripts, user);
    if (Object.keys(spec.files).length > 0) await sendFiles(target, spec.files, user);
    if (spec.checkout) await sendCheckout(target, attemptDir, abort);
    for (const name of ['work', 'home']) await removal.discard(join(attemptDir, name));
  }

  async start(handle: Handle, mayBegin = async () => true): Promise<boolean> {
    const { network, sharedCgroup } = this.#parts;
    const attempt = String(handle.attempt);
    const mayRecreate = () => {
      const count = (this.#recreations.get(attempt) ?? 0) + 1;
      this.#recreations.set(attempt, count);
      return count <= MAX_RECREATIONS;
    };
    return startContainer({
      ...this.#supervised(handle),
      network,
      mayRecreate,
      mayBegin,
      applySharedLimits: sharedCgroup.applyLimits,
    });
  }

  async attach(handle: Handle): Promise<'prepared' | 'started' | 'unprepared' | 'gone'> {
    const { attempt, engine, container, attemptDir, shims } = this.#supervised(handle);
    if (!existsSync(attemptDir)) return 'gone';
    if (await readRecord(attemptDir, 'unstartable')) return 'started';
    // Even if somebody has removed the container.
    if (await shims.readExit(attempt)) return 'started';
    const state = await readContainerState(engine, container);
    const opening = await readRecord(attemptDir, 'opening');
    if (!state) return opening ? 'gone' : 'unprepared';
    // Checked before `opening`: the opening of a remote container is recorded before its start.
    if (state.status === 'created') return 'prepared';
    if (!opening) return state.status === 'ended' ? 'unprepared' : 'prepared';
    return 'started';
  }

  async *logs(
    handle: Handle,
    cursor: LogCursor | null,
    abort: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    const { attempt, engine, container, attemptDir, shims } = this.#supervised(handle);
    const record = await readRecord(attemptDir, 'attempt');
    if (!record) return;
    const hasEnded = async () => {
      const state = await readContainerState(engine, container);
      if (state?.status === 'created') return Boolean(await readRecord(attemptDir, 'unstartable'));
      return state?.status !== 'running';
    };
    if ((await readRecord(attemptDir, 'opening'))?.hasShim) {
      yield* shims.followLog(attempt, cursor, abort);
      // If the image's `/bin/sh` is not a shell, the output is in the engine's log.
      if (abort.aborted || !(await shims.readExit(attempt))?.unstartable) return;
    }
    yield* followLog({ engine, container, caps: record.log, hasEnded }, cursor, abort);
  }

  renewLease(handle: Handle, renewedAt: number): void {
    const attemptDir = this.#attemptDirOf(handle.attempt);
    if (existsSync(attemptDir)) renewLease(attemptDir, renewedAt);
  }

  async signal(handle: Handle, how: 'TERM' | 'KILL'): Promise<void> {
    if (!existsSync(this.#attemptDirOf(handle.attempt))) return;
    await this.#requestStop(handle, { how, why: 'asked', at: Date.now() });
  }

  async #requestStop(handle: Handle, stop: StopRequest): Promise<void> {
    await requestStop(this.#supervised(handle), stop);
    this.#stopEvents.dispatchEvent(new Event(String(handle.attempt)));
  }

  async wait(handle: Handle, abort: AbortSignal): Promise<Outcome> {
    const record = await readRecord(this.#attemptDirOf(handle.attempt), 'attempt');
    if (!record) return { kind: 'lost' };
    const watching = new AbortController();
    const { log } = this.#parts;
    this.#sessions
      .endOrphans(this.#supervised(handle))
      .catch((error) => log.warn({ err: error }, 'A shell of an earlier process may go on'));
    const watch = this.#watchDisk(handle, record, AbortSignal.any([abort, watching.signal]));
    try {
      const outcome = await superviseContainer(
        this.#supervised(handle),
        (signal) => this.#nextStopRequest(handle, signal),
        abort,
      );
      const dir = this.#attemptDirOf(handle.attempt);
      return record.remote ? outcome : noteResultFiles(outcome, dir);
    } finally {
      watching.abort();
      await watch;
    }
  }

  /** Ends the job when it exceeds its disk limit. */
  async #watchDisk(handle: Handle, record: AttemptRecord, signal: AbortSignal): Promise<void> {
    const { engine, container, attemptDir, isLocal } = this.#supervised(handle);
    try {
      const note = await watchContainerDisk(
        {
          engine,
          container,
          attemptDir,
          isLocal,
          remote: record.remote ?? false,
          limits: record,
          floorBytes: this.#options.diskFloor ?? 0,
          onMeasured: (bytes) => void this.#diskUse.set(String(handle.attempt), bytes),
        },
        signal,
      );
      if (note === null) return;
      await this.#requestStop(handle, { how: 'KILL', why: 'disk', at: Date.now(), note });
    } catch (error) {
      // The request was stored before the signal, so `superviseContainer` sends the signal when the engine answers again.
      const { log } = this.#parts;
      log.error(
        { err: error, attempt: handle.attempt },
        'A job that exceeded its disk limit could not be ended',
      );
    }
  }

  /** Settles when a stop of the attempt is requested, or when `signal` aborts. */
  #nextStopRequest(handle: Handle, signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const options = { once: true, signal };
    this.#stopEvents.addEventListener(String(handle.attempt), () => resolve(), options);
    signal.addEventListener('abort', () => resolve(), { once: true });
    return promise;
  }

  async replaceFiles(handle: Handle, files: AttemptSpec['files']): Promise<void> {
    const { engine, container, attemptDir } = this.#supervised(handle);
    const record = await readRecord(attemptDir, 'attempt');
    if (!record) return;
    if (record.remote) await sendFiles({ engine, container }, files, record.owner);
    else writeFiles(attemptDir, files, record.owner);
  }

  async exec(handle: Handle, spec: ExecSpec): Promise<ExecSession> {
    const { attempt, attemptDir, shims } = this.#supervised(handle);
    const opening = await readRecord(attemptDir, 'opening');
    if (!opening || (await shims.readExit(attempt)))
      throw new NotExecutable('The job does not run.');
    return this.#sessions.open(this.#supervised(handle), spec);
  }

  async stats(handle: Handle): Promise<Usage | null> {
    const { attempt, engine, container, attemptDir } = this.#supervised(handle);
    const record = await readRecord(attemptDir, 'attempt');
    const sample = record && (await readUsageSample(engine, container));
    if (!sample) return null;
    const startedAt = (await readRecord(attemptDir, 'opening'))?.at ?? sample.at - 1_000;
    return {
      cpuPercent: this.#cpuShares.percentOf(attempt, sample, startedAt, record.cpus),
      gpuPercent: await this.#gpuPercentOf(attempt, record),
      memoryBytes: sample.memoryBytes,
      diskBytes: this.#diskUse.get(attempt) ?? 0,
    };
  }

  async #gpuPercentOf(attempt: string, { remote, gpus }: AttemptRecord): Promise<number | null> {
    const { localGpus, gpuUtilization } = this.#parts;
    if (!remote) return localGpus.percentOf(attempt);
    return gpus.length > 0 ? gpuUtilization.percentOf(containerName(attempt)) : 0;
  }

  async artifacts(handle: Handle, path: string, options?: ReadOptions): Promise<Readable | null> {
    const { engine, container, attemptDir } = this.#supervised(handle);
    const record = await readRecord(attemptDir, 'attempt');
    if (!record) return null;
    const { owner, remote = false } = record;
    const { uidOffset } = await this.#parts.health.getFacts();
    const source = { engine, container, attemptDir, owner, remote, uidOffset };
    return readArtifacts(source, path, options);
  }

  async remove(handle: Handle): Promise<void> {
    const attempt = String(handle.attempt);
    await this.#removeAttempt(attempt);
    this.#recreations.delete(attempt);
  }

  async #removeAttempt(attempt: string): Promise<void> {
    // The folder is removed last. Without it there is no container, so removal succeeds even if the engine is unavailable.
    if (existsSync(this.#attemptDirOf(attempt))) await this.#removeAll(attempt);
  }

  async #removeAll(attempt: string): Promise<void> {
    const { engine, shims, accounts, localGpus, remoteGpus, gpuUtilization, removal } = this.#parts;
    const attemptDir = this.#attemptDirOf(attempt);
    const container = containerName(attempt);
    const hasBegun = (await readRecord(attemptDir, 'opening')) !== undefined;
    await (hasBegun ? removeContainer : removeUnstarted)(engine, container);
    await shims.kill(attempt);
    await accounts?.release(attemptDir);
    for (const ledger of [localGpus, remoteGpus]) ledger.release(attempt);
    gpuUtilization.forget(container);
    this.#cpuShares.forget(attempt);
    this.#diskUse.delete(attempt);
    await removal.discard(attemptDir);
  }

  async sweep(keep: ReadonlySet<string>): Promise<void> {
    const { engine, worker, reader } = this.#parts;
    const orphans = await findOrphans(engine, { dir: this.#options.dir, worker, reader, keep });
    const removals = await Promise.allSettled([
      ...orphans.attempts.map((attempt) => this.#removeAll(attempt)),
      ...orphans.readers.map((id) => removeContainer(engine, id)),
      ...orphans.volumes.map((name) => engine.call((docker) => docker.getVolume(name).remove())),
    ]);
    const errors = removals.flatMap((removal) =>
      removal.status === 'rejected' ? [removal.reason] : [],
    );
    if (errors.length > 0)
      throw new AggregateError(errors, `${errors.length} containers or volumes cannot be removed`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.owned[Symbol.asyncDispose]();
  }

  #attemptDirOf(attempt: string | number | undefined): string {
    return join(this.#options.dir, String(attempt));
  }

  #gpuLedger(isRemote: boolean): GpuLedger {
    return isRemote ? this.#parts.remoteGpus : this.#parts.localGpus;
  }

  #supervised(handle: Handle): SupervisedContainer {
    const { engine, health, shims } = this.#parts;
    const attempt = String(handle.attempt);
    return {
      attempt,
      engine,
      container: containerName(attempt),
      attemptDir: this.#attemptDirOf(attempt),
      graceMs: this.#graceMs,
      engineTimeoutMs: this.#options.engineTimeoutMs ?? ENGINE_TIMEOUT_MS,
      shims,
      isLocal: () => health.facts?.isLocal ?? false,
    };
  }
}
