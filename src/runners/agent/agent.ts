/**
 * The agent: a program that runs beside the command on a node of a cluster. It supervises the command like the shim of a
 * process, and sends what it records to the worker over HTTP. What it could not send yet stays in its folder on the node, and
 * the job continues while no server answers, for the time of the lease at most.
 *
 * A small script that the engine starts on the node loads this program from the worker (`/agents/<attempt>/agent.mjs`, one file
 * built by `../../programs/build.ts`), so its version is always that of the worker.
 */
import { execFile } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ImageProgram } from '../../base/config/slurm.ts';
import { MOUNTS } from '../runner.ts';
import type { DiskUse } from '../supervisor/disk.ts';
import { readJsonFile } from '../supervisor/folder.ts';
import { hasResultFiles } from '../supervisor/result-files.ts';
import { recordFailedStart, type Supervision, supervise } from '../supervisor/supervise.ts';
import { locateOutput, openTar } from '../supervisor/tar.ts';
import { AgentClient, Refused } from './client.ts';
import {
  type AgentClaim,
  type AgentPermission,
  type AgentSpec,
  LEASE_MS,
  NO_SERVER_EXIT,
} from './protocol.ts';
import { Sender } from './sender.ts';
import {
  createContainerLauncher,
  createJobFolders,
  createProcessLauncher,
  type Launcher,
} from './work.ts';

export type AgentOptions = {
  /** URL of the worker with `AGENTS_PATH`, without a trailing slash. */
  url: string;
  attempt: string;
  token: string;
  /** The name of this machine, for people. */
  node: string;
  /** The agent's own folder. */
  dir: string;
  /** Contains the folders `work`, `tmp` and `home` of the job. */
  jobDir: string;
  /** Set in a pod: the folder that the container of the command shares. */
  sharedDir?: string;
  /** How this node runs images; unset: it cannot. In a pod the engine runs them. */
  images?: ImageProgram;
  /** Called when this agent has the attempt. */
  onClaimed?(): void;
};

/** Size of the file that is deleted when the disk is full, to have room for the last lines and the exit record. */
const RESERVE_BYTES = 64 * 1024;

/**
 * Runs the attempt to its end.
 * @returns the exit code of the job, so that the lists of the engine show it
 */
export async function runAgent(options: AgentOptions): Promise<number> {
  const { url, attempt, token, node, dir, jobDir, sharedDir } = options;
  const nonce = randomUUID();
  const client = new AgentClient({ url: `${url}/${attempt}`, token, nonce, leaseMs: LEASE_MS });
  const launcher =
    sharedDir === undefined
      ? createProcessLauncher({ attempt, dir, jobDir, images: options.images })
      : createContainerLauncher(sharedDir, jobDir);
  const signals = receiveSignals();
  try {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    const claim: AgentClaim = { nonce, node };
    const request = { method: 'POST', json: claim, signal: signals.beforeStart } as const;
    const spec = (await (await client.request('claim', request)).json()) as AgentSpec;
    client.leaseMs = spec.leaseMs;
    options.onClaimed?.();
    return await runClaimed(options, { client, launcher, signals, spec });
  } catch (error) {
    if (!(error instanceof Refused) && !signals.beforeStart.aborted) throw error;
    console.error(`The attempt does not run here: ${(error as Error).message}`);
    return NO_SERVER_EXIT;
  } finally {
    // In a pod it is a volume, which ends with the pod.
    if (sharedDir === undefined) await removeTree(dir).catch(() => {});
  }
}

type Signals = ReturnType<typeof receiveSignals>;

/** Before the start of the command a signal ends the agent; then it is passed to the command. */
function receiveSignals() {
  const beforeStart = new AbortController();
  let supervision: Supervision | undefined;
  let early: 'TERM' | 'KILL' | undefined;
  const stop = (how: 'TERM' | 'KILL') => {
    if (early !== 'KILL') early = how;
    if (supervision) supervision.stop(how);
    else beforeStart.abort(new Refused(`the attempt was ended by SIG${how} before its start`));
  };
  let interruptedAt: number | undefined;
  process.on('SIGTERM', () => {
    interruptedAt ??= Date.now();
    stop('TERM');
  });
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  // For example when the disk is full, or the job has deleted the folder of the agent.
  process.on('uncaughtException', (error) => {
    console.error(error);
    if (!supervision?.fail) process.exit(1);
    supervision.fail(error);
  });
  return {
    beforeStart: beforeStart.signal,
    stop,
    early: () => early,
    interruptedAt: () => interruptedAt,
    set(started: Supervision) {
      supervision = started;
    },
  };
}

type Claimed = { client: AgentClient; launcher: Launcher; signals: Signals; spec: AgentSpec };

async function runClaimed(
  { dir, jobDir, attempt, sharedDir }: AgentOptions,
  { client, launcher, signals, spec }: Claimed,
): Promise<number> {
  const beforeStart = signals.beforeStart;
  const ready = launcher.prepare();
  createJobFolders(jobDir);
  writeFileSync(join(dir, 'log'), '', { mode: 0o600 });
  // Random bytes, because a disk that compresses would keep no space for zeros.
  writeFileSync(join(dir, 'reserve'), randomBytes(RESERVE_BYTES), { mode: 0o600 });
  const fill = async () => {
    await checkOut(client, spec, jobDir, beforeStart);
    return launcher.placeVolumes(spec);
  };
  const filled = await fill().catch((error) => {
    if (error instanceof Refused || beforeStart.aborted) throw error;
    return error as Error;
  });
  await settleOrAbort(ready, beforeStart);
  const begun = await client.request('begin', { method: 'POST', signal: beforeStart });
  const { files: provided = spec.files ?? {} } = (await begun.json()) as AgentPermission;
  launcher.writeFiles(provided);
  const startedAt = Date.now();
  const { memoryBytes, diskBytes, files, ...work } = spec.work;
  const workSpec = {
    ...work,
    memory: { bytes: memoryBytes, watched: !launcher.isMemoryEnforced },
    disk: {
      dirs: Object.keys(MOUNTS).map((name) => join(jobDir, name)),
      floorBytes: 0,
      diskBytes,
      files,
    },
  };
  const sender = new Sender({
    client,
    dir,
    async measureUsage() {
      const used = await launcher.measureUsage();
      const disk = await readJsonFile<DiskUse>(join(dir, 'disk')).catch(() => null);
      return used && { ...used, at: Date.now(), diskBytes: disk?.bytes ?? 0 };
    },
    async openOutput(path, options) {
      const found = await locateOutput(jobDir, path);
      if (!found) return null;
      // The folders in a pod are volumes, which have files of the job only, whatever user wrote them.
      const owner = sharedDir === undefined ? {} : { owner: null };
      return openTar({ ...found, ...owner }, options);
    },
    stop: (how) => signals.stop(how),
    exec: (spec) => launcher.exec(spec),
    endCommand: () => launcher.endCommand(),
    writeFiles: (files) => launcher.writeFiles(files),
    interruptedAt: signals.interruptedAt,
  });
  const fail = async (error: Error) =>
    sender.setExit(await recordFailedStart(dir, startedAt, error));
  const supervising =
    filled instanceof Error
      ? fail(filled)
      : supervise(dir, workSpec, startedAt, {
          fifoDir: launcher.fifoDir,
          start: (outputs) =>
            launcher.start({ ...spec, files: provided, folders: filled }, outputs),
          onStarted: (supervision) => signals.set(supervision),
          onUp: (started) => sender.setStarted(started),
          onRecorded: (exit) => sender.setExit({ ...exit, hasResults: hasResultFiles(jobDir) }),
          getEarlySignal: signals.early,
          removeTree,
        }).catch(fail);
  // Both, because the agent must not exit while it is still killing the command.
  const [sent, supervised] = await Promise.allSettled([sender.run(), supervising]);
  if (supervised.status === 'rejected') throw supervised.reason;
  if (sent.status === 'rejected') throw sent.reason;
  const exitCode = sent.value;
  console.error(`The attempt ${attempt} has ended with ${exitCode ?? 'an unknown exit code'}.`);
  return exitCode ?? 0;
}

/** @throws the reason of the signal when it aborts first */
async function settleOrAbort(settled: Promise<void>, signal: AbortSignal): Promise<void> {
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  await Promise.race([settled, aborted.promise]).finally(() =>
    signal.removeEventListener('abort', abort),
  );
}

/** The job may have removed permissions of its own folders. A folder that is a volume of the pod is emptied only. */
async function removeTree(folder: string): Promise<void> {
  const script = 'chmod -R u+rwX -- "$1"; exec rm -rf -- "$1"';
  await promisify(execFile)('/bin/sh', ['-c', script, 'sh', folder]);
}

/** Fills the folders of the job. @throws Error with a reason for the job's user */
async function checkOut(
  client: AgentClient,
  spec: AgentSpec,
  jobDir: string,
  signal: AbortSignal,
): Promise<void> {
  const folders = { work: join(jobDir, 'work'), home: join(jobDir, 'home') };
  for (let tries = 1; ; tries++) {
    try {
      return await client.checkOut(folders, spec, signal);
    } catch (error) {
      if (error instanceof Refused || signal.aborted || tries === CHECKOUT_TRIES) throw error;
      for (const folder of Object.values(folders))
        for (const name of readdirSync(folder)) await rm(join(folder, name), { recursive: true });
    }
  }
}

const CHECKOUT_TRIES = 3;
