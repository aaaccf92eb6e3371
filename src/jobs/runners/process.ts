/**
 * Jobs as processes of this machine, in a bubblewrap sandbox where that works, each under a shim of its own
 * that goes on when the server stops, dies or is replaced (`process/shim.ts` tells the files it writes).
 *
 * It confines what a job can see and touch, not how much it uses: CPU and memory are shared by the kernel.
 * The shim owns the timeout and the grace period, so both hold while no server runs.
 */
import { execFile, spawn } from 'node:child_process';
import { access, mkdir, open, readdir, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import {
  type AttemptSpec,
  GRACE_MS,
  type Handle,
  type LogBatch,
  type LogCursor,
  type Outcome,
  type Runner,
  type RunnerLine,
  UNCOUNTED,
  Unstartable,
  type Usage,
} from '../runner.ts';
import { changesOf, isAlive, killStrays, readWhole, removeTree } from './process/folder.ts';
import { findSandbox, MOUNTS, sandboxOptions } from './process/sandbox.ts';
import type { Claim, Exit, ShimSpec, Started } from './process/shim.ts';
import { locate, tarOf } from './process/tar.ts';
import { diskUsage, listGpus, usageOfTree } from './process/usage.ts';

const SHIM = join(import.meta.dirname, 'process/shim.ts');
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
/** Compiled shims: taking the types out of its source again took 75 of the 110 ms that a start waited for it. */
const CACHE = '.compiled';
/** A shim that has not said within this that it runs never will. */
const START_MS = 20_000;
/** Of the log at once: lines are held as objects meanwhile, some ten times their size. */
const READ_BYTES = 256 * 1024;
const DISK_EVERY_MS = 30_000;

export type ProcessRunnerOptions = {
  /** Where the folders of attempts lie. */
  dir: string;
  /** Between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** `off`: as on a machine without bubblewrap. */
  sandbox?: 'auto' | 'off';
};

export async function openProcessRunner(options: ProcessRunnerOptions): Promise<Runner> {
  const { dir, graceMs = GRACE_MS, sandbox: wanted = 'auto' } = options;
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const sandbox = wanted === 'auto' ? await findSandbox() : { missing: 'it is switched off' };
  const gpus = await listGpus();
  const offers: Record<string, number> = { none: UNCOUNTED };
  for (const { model } of gpus) offers[model] = (offers[model] ?? 0) + 1;
  const samples = new Map<string, Sample>();
  /** GPUs by attempt, as nvidia-smi numbers them. */
  const heldGpus = new Map<string, number[]>();

  const folder = (handle: Handle) => join(dir, String(handle.attempt));
  const at = (handle: Handle, name: string) => join(folder(handle), name);
  const claimOf = (handle: Handle) => readWhole<Claim>(at(handle, 'claim'));

  async function signal(handle: Handle, name: 'TERM' | 'KILL'): Promise<void> {
    const claim = await claimOf(handle);
    if (claim && isAlive(claim)) process.kill(claim.pid, name === 'TERM' ? 'SIGTERM' : 'SIGUSR2');
  }

  /** An ended attempt has an exit; one whose shim is gone without it is lost. */
  async function endOf(handle: Handle): Promise<Exit | 'lost' | undefined> {
    const claim = await claimOf(handle);
    const alive = claim && isAlive(claim);
    // Read after the look at the process, so that an exit written in between is seen.
    return (await readWhole<Exit>(at(handle, 'exit'))) ?? (alive ? undefined : 'lost');
  }

  async function remove(handle: Handle): Promise<void> {
    const deadline = Date.now() + 10_000;
    for (;;) {
      const claim = await claimOf(handle);
      if (!claim || !isAlive(claim)) break;
      if (Date.now() > deadline) throw new Error(`attempt ${handle.attempt} does not end`);
      await signal(handle, 'KILL');
      await delay(20);
    }
    await killStrays(String(handle.attempt));
    samples.delete(String(handle.attempt));
    heldGpus.delete(String(handle.attempt));
    await removeTree(folder(handle));
  }

  function takeGpus(attempt: string, model: string, count: number): number[] {
    const held = [...heldGpus].flatMap(([id, indices]) => (id === attempt ? [] : indices));
    const free = gpus.filter((gpu) => gpu.model === model && !held.includes(gpu.index));
    if (free.length < count) throw new Error(`${count} × ${model} are not free`);
    const taken = free.slice(0, count).map(({ index }) => index);
    heldGpus.set(attempt, taken);
    return taken;
  }

  return {
    name: 'process',
    offers,
    ...('missing' in sandbox && {
      warning: `Jobs run UNCONFINED, with the rights of this server: ${sandbox.missing}`,
    }),

    async prepare(spec, abort) {
      if (spec.image)
        throw new Unstartable(
          `This server runs jobs as processes and cannot run the container image "${spec.image}"`,
        );
      const { gpu, gpuCount, cpu } = spec.hardware;
      const devices = gpu === 'none' ? [] : takeGpus(spec.id, gpu, gpuCount);
      const handle: Handle = {
        attempt: spec.id,
        gpus: devices.join(','),
        cpus: Math.min(cpu, availableParallelism()),
      };
      const place = folder(handle);
      await removeTree(place);
      await mkdir(place, { mode: 0o700 });
      for (const name of ['tmp', 'home', 'etc']) await mkdir(join(place, name));
      await promisify(execFile)('mkfifo', ['-m', '600', join(place, 'out'), join(place, 'err')]);
      await writeFile(join(place, 'log'), '', { mode: 0o600 });
      if (spec.checkout) await spec.checkout(join(place, 'work'), abort);
      else await mkdir(join(place, 'work'));
      abort.throwIfAborted();
      const env = { CUDA_VISIBLE_DEVICES: String(handle.gpus), ...spec.env };
      const bwrap = 'bwrap' in sandbox ? sandbox.bwrap : null;
      const shimSpec = composeSpec({ ...spec, env }, place, bwrap, graceMs);
      await writeFile(join(place, 'spec.json'), JSON.stringify(shimSpec), {
        mode: 0o600,
        flush: true,
      });
      return handle;
    },

    async start(handle) {
      if (await claimOf(handle)) return;
      await launchShim(folder(handle), join(dir, CACHE));
      if (!(await claimOf(handle))) throw new Error(`the shim of ${handle.attempt} did not start`);
    },

    async attach(handle) {
      if (handle.gpus)
        heldGpus.set(String(handle.attempt), String(handle.gpus).split(',').map(Number));
      if (await claimOf(handle)) return 'started';
      return (await exists(at(handle, 'spec.json'))) ? 'prepared' : 'gone';
    },

    async *logs(handle, cursor, abort) {
      using changes = changesOf(folder(handle), abort);
      await using file = await open(at(handle, 'log'), 'r');
      const buffer = Buffer.allocUnsafe(READ_BYTES);
      let offset = Number(cursor?.offset ?? 0);
      while (!abort.aborted) {
        // Whether it is over is asked before the read: what comes after it is then in this read.
        const over = await endOf(handle);
        const { bytesRead } = await file.read(buffer, 0, READ_BYTES, offset);
        const end = buffer.subarray(0, bytesRead).lastIndexOf(10) + 1;
        offset += end;
        if (end > 0) yield parseLog(buffer.subarray(0, end), { offset });
        else if (over) return;
        else await changes.next();
      }
    },

    signal,

    async wait(handle, abort) {
      using changes = changesOf(folder(handle), abort);
      for (;;) {
        const end = await endOf(handle);
        if (end === 'lost') await killStrays(String(handle.attempt));
        if (end) return outcomeOf(end);
        await changes.next();
        abort.throwIfAborted();
      }
    },

    async stats(handle) {
      const started = await readWhole<Started>(at(handle, 'started'));
      const tree = started && (await usageOfTree(started.pid));
      if (!tree) return null;
      const id = String(handle.attempt);
      const before = samples.get(id);
      const now = Date.now();
      const sample: Sample = { at: now, cpuSeconds: tree.cpuSeconds, diskAt: now, diskBytes: 0 };
      if (before && now - before.diskAt < DISK_EVERY_MS) {
        sample.diskAt = before.diskAt;
        sample.diskBytes = before.diskBytes;
      } else {
        const dirs = Object.keys(MOUNTS).map((name) => at(handle, name));
        sample.diskBytes = await diskUsage(dirs);
      }
      samples.set(id, sample);
      const since = before ?? { at: started.startedAt, cpuSeconds: 0 };
      const seconds = Math.max(0.001, (now - since.at) / 1000);
      return {
        cpuPercent:
          ((tree.cpuSeconds - since.cpuSeconds) / seconds / Number(handle.cpus ?? 1)) * 100,
        gpuPercent: handle.gpus ? await gpuPercent(heldGpus.get(id) ?? []) : 0,
        memoryBytes: tree.memoryBytes,
        diskBytes: sample.diskBytes,
      } satisfies Usage;
    },

    async artifacts(handle, path) {
      const found = await locate(folder(handle), path);
      return found === null ? null : tarOf(found);
    },

    remove,

    async sweep(keep) {
      for (const name of await readdir(dir)) {
        if (name !== CACHE && !keep.has(name)) await remove({ attempt: name });
      }
    },
  };
}

type Sample = { at: number; cpuSeconds: number; diskAt: number; diskBytes: number };

function composeSpec(
  spec: AttemptSpec,
  place: string,
  bwrap: string | null,
  graceMs: number,
): ShimSpec {
  const { id, command, timeoutMs, hardware } = spec;
  const work = join(place, 'work');
  const base = { PATH, LANG: 'C.UTF-8', USER: 'job' };
  const inside = { ...base, HOME: MOUNTS.home, TMPDIR: MOUNTS.tmp, ...spec.env };
  const outside = { ...base, HOME: join(place, 'home'), TMPDIR: join(place, 'tmp'), ...spec.env };
  const shell = ['/bin/sh', '-c', command];
  return {
    attempt: id,
    argv: bwrap ? [bwrap, ...shell] : shell,
    env: bwrap ? {} : outside,
    cwd: bwrap ? '/' : work,
    sandbox: bwrap ? sandboxOptions(place, inside, hardware.gpu !== 'none') : null,
    timeoutMs,
    graceMs,
  };
}

/** Waits until the shim says that it has started the work. It is in a session of its own and stays. */
async function launchShim(place: string, cache: string): Promise<void> {
  await using errors = await open(join(place, 'shim.err'), 'a', 0o600);
  const shim = spawn(process.execPath, [SHIM, place], {
    cwd: '/',
    env: { PATH, NODE_COMPILE_CACHE: cache },
    detached: true,
    stdio: ['ignore', 'pipe', errors.fd],
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, START_MS);
  shim.stdout?.once('data', () => resolve());
  shim.once('exit', () => resolve());
  shim.once('error', () => resolve());
  await promise;
  clearTimeout(timer);
  shim.stdout?.destroy();
  shim.unref();
}

function outcomeOf(end: Exit | 'lost'): Outcome {
  if (end === 'lost') return { kind: 'lost' };
  if (end.unstartable)
    return { kind: 'unstartable', reason: 'The sandbox could not be set up; see the lines above' };
  return {
    kind: 'exited',
    exitCode: end.exitCode,
    timedOut: end.timedOut,
    startedAt: new Date(end.startedAt),
    endedAt: new Date(end.endedAt),
  };
}

/** Whole lines of the shim's log. Bytes that are no UTF-8 become U+FFFD. */
function parseLog(bytes: Buffer, cursor: LogCursor): LogBatch {
  const lines: RunnerLine[] = [];
  for (const frame of bytes.toString('utf8').slice(0, -1).split('\n')) {
    const stamp = frame.indexOf(' ');
    const kind = frame[stamp + 1] ?? 'o';
    const isCut = kind < 'a';
    const text = frame.slice(stamp + 3).replace(/\r$/, '');
    lines.push({
      timestamp: new Date(Number(frame.slice(0, stamp))),
      stream: kind.toLowerCase() === 'e' ? 'stderr' : 'stdout',
      // The cut may have gone through a character.
      message: isCut ? `${text.replace(/\uFFFD$/, '')} [cut: the line is over 64 KiB]` : text,
    });
  }
  return { lines, cursor };
}

async function gpuPercent(indices: readonly number[]): Promise<number> {
  const gpus = (await listGpus()).filter(({ index }) => indices.includes(index));
  return gpus.reduce((sum, { percent }) => sum + percent, 0) / Math.max(1, gpus.length);
}

async function exists(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    () => false,
  );
}
