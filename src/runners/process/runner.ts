/**
 * Runs jobs as processes of this machine, confined as far as the machine allows (`confinement.ts`). A shim supervises
 * each attempt and outlives the server (`shim.ts` describes its files). The shim owns the timeout, the grace period and
 * the limits that the kernel does not enforce, so they hold while no server runs.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { HARDWARE_DEFAULTS } from '../../base/hardware.ts';
import { createLog, type Logger } from '../../base/log.ts';
import { CpuShares } from '../cpu-share.ts';
import { resolveGpuAccess } from '../gpus/gpus.ts';
import { type GpuLedger, openGpuLedger } from '../gpus/ledger.ts';
import {
  type AttemptSpec,
  type ExecSession,
  type ExecSpec,
  GRACE_MS,
  type Handle,
  LOCAL_MACHINE,
  type LogBatch,
  type LogCursor,
  type Machine,
  type MayBegin,
  MOUNTS,
  type MountedFolder,
  type NetworkMode,
  NotExecutable,
  type Outcome,
  type ReadOptions,
  type Runner,
  Unstartable,
  type Usage,
} from '../runner.ts';
import { DEFAULT_UIDS, type UidRange } from '../supervisor/accounts.ts';
import { buildOutcome, followLog } from '../supervisor/attempt-folder.ts';
import { DISK_FULL_EXIT, type ProcessIdentity } from '../supervisor/claim.ts';
import type { DiskUse } from '../supervisor/disk.ts';
import {
  type Changes,
  isAlive,
  killStrays,
  readClaim,
  readJsonFile,
  watchChanges,
} from '../supervisor/folder.ts';
import { renewLease } from '../supervisor/lease.ts';
import { computeLimits, type JobLimits, readMachineCapacity } from '../supervisor/limits.ts';
import { readBootId } from '../supervisor/proc.ts';
import { openRemoval, type Removal } from '../supervisor/removal.ts';
import { noteResultFiles } from '../supervisor/result-files.ts';
import type { AttemptExit, AttemptStart } from '../supervisor/supervise.ts';
import { locateOutput, openTar } from '../supervisor/tar.ts';
import { type LocalVolumes, locateVolumes } from '../volumes.ts';
import {
  type Allocation,
  type AttemptGroups,
  openAttemptGroups,
  readAllAllocations,
  readAllocation,
  writeAllocation,
} from './allocation.ts';
import { killGroup, readGroupUsage, removeGroup } from './cgroup.ts';
import { type Cgroups, type Controller, findCgroups } from './cgroups.ts';
import { type Confinement, findConfinement, type Sandbox } from './confinement.ts';
import { type ExecPlan, execInSandbox } from './exec.ts';
import type { Command } from './launch.ts';
import type { ShimSpec } from './shim.ts';
import { openShims, type ShimPool } from './shims.ts';
import { readTreeUsage } from './tree.ts';

/** Contains the folders of removed attempts until their files are deleted. */
const TRASH_DIR = '.trash';
/** Describes how other commands run beside that of the job. */
const EXEC_FILE = 'exec.json';
/** How long a command beside that of a job waits for the job's to begin, and how often it looks. */
const BEGIN_MS = 10_000;
const BEGIN_CHECK_MS = 20;
/** A command without the environment of jobs after this time has changed its own. */
const NEW_MS = 2_000;
/** Size of the file that the shim deletes when the disk is full, to have room for the last lines and the exit record. */
const RESERVE_BYTES = 64 * 1024;
/** How long a shim may take to kill the attempt and record its end: a process in the middle of a slow write takes seconds. */
const END_TIMEOUT_MS = 10_000;
/** The exit code after SIGKILL. */
const KILLED = 137;

export type ProcessRunnerOptions = {
  /** Contains the folders of attempts. */
  dir: string;
  /** Time between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** `auto` takes the best sandbox that works here. */
  sandbox?: Sandbox | 'auto';
  /** Unset: `internet` where it works, else `host`. */
  network?: NetworkMode;
  /** Non-public IPv4 networks that jobs may reach. */
  allow?: readonly string[];
  /** User ids for jobs, used when this server is root. */
  uids?: UidRange;
  /** Folders that no job may see. */
  hidden?: readonly string[];
  /** `off` behaves like a machine where control groups cannot be created. */
  cgroups?: 'auto' | 'off';
  /** Free bytes on the disk below which the server stops writing. The largest jobs are ended before that. */
  diskFloor?: number;
  /** GPUs of this machine, shared with other runners on it; unset: this runner opens its own ledger. */
  gpus?: GpuLedger;
  /** Replaces limits that would follow from the requested hardware. */
  limits?: Partial<JobLimits>;
  /** The volumes of this machine; unset: it has none. */
  volumes?: LocalVolumes | undefined;
  log?: Logger;
};

/** Disposing of it leaves jobs running. The next start completes unfinished removals. */
export type ProcessRunner = Runner & AsyncDisposable;

export async function openProcessRunner(options: ProcessRunnerOptions): Promise<ProcessRunner> {
  const { dir, hidden = [], uids = DEFAULT_UIDS } = options;
  const log = options.log ?? createLog('silent');
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const confinement = await findConfinement({
    dir,
    hidden: [...hidden, dir],
    sandbox: options.sandbox ?? 'auto',
    network: options.network,
    allow: options.allow ?? [],
    uids,
  });
  const gpus = options.gpus ?? (await openGpuLedger());
  const typical = computeLimits({ ...HARDWARE_DEFAULTS, gpu: 'none' });
  const cgroups =
    options.cgroups === 'off' ? { missing: 'they are switched off' } : await findCgroups(typical);
  log.info(describeLimits(cgroups));
  const allocations = await readAllAllocations(dir);
  for (const [attempt, allocation] of allocations)
    gpus.restore(attempt, allocation.gpus, allocation.gpu);
  const removal = await openRemoval(join(dir, TRASH_DIR), (error, message) =>
    log.error({ err: error }, message),
  );
  return new LocalProcessRunner(options, {
    confinement,
    gpus,
    allocations,
    removal,
    controllers: 'missing' in cgroups ? [] : cgroups.controllers,
    groups: 'missing' in cgroups ? null : openAttemptGroups(cgroups, dir),
    shims: await openShims(dir, { prefix: confinement.shimPrefix }),
  });
}

type Parts = {
  confinement: Confinement;
  gpus: GpuLedger;
  /** By attempt id, also those of the previous server. */
  allocations: Map<string, Allocation>;
  removal: Removal;
  controllers: readonly Controller[];
  /** Null: control groups cannot be created here. */
  groups: AttemptGroups | null;
  shims: ShimPool;
};

class LocalProcessRunner implements ProcessRunner {
  readonly name = 'process';
  readonly warning?: string;
  readonly #options: ProcessRunnerOptions;
  readonly #dir: string;
  readonly #parts: Parts;
  readonly #capacity: ReturnType<typeof readMachineCapacity>;
  readonly #cpuShares = new CpuShares();
  /** Random bytes, because a disk that compresses would keep no space for zeros. */
  readonly #reserve = randomBytes(RESERVE_BYTES);

  constructor(options: ProcessRunnerOptions, parts: Parts) {
    const { warnings } = parts.confinement;
    this.#options = options;
    this.#dir = options.dir;
    this.#parts = parts;
    this.#capacity = readMachineCapacity();
    if (warnings.length > 0) this.warning = warnings.join(' ');
  }

  get machines(): readonly Machine[] {
    const { models } = this.#parts.gpus;
    return [{ id: LOCAL_MACHINE, ...this.#capacity, gpus: models, withImage: false }];
  }

  async prepare(spec: AttemptSpec, abort: AbortSignal): Promise<Handle> {
    if (spec.image) throw new Unstartable(describeMissingEngine(spec.image));
    const { confinement, gpus, allocations, groups, shims } = this.#parts;
    const { id } = spec;
    if (existsSync(join(this.#dir, id))) await this.remove({ attempt: id });
    const mounts = await locateVolumes(this.#options.volumes, spec);
    const limits = { ...computeLimits(spec.hardware), ...this.#options.limits };
    const taken = gpus.take(id, spec.hardware);
    const allocation: Allocation = {
      gpus: taken.map(({ index }) => index),
      ...(taken.length > 0 && { gpu: spec.hardware.gpu }),
      cgroup: groups?.groupOf(id) ?? null,
    };
    allocations.set(id, allocation);
    const handle: Handle = { attempt: id, gpus: allocation.gpus.join(','), cpus: limits.cpus };
    const folder = this.#folder(handle);
    await confinement.createFolder(folder);
    const resources = await confinement.allocate(folder);
    writeAllocation(folder, allocation);
    // The network is opened first, because that takes longer than most checkouts.
    if (resources.internet) shims.reserve(id, resources.internet.spec);
    const work = join(folder, 'work');
    const canMount = confinement.sandbox !== 'none';
    const mount = canMount ? (one: MountedFolder) => void mounts.push(one) : undefined;
    const steps = [
      spec.checkout ? spec.checkout(work, abort, join(folder, 'home'), mount) : mkdir(work),
      confinement.createOutputs(folder, resources),
    ];
    // Wait for both steps even if one fails, because the caller then removes the folder that the other step writes to.
    for (const step of await Promise.allSettled<unknown>(steps))
      if (step.status === 'rejected') throw step.reason;
    abort.throwIfAborted();
    confinement.placeVolumes(folder, mounts);
    writeFileSync(join(folder, 'reserve'), this.#reserve, { mode: 0o600 });
    writeFileSync(join(folder, 'log'), '', { mode: 0o600 });
    await confinement.giveFolders(folder, resources);
    if (Object.keys(spec.files).length > 0) await confinement.writeFiles(folder, spec.files);
    const access = resolveGpuAccess(taken);
    const job = {
      attempt: id,
      command: spec.command,
      env: { ...spec.env, ...access.env },
      files: spec.files,
      devices: access.devices,
      mounts,
    };
    const command = await confinement.compose(folder, job, resources);
    const limitCommands = processLimitCommands(limits, this.#parts.controllers);
    const execPlan: ExecPlan = { limitCommands, ...confinement.planExec(folder, id, resources) };
    writeFileSync(join(folder, EXEC_FILE), JSON.stringify(execPlan), { mode: 0o600 });
    const shimSpec = this.#shimSpec(spec, folder, limits, allocation, command);
    writeFileSync(join(folder, 'spec.json'), JSON.stringify(shimSpec), { mode: 0o600 });
    return handle;
  }

  #shimSpec(
    spec: AttemptSpec,
    folder: string,
    limits: JobLimits,
    { cgroup }: Allocation,
    command: Command,
  ): ShimSpec {
    const { controllers, groups } = this.#parts;
    return {
      command,
      attempt: spec.id,
      bootId: readBootId(),
      limitCommands: processLimitCommands(limits, controllers),
      timeoutMs: spec.timeoutMs,
      leaseMs: spec.leaseMs,
      graceMs: this.#options.graceMs ?? GRACE_MS,
      cgroup,
      groupPlan: cgroup && groups ? groups.settingsOf(cgroup, limits) : [],
      memory: { bytes: limits.memoryBytes, watched: !controllers.includes('memory') },
      disk: {
        dirs: Object.keys(MOUNTS).map((name) => join(folder, name)),
        floorBytes: this.#options.diskFloor ?? 0,
        diskBytes: limits.diskBytes,
        files: limits.files,
      },
      log: spec.log,
    };
  }

  async start(handle: Handle, mayBegin?: MayBegin): Promise<boolean> {
    if (this.#isClaimed(handle)) return true;
    if (mayBegin && !(await mayBegin())) return false;
    const exitCode = await this.#parts.shims.launch(String(handle.attempt));
    if (exitCode === DISK_FULL_EXIT)
      throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
    if (!this.#isClaimed(handle)) throw new Error(`the shim of ${handle.attempt} did not start`);
    return true;
  }

  async attach(handle: Handle): Promise<'prepared' | 'started' | 'unprepared' | 'gone'> {
    if (this.#isClaimed(handle)) return 'started';
    if (!existsSync(this.#file(handle, 'spec.json'))) return 'gone';
    return (await this.#wasPreparedInThisBoot(handle)) ? 'prepared' : 'unprepared';
  }

  /** Prepared files are not synced to the disk, so they cannot be used after a restart of the machine. */
  async #wasPreparedInThisBoot(handle: Handle): Promise<boolean> {
    const file = this.#file(handle, 'spec.json');
    const spec = await readJsonFile<ShimSpec>(file).catch(() => undefined);
    return spec !== undefined && spec.bootId === readBootId();
  }

  async *logs(
    handle: Handle,
    cursor: LogCursor | null,
    abort: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    using changes = watchChanges(this.#folder(handle), abort, ['log', 'exit']);
    const watcher = this.#watchForEnd(handle, changes);
    yield* followLog(this.#file(handle, 'log'), cursor, abort, watcher);
  }

  renewLease(handle: Handle, renewedAt: number): void {
    if (existsSync(this.#folder(handle))) renewLease(this.#folder(handle), renewedAt);
  }

  async signal(handle: Handle, name: 'TERM' | 'KILL'): Promise<void> {
    const claim = await this.#readClaim(handle);
    // After `exit` was written the shim may have another attempt. Only this thread assigns attempts, so none is assigned
    // between the check and the signal.
    if (!claim || existsSync(this.#file(handle, 'exit')) || !isAlive(claim)) return;
    process.kill(claim.pid, name === 'TERM' ? 'SIGTERM' : 'SIGUSR2');
  }

  async wait(handle: Handle, abort: AbortSignal): Promise<Outcome> {
    const folder = this.#folder(handle);
    using changes = watchChanges(folder, abort, ['exit']);
    const watcher = this.#watchForEnd(handle, changes);
    for (;;) {
      const end = await watcher.findEnd();
      if (end === 'lost') {
        await this.#parts.confinement.killProcesses(folder);
        await killStrays(String(handle.attempt));
        const { cgroup } = await readAllocation(folder);
        if (cgroup) await killGroup(cgroup);
      }
      if (end === 'lost') return { kind: 'lost' };
      // The exit code of a process is always known.
      if (end)
        return noteResultFiles(buildOutcome({ ...end, exitCode: end.exitCode ?? KILLED }), folder);
      await watcher.next();
      abort.throwIfAborted();
    }
  }

  /**
   * An attempt with an `exit` file has ended; an attempt without it whose shim is gone is lost. The shim is checked only when
   * no file has changed for a second. Its claim is read once, because it never changes.
   */
  #watchForEnd(handle: Handle, changes: Changes) {
    let claim: ProcessIdentity | undefined;
    let isQuiet = false;
    return {
      findEnd: async (): Promise<AttemptExit | 'lost' | undefined> => {
        const file = this.#file(handle, 'exit');
        if (!existsSync(file)) {
          if (!isQuiet) return undefined;
          claim ??= await this.#readClaim(handle);
          if (claim && isAlive(claim)) return undefined;
        }
        // Read after the check of the process, because the shim may have written the file in between.
        return (await readJsonFile<AttemptExit>(file)) ?? 'lost';
      },
      next: async (): Promise<void> => {
        isQuiet = !(await changes.next());
      },
    };
  }

  async exec(handle: Handle, spec: ExecSpec): Promise<ExecSession> {
    const folder = this.#folder(handle);
    const plan = await readJsonFile<ExecPlan>(join(folder, EXEC_FILE));
    const isSandboxed = this.#parts.confinement.sandbox !== 'none';
    const attempt = String(handle.attempt);
    const askedAt = performance.now();
    for (let waited = 0; plan && waited < BEGIN_MS; waited = performance.now() - askedAt) {
      if (existsSync(join(folder, 'exit'))) break;
      const started = await readJsonFile<AttemptStart>(join(folder, 'started'));
      const { cgroup } = await readAllocation(folder);
      const target = { ...plan, attempt, pid: started?.pid ?? 0, isSandboxed, cgroup };
      const session = started && (await execInSandbox(target, spec, waited < NEW_MS));
      if (session) return session;
      await delay(BEGIN_CHECK_MS);
    }
    throw new NotExecutable('The job does not run.');
  }

  async replaceFiles(handle: Handle, files: AttemptSpec['files']): Promise<void> {
    const folder = this.#folder(handle);
    if (existsSync(folder)) await this.#parts.confinement.writeFiles(folder, files);
  }

  async stats(handle: Handle): Promise<Usage | null> {
    const { gpus, allocations } = this.#parts;
    const started = await readJsonFile<AttemptStart>(this.#file(handle, 'started'));
    if (!started) return null;
    const id = String(handle.attempt);
    const { cgroup = null } = allocations.get(id) ?? {};
    const used = (cgroup && readGroupUsage(cgroup)) ?? readTreeUsage(started.pid);
    if (!used) return null;
    const sample = { at: Date.now(), cpuSeconds: used.cpuSeconds };
    const disk = await readJsonFile<DiskUse>(this.#file(handle, 'disk'));
    const cpus = Number(handle.cpus ?? 1);
    return {
      cpuPercent: this.#cpuShares.percentOf(id, sample, started.startedAt, cpus),
      gpuPercent: await gpus.percentOf(id),
      memoryBytes: used.memoryBytes,
      diskBytes: disk?.bytes ?? 0,
    };
  }

  async artifacts(handle: Handle, path: string, options?: ReadOptions) {
    const found = await locateOutput(this.#folder(handle), path);
    return found && openTar(found, options);
  }

  async remove(handle: Handle): Promise<void> {
    await this.#end(String(handle.attempt));
    await this.#parts.removal.discard(this.#folder(handle));
  }

  /**
   * Kills all processes of the attempt and releases its allocation.
   * @throws Error when a process does not die
   */
  async #end(attempt: string): Promise<void> {
    const { confinement, gpus, allocations, shims } = this.#parts;
    await this.#endShim(attempt);
    const folder = join(this.#dir, attempt);
    shims.discard(attempt);
    await confinement.killProcesses(folder);
    // In a sandbox `exit` is written when no process is left. A scan of all processes blocks this thread for 7 ms.
    const hasNoProcess =
      confinement.sandbox !== 'none' && existsSync(this.#file({ attempt }, 'exit'));
    if (!hasNoProcess) await killStrays(attempt);
    // The file may be missing because the disk was full.
    const cgroup = (await readAllocation(folder)).cgroup ?? allocations.get(attempt)?.cgroup;
    if (cgroup) await removeGroup(cgroup);
    await confinement.release(folder);
    this.#cpuShares.forget(attempt);
    // The GPUs of an attempt without an allocation here belong to another kind of runner.
    if (allocations.delete(attempt)) gpus.release(attempt);
  }

  async #endShim(attempt: string): Promise<void> {
    const timedOut = delay(END_TIMEOUT_MS, 'timed out' as const, { ref: false });
    for (const deadline = Date.now() + END_TIMEOUT_MS; ; await delay(20)) {
      const claim = await this.#readClaim({ attempt });
      if (!claim || !isAlive(claim)) return;
      if (existsSync(this.#file({ attempt }, 'exit'))) {
        // The shim still has to close the network and remove the group. A shim of the previous server ends by itself.
        const released = this.#parts.shims.waitUntilReleased(attempt);
        if ((await Promise.race([released, timedOut])) !== 'timed out') return;
      }
      if (Date.now() > deadline) throw new Error(`the shim of ${attempt} does not end`);
      await this.signal({ attempt }, 'KILL');
    }
  }

  async sweep(keep: ReadonlySet<string>): Promise<void> {
    const { groups, allocations } = this.#parts;
    const orphans = (await readdir(this.#dir)).filter(
      (name) => !name.startsWith('.') && !keep.has(name),
    );
    const results = await Promise.allSettled([
      ...orphans.map((attempt) => this.remove({ attempt })),
      ...(groups?.findOrphans(keep, allocations.values()) ?? []).map(removeGroup),
    ]);
    groups?.removeAbandoned();
    const errors = results.flatMap((e) => (e.status === 'rejected' ? [e.reason] : []));
    if (errors.length > 0)
      throw new AggregateError(errors, `${errors.length} attempts cannot be removed`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { removal, shims } = this.#parts;
    await Promise.all([removal[Symbol.asyncDispose](), shims[Symbol.asyncDispose]()]);
  }

  #folder(handle: Handle): string {
    return join(this.#dir, String(handle.attempt));
  }

  #file(handle: Handle, name: string): string {
    return join(this.#folder(handle), name);
  }

  #readClaim(handle: Handle): Promise<ProcessIdentity | undefined> {
    return readClaim(this.#file(handle, 'claim'));
  }

  #isClaimed(handle: Handle): boolean {
    return existsSync(this.#file(handle, 'claim'));
  }
}

function describeMissingEngine(image: string): string {
  return (
    `The container image "${image}" cannot be run: no server here has a container engine. The operator can ` +
    'install Docker or Podman, or set DOCKER_HOST to an engine, and LOAM_RUNNER must not be "process"'
  );
}

/*
 * Control groups limit a job as a whole. Where they cannot be created, the kernel's limits for single processes are
 * used instead, and the shim checks the sum of the job's memory every second (`watchMemory` in `proc.ts`).
 */

/** Per process. Node, PostgreSQL and similar programs ask for 65,536 at most. */
const OPEN_FILES = 65_536;

/**
 * Without a control group, a process may reserve this much writable memory beyond the limit of its job, because programs
 * reserve more than they use: Node 512 MiB for code, each thread 8 MiB for its stack. Address space (`-v`) is not limited,
 * because Go, Java and CUDA reserve a hundred times as much as they use.
 */
const UNUSED_BYTES = 4 * 2 ** 30;

/** Shell commands that limit each process of a job. The first process must run them before it starts anything. */
function processLimitCommands(limits: JobLimits, controllers: readonly Controller[]): string[] {
  const commands = [
    // A core file would contain the job's memory, including secrets.
    'ulimit -c 0',
    // Fails where an ordinary user would have to raise the limit, which is then low enough.
    `ulimit -n ${OPEN_FILES} 2>/dev/null`,
  ];
  if (!controllers.includes('pids')) {
    // Shells use different letters. The kernel counts all processes of the user, also those of this server.
    const n = limits.processes;
    commands.push(`ulimit -u ${n} 2>/dev/null || ulimit -p ${n} 2>/dev/null`);
  }
  if (!controllers.includes('memory')) {
    const kib = Math.floor((limits.memoryBytes + UNUSED_BYTES) / 1024);
    commands.push(`ulimit -d ${kib} 2>/dev/null`);
  }
  return commands;
}

/** Describes for the operator, at startup, which limits are enforced. */
function describeLimits(cgroups: Cgroups | { missing: string }): string {
  if ('missing' in cgroups)
    return (
      'The memory of jobs is checked every second, and each of their processes has limits of its own. ' +
      `Their CPU is not limited: ${cgroups.missing}`
    );
  const { version, controllers } = cgroups;
  return `Jobs are limited by control groups (version ${version}: ${controllers.join(', ')})`;
}
