/**
 * The folder of an attempt on this machine. Parts of it are mounted into the container. Other files hold the facts about the
 * attempt that a restarted server needs and the engine does not store.
 *
 *   attempt.json      the container's settings, without command, environment and secrets; written before it is created
 *   opening.json      when the command began
 *   shared            the scripts and the account of the job, and the FIFOs for its output; the job sees it as /.loam and cannot
 *                     change it
 *   sessions          a file for each command beside that of the job, see `exec.ts`
 *   work, tmp, home   the job's folders, accessible to its user alone; on a remote engine they exist in the container only
 *   files             provided to the job, see `../supervisor/provided-files.ts`; not used on a remote engine
 *   ending.json       why and when the shim began to end the command, for the shim that replaces it
 *   stop.json         why and when the server stopped the attempt; written before the signal is sent
 *   unstartable.json  why the container can never start
 */
import { execFile } from 'node:child_process';
import { chownSync, existsSync, renameSync, writeFileSync } from 'node:fs';
import { chmod, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { accountFiles } from '../account-files.ts';
import { SHARED } from '../container/shared-folder.ts';
import { type AttemptSpec, MOUNTS } from '../runner.ts';
import { changeOwner } from '../supervisor/ownership.ts';
import { writeProvidedFiles } from '../supervisor/provided-files.ts';
import { createResultsFolder } from '../supervisor/result-files.ts';
import type { Ending } from '../supervisor/supervise.ts';

/** User and group of the job's processes and files. */
export type Owner = { uid: number; gid: number };

export type AttemptRecord = {
  machine: string;
  /** The container runs on another machine, so the job's folders are in the container. */
  remote?: boolean;
  owner: Owner;
  timeoutMs: number;
  /** As of `AttemptSpec`. */
  leaseMs?: number | undefined;
  /** Time between SIGTERM and SIGKILL. */
  graceMs: number;
  log: { bytes: number; lines: number };
  /** The limits in force, which may be lower than those that the job requested. */
  cpus: number;
  memoryBytes: number;
  diskBytes: number;
  files: number;
  gpus: number[];
  /** Their model; unset without a GPU, and in files of earlier versions. */
  gpu?: string;
};

export type StopRequest = {
  /** `TERM`: SIGKILL follows after the grace period. `KILL`: SIGKILL at once. */
  how: 'TERM' | 'KILL';
  why: 'asked' | 'timeout' | 'disk';
  at: number;
  /** Added as the last line of the log. */
  note?: string;
};

export type StartRefusal = { reason: string };

export type Opening = {
  at: number;
  /** A shim supervises the command, which prints into the FIFOs. */
  hasShim: boolean;
};

/** File name without `.json` → contents. */
type Records = {
  attempt: AttemptRecord;
  ending: Ending;
  opening: Opening;
  stop: StopRequest;
  unstartable: StartRefusal;
};

/** Creates the folder, which only this server may enter. */
export async function createAttemptDir(attemptDir: string): Promise<void> {
  await mkdir(attemptDir, { mode: 0o700 });
  await mkdir(sharedDir(attemptDir), { mode: 0o755 });
  for (const name of ['tmp', 'home']) await mkdir(join(attemptDir, name), { mode: 0o700 });
  createResultsFolder(join(attemptDir, 'tmp'));
}

/** The folder that the shell of the container shares with its supervisor (`../container/wrapper.ts`). */
export function sharedDir(attemptDir: string): string {
  return join(attemptDir, 'shared');
}

/** The scripts of a job (`../container/wrapper.ts`). */
export type JobScripts = { start: string; environment: string };

/**
 * Creates the scripts of the job, which begins when `start` is renamed, its account, and FIFOs that the job's user can open.
 */
export async function createSharedFiles(
  attemptDir: string,
  scripts: JobScripts,
  { uid, gid }: Owner,
): Promise<void> {
  const start = join(sharedDir(attemptDir), `${SHARED.start}.new`);
  const environment = join(sharedDir(attemptDir), SHARED.environment);
  const fifos = SHARED.outputs.map((name) => join(sharedDir(attemptDir), name));
  writeFileSync(start, scripts.start, { mode: 0o400 });
  writeFileSync(environment, scripts.environment, { mode: 0o400 });
  for (const [name, text] of Object.entries(accountFiles(uid, gid)))
    writeFileSync(join(sharedDir(attemptDir), name), text, { mode: 0o444 });
  await promisify(execFile)('mkfifo', ['-m', '600', ...fifos]);
  if (process.getuid?.() !== 0) return;
  for (const path of [start, environment, ...fifos]) chownSync(path, uid, gid);
}

/** Lets the command of a container begin that has no shim. Without FIFOs it has the output of the container. */
export async function beginWithoutShim(attemptDir: string): Promise<void> {
  if (hasCommandBegun(attemptDir)) return;
  const dir = sharedDir(attemptDir);
  for (const name of SHARED.outputs) await rm(join(dir, name), { force: true });
  beginCommand(attemptDir);
}

/** The shell of the container waits for the script. */
export function beginCommand(attemptDir: string): void {
  const start = join(sharedDir(attemptDir), SHARED.start);
  if (!hasCommandBegun(attemptDir)) renameSync(`${start}.new`, start);
}

export function hasCommandBegun(attemptDir: string): boolean {
  return existsSync(join(sharedDir(attemptDir), SHARED.start));
}

/** The folder of the provided files. */
export function filesDir(attemptDir: string): string {
  return join(attemptDir, 'files');
}

/** Writes the provided files for the job's user. Only root can change their user. */
export function writeFiles(attemptDir: string, files: AttemptSpec['files'], owner: Owner): void {
  writeProvidedFiles(filesDir(attemptDir), files, process.getuid?.() === 0 ? owner : null);
}

/** The job's folders: `from` on this machine, `to` in the container. */
export function listJobFolders(attemptDir: string): { from: string; to: string }[] {
  return Object.entries(MOUNTS).map(([name, to]) => ({ from: join(attemptDir, name), to }));
}

/** Makes the job's folders accessible to the owner alone. Only root can change their user. */
export async function setFolderOwner(attemptDir: string, owner: Owner): Promise<void> {
  const folders = listJobFolders(attemptDir).map(({ from }) => from);
  for (const folder of folders) await chmod(folder, 0o700);
  if (process.getuid?.() === 0) await changeOwner(owner, folders);
}

/** @returns undefined when the record does not exist, or a loss of power has emptied one that is not synced */
export async function readRecord<K extends keyof Records>(
  attemptDir: string,
  kind: K,
): Promise<Records[K] | undefined> {
  try {
    return JSON.parse(await readFile(join(attemptDir, `${kind}.json`), 'utf8'));
  } catch (error) {
    const isMissing = (error as NodeJS.ErrnoException).code === 'ENOENT';
    if (isMissing || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Replaces the record atomically. It is durable when this returns. */
export async function writeRecord<K extends keyof Records>(
  attemptDir: string,
  kind: K,
  record: Records[K],
): Promise<void> {
  const file = join(attemptDir, `${kind}.json`);
  await writeSynced(`${file}.new`, JSON.stringify(record));
  await rename(`${file}.new`, file);
  await using folder = await open(attemptDir, 'r');
  await folder.sync();
}

async function writeSynced(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'w', 0o600);
  await handle.writeFile(text);
  await handle.sync();
}
