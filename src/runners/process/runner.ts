/**
 * Jobs as processes of this machine, confined as well as it allows (`process/confinement.ts`), each under a shim
 * of its own that goes on when the server stops, dies or is replaced (`process/shim.ts` describes its files).
 *
 * The shim owns the timeout, the grace period and the limits that the kernel does not hold a job to, so they
 * hold while no server runs.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, existsSync, openSync, readSync, writeFileSync } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { HARDWARE_DEFAULTS } from '../../base/hardware.ts';
import { createLog, type Logger } from '../../base/log.ts';
import { CpuShares } from '../cpu-share.ts';
import { type GpuLedger, openGpuLedger } from '../gpu-ledger.ts';
import { gpuAccess } from '../gpus.ts';
import {
  GRACE_MS,
  type Handle,
  LOCAL,
  MOUNTS,
  type NetworkMode,
  type Outcome,
  type Runner,
  Unstartable,
  type Usage,
} from '../runner.ts';
import { DEFAULT_UIDS, type UidRange } from '../supervisor/accounts.ts';
import { type Claim, DISK_FULL_EXIT } from '../supervisor/claim.ts';
import type { DiskUse } from '../supervisor/disk.ts';
import {
  type Changes,
  changesOf,
  isAlive,
  killStrays,
  readClaim,
  readWhole,
} from '../supervisor/folder.ts';
import { type Limits, limitsOf, thisMachine } from '../supervisor/limits.ts';
import { parseLog } from '../supervisor/lines.ts';
import { bootIdNow } from '../supervisor/proc.ts';
import { openRemoval } from '../supervisor/removal.ts';
import { locate, tarOf } from '../supervisor/tar.ts';
import { killGroup, removeGroup, usageOfGroup } from './cgroup.ts';
import { type Cgroups, type Controller, findCgroups } from './cgroups.ts';
import { findConfinement, type Sandbox } from './confinement.ts';
import {
  allReservations,
  openGroups,
  type Reservation,
  readReservation,
  writeReservation,
} from './reservation.ts';
import type { Exit, ShimSpec, Started } from './shim.ts';
import { openShims } from './shims.ts';
import { usageOfTree } from './tree.ts';

/** What ended attempts left, until it is removed. */
const TRASH = '.trash';
/** Given up when the disk is full: room for the last lines and the record of how it ended. */
const RESERVE_BYTES = 64 * 1024;
/** Of the log at once: lines are held as objects meanwhile, some ten times their size. */
const READ_BYTES = 256 * 1024;
/** For the shim to end the work and write down how; a process in the middle of a slow write takes seconds. */
const END_MS = 10_000;

export type ProcessRunnerOptions = {
  /** Where the folders of attempts lie. */
  dir: string;
  /** Between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** The best that works here, or this one. */
  sandbox?: Sandbox | 'auto';
  /** Unset: `internet` where that works, else `host`. */
  network?: NetworkMode;
  /** For jobs, when this server is root. */
  uids?: UidRange;
  /** Folders that no job may see. */
  hidden?: readonly string[];
  /** `off`: as on a machine that lets us make none. */
  cgroups?: 'auto' | 'off';
  /** Free space on the disk below which the server stops writing, in bytes: who takes most is ended before. */
  diskFloor?: number;
  /** Of this machine, shared with other runners on it; unset: its own. */
  gpus?: GpuLedger;
  /** In place of those that follow from what was asked for. */
  limits?: Partial<Limits>;
  log?: Logger;
};

/** Disposing it leaves jobs running, and what is not yet removed to the next start. */
export type ProcessRunner = Runner & AsyncDisposable;

export async function openProcessRunner(options: ProcessRunnerOptions): Promise<ProcessRunner> {
  const { dir, graceMs = GRACE_MS, hidden = [], uids = DEFAULT_UIDS } = options;
  const log = options.log ?? createLog('silent');
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const confinement = await findConfinement({
    dir,
    hidden: [...hidden, dir],
    sandbox: options.sandbox ?? 'auto',
    network: options.network,
    uids,
  });
  const gpus = options.gpus ?? (await openGpuLedger());
  const allowed = limitsOf({ ...HARDWARE_DEFAULTS, gpu: 'none' });
  const cgroups =
    options.cgroups === 'off' ? { missing: 'they are switched off' } : await findCgroups(allowed);
  log.info(describeLimits(cgroups));
  const controllers = 'missing' in cgroups ? [] : cgroups.controllers;
  const cpuShares = new CpuShares();
  // Random, or a disk that compresses would keep nothing free.
  const reserve = randomBytes(RESERVE_BYTES);
  const holdings: Map<string, Reservation> = await allReservations(dir);
  for (const [attempt, holding] of holdings) gpus.hold(attempt, holding.gpus);
  const removal = await openRemoval(join(dir, TRASH), (error, what) =>
    log.error({ err: error }, what),
  );

  const groups = 'missing' in cgroups ? null : openGroups(cgroups, dir);
  const shims = await openShims(dir, { around: confinement.aroundShims });

  const folder = (handle: Handle) => join(dir, String(handle.attempt));
  const at = (handle: Handle, name: string) => join(folder(handle), name);
  const claimOf = (handle: Handle) => readClaim(at(handle, 'claim'));
  const isClaimed = (handle: Handle) => existsSync(at(handle, 'claim'));

  async function signal(handle: Handle, name: 'TERM' | 'KILL'): Promise<void> {
    const claim = await claimOf(handle);
    // A shim that has written the end may have another attempt by now, which we alone would give it: not before the next line.
    if (!claim || existsSync(at(handle, 'exit')) || !isAlive(claim)) return;
    process.kill(claim.pid, name === 'TERM' ? 'SIGTERM' : 'SIGUSR2');
  }

  /**
   * An ended attempt has an exit; one whose shim is gone without it is lost. A shim that writes is there, so whether it is gone
   * is looked at when nothing has changed for a second; and its claim, which never changes, is read once.
   */
  function endsOf(handle: Handle, changes: Changes) {
    let claim: Claim | undefined;
    let isQuiet = false;
    return {
      async end(): Promise<Exit | 'lost' | undefined> {
        const exit = at(handle, 'exit');
        if (!existsSync(exit)) {
          if (!isQuiet) return undefined;
          claim ??= await claimOf(handle);
          if (claim && isAlive(claim)) return undefined;
        }
        // Read after the look at the process, so that an exit written in between is seen.
        return (await readWhole<Exit>(exit)) ?? 'lost';
      },
      async next(): Promise<void> {
        isQuiet = !(await changes.next());
      },
    };
  }

  /** Nothing of it is synced, so it is of no use after another start of the machine. */
  async function wasPreparedHere(handle: Handle): Promise<boolean> {
    const spec = await readWhole<ShimSpec>(at(handle, 'spec.json')).catch(() => undefined);
    return spec !== undefined && spec.bootId === bootIdNow();
  }

  /** Ends whatever runs of the attempt, and gives back what it holds. @throws Error when it does not die. */
  async function end(attempt: string): Promise<void> {
    const late = delay(END_MS, 'late' as const, { ref: false });
    for (const deadline = Date.now() + END_MS; ; await delay(20)) {
      const claim = await claimOf({ attempt });
      if (!claim || !isAlive(claim)) break;
      if (existsSync(at({ attempt }, 'exit'))) {
        // It still has to give the network and the group back. One of an earlier server ends by itself.
        if ((await Promise.race([shims.released(attempt), late])) !== 'late') break;
      }
      if (Date.now() > deadline) throw new Error('its shim does not end');
      await signal({ attempt }, 'KILL');
    }
    const place = join(dir, attempt);
    shims.discard(attempt);
    await confinement.end(place);
    // A shim writes the end when nothing of the attempt runs any more. To look at all processes takes 7 ms of this thread.
    const isOver = confinement.sandbox !== 'none' && existsSync(at({ attempt }, 'exit'));
    if (!isOver) await killStrays(attempt);
    // It may not have been written: the disk was full.
    const cgroup = (await readReservation(place)).cgroup ?? holdings.get(attempt)?.cgroup;
    if (cgroup) await removeGroup(cgroup);
    await confinement.release(place);
    cpuShares.forget(attempt);
    // Another kind of runner may have an attempt that is unknown here.
    if (holdings.delete(attempt)) gpus.release(attempt);
  }

  async function remove(handle: Handle): Promise<void> {
    await end(String(handle.attempt));
    await removal.discard(folder(handle));
  }

  return {
    name: 'process',
    machines: [{ id: LOCAL, ...thisMachine(), gpus: gpus.models, withImage: false }],
    ...(confinement.warnings.length > 0 && { warning: confinement.warnings.join(' ') }),

    async prepare(spec, abort) {
      if (spec.image)
        throw new Unstartable(
          `The container image "${spec.image}" cannot be run: no server here has a container engine. The operator can ` +
            'install Docker or Podman, or set DOCKER_HOST to an engine, and LOAM_RUNNER must not be "process"',
        );
      const { id } = spec;
      if (existsSync(join(dir, id))) await remove({ attempt: id });
      const limits = { ...limitsOf(spec.hardware), ...options.limits };
      const taken = gpus.take(id, spec.hardware);
      const holding: Reservation = {
        gpus: taken.map(({ index }) => index),
        cgroup: groups?.of(id) ?? null,
      };
      holdings.set(id, holding);
      const handle: Handle = { attempt: id, gpus: holding.gpus.join(','), cpus: limits.cpus };
      const place = folder(handle);
      await confinement.place(place);
      const reserved = await confinement.reserve(place);
      writeReservation(place, holding);
      // It takes longer than most checkouts.
      if (reserved.internet) shims.connect(id, reserved.internet.spec);
      const work = join(place, 'work');
      const steps = [
        spec.checkout ? spec.checkout(work, abort) : mkdir(work),
        confinement.open(place, reserved),
      ];
      // All have ended when one has failed: what was made is removed then.
      for (const step of await Promise.allSettled<unknown>(steps))
        if (step.status === 'rejected') throw step.reason;
      abort.throwIfAborted();
      writeFileSync(join(place, 'reserve'), reserve, { mode: 0o600 });
      writeFileSync(join(place, 'log'), '', { mode: 0o600 });
      await confinement.give(place, reserved);
      const access = gpuAccess(taken);
      const job = {
        attempt: id,
        command: spec.command,
        env: { ...spec.env, ...access.env },
        devices: access.devices,
      };
      const shimSpec: ShimSpec = {
        command: await confinement.compose(place, job, reserved),
        attempt: id,
        bootId: bootIdNow(),
        orders: limitsOfProcesses(limits, controllers),
        timeoutMs: spec.timeoutMs,
        graceMs,
        cgroup: holding.cgroup,
        groupPlan: holding.cgroup && groups ? groups.plan(holding.cgroup, limits) : [],
        memory: { bytes: limits.memoryBytes, watched: !controllers.includes('memory') },
        disk: {
          dirs: Object.keys(MOUNTS).map((name) => join(place, name)),
          floorBytes: options.diskFloor ?? 0,
          diskBytes: limits.diskBytes,
          files: limits.files,
        },
        log: spec.log,
      };
      writeFileSync(join(place, 'spec.json'), JSON.stringify(shimSpec), { mode: 0o600 });
      return handle;
    },

    async start(handle, mayBegin) {
      if (isClaimed(handle)) return true;
      if (mayBegin && !(await mayBegin())) return false;
      const exitCode = await shims.launch(String(handle.attempt));
      if (exitCode === DISK_FULL_EXIT)
        throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
      if (!isClaimed(handle)) throw new Error(`the shim of ${handle.attempt} did not start`);
      return true;
    },

    async attach(handle) {
      if (isClaimed(handle)) return 'started';
      if (!existsSync(at(handle, 'spec.json'))) return 'gone';
      return (await wasPreparedHere(handle)) ? 'prepared' : 'unprepared';
    },

    async *logs(handle, cursor, abort) {
      using changes = changesOf(folder(handle), abort, ['log', 'exit']);
      // Read at once, as in `folder.ts`: it was just written. By Node's threads it took a third of a millisecond of a short job.
      const file = openSync(at(handle, 'log'), 'r');
      using _ = { [Symbol.dispose]: () => closeSync(file) };
      const buffer = Buffer.allocUnsafe(READ_BYTES);
      let offset = Number(cursor?.offset ?? 0);
      const ends = endsOf(handle, changes);
      while (!abort.aborted) {
        // Whether it is over is asked before the read: what comes after it is then in this read.
        const over = await ends.end();
        const bytesRead = readSync(file, buffer, 0, READ_BYTES, offset);
        const end = buffer.subarray(0, bytesRead).lastIndexOf(10) + 1;
        offset += end;
        if (end > 0) yield parseLog(buffer.subarray(0, end), { offset });
        else if (over) return;
        else await ends.next();
      }
    },

    signal,

    async wait(handle, abort) {
      using changes = changesOf(folder(handle), abort, ['exit']);
      const ends = endsOf(handle, changes);
      for (;;) {
        const end = await ends.end();
        if (end === 'lost') {
          await confinement.end(folder(handle));
          await killStrays(String(handle.attempt));
          const { cgroup } = await readReservation(folder(handle));
          if (cgroup) await killGroup(cgroup);
        }
        if (end) return outcomeOf(end);
        await ends.next();
        abort.throwIfAborted();
      }
    },

    async stats(handle) {
      const started = await readWhole<Started>(at(handle, 'started'));
      if (!started) return null;
      const id = String(handle.attempt);
      const { cgroup = null } = holdings.get(id) ?? {};
      const used = (cgroup && usageOfGroup(cgroup)) ?? usageOfTree(started.pid);
      if (!used) return null;
      const sample = { at: Date.now(), cpuSeconds: used.cpuSeconds };
      const disk = await readWhole<DiskUse>(at(handle, 'disk'));
      return {
        cpuPercent: cpuShares.percentOf(id, sample, started.startedAt, Number(handle.cpus ?? 1)),
        gpuPercent: await gpus.percentOf(id),
        memoryBytes: used.memoryBytes,
        diskBytes: disk?.bytes ?? 0,
      } satisfies Usage;
    },

    async artifacts(handle, path) {
      const found = await locate(folder(handle), path);
      return found === null ? null : tarOf(found);
    },

    remove,

    async sweep(keep) {
      const unknown = (await readdir(dir)).filter(
        (name) => !name.startsWith('.') && !keep.has(name),
      );
      const ends = await Promise.allSettled([
        ...unknown.map((attempt) => remove({ attempt })),
        ...(groups?.lost(keep, holdings.values()) ?? []).map(removeGroup),
      ]);
      groups?.removeForgotten();
      const errors = ends.flatMap((e) => (e.status === 'rejected' ? [e.reason] : []));
      if (errors.length > 0)
        throw new AggregateError(errors, `${errors.length} attempts cannot be removed`);
    },

    async [Symbol.asyncDispose]() {
      await Promise.all([removal[Symbol.asyncDispose](), shims[Symbol.asyncDispose]()]);
    },
  };
}

function outcomeOf(end: Exit | 'lost'): Outcome {
  if (end === 'lost') return { kind: 'lost' };
  if (end.unstartable) {
    const reason = end.reason ?? 'The sandbox could not be set up; see the lines above';
    return { kind: 'unstartable', reason };
  }
  return {
    kind: 'exited',
    exitCode: end.exitCode,
    timedOut: end.timedOut,
    ...(end.reason !== undefined && { note: end.reason }),
    ...(end.outOfMemory && { outOfMemory: true }),
    startedAt: new Date(end.startedAt),
    endedAt: new Date(end.endedAt),
  };
}

/*
 * How the processes of an attempt are held to its limits.
 *
 * Control groups hold the whole job to them. Where there are none, the kernel's limits for single processes are what is
 * left, and the shim looks at the sum of their memory every second (`memory.ts`).
 */

/** Of one process. Node, PostgreSQL and the like ask for 65,536 at most. */
const OPEN_FILES = 65_536;

/**
 * Without a control group a process may have this much more memory that it can write to than its job may use,
 * because it asks for more than it uses: Node wants 512 MiB for code, each thread 8 MiB for its stack. The limit
 * is for what grows between two looks at the sum. Not of its address space (`-v`): Go, Java and CUDA reserve a
 * hundred times of what they use.
 */
const UNUSED_BYTES = 4 * 2 ** 30;

/**
 * Orders for the shell that becomes a job (`first-process.ts`), which bound each of its processes: it has to do that itself
 * before it starts anything.
 */
function limitsOfProcesses(limits: Limits, controllers: readonly Controller[]): string[] {
  const script = [
    // A core file is the job's memory, secrets included, written wherever the machine's administrator says.
    'ulimit -c 0',
    // An ordinary user cannot raise it, and need not.
    `ulimit -n ${OPEN_FILES} 2>/dev/null`,
  ];
  if (!controllers.includes('pids')) {
    // The shells disagree about its letter. The kernel counts all processes of the user, ours included.
    const n = limits.processes;
    script.push(`ulimit -u ${n} 2>/dev/null || ulimit -p ${n} 2>/dev/null`);
  }
  if (!controllers.includes('memory')) {
    const kib = Math.floor((limits.memoryBytes + UNUSED_BYTES) / 1024);
    script.push(`ulimit -d ${kib} 2>/dev/null`);
  }
  return script;
}

/** For the operator, at the start: which limits hold. */
function describeLimits(cgroups: Cgroups | { missing: string }): string {
  if ('missing' in cgroups)
    return (
      'The memory of jobs is watched every second, and each of their processes has limits of its own; ' +
      `their CPU is not limited: ${cgroups.missing}`
    );
  const { version, controllers } = cgroups;
  return `Jobs are limited by control groups (version ${version}: ${controllers.join(', ')})`;
}
