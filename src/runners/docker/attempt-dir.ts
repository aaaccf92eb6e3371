/**
 * The folder of an attempt on this machine. Parts of it are mounted into the container. Other files hold the facts about the
 * attempt that a restarted server needs and the engine does not store.
 *
 *   attempt.json      the container's settings, without command, environment and secrets; written before it is created
 *   gate/             the start barrier, see `start-barrier.ts`
 *   record/           files of the recorder, see `recorder.ts`
 *   work, tmp, home   the job's folders, accessible to its user alone; on a remote engine they exist in the container only
 *   files             provided to the job, see `../supervisor/provided-files.ts`; not used on a remote engine
 *   stop.json         why and when the server stopped the attempt; written before the signal is sent
 *   unstartable.json  why the container can never start
 */
import { chmod, mkdir, open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { type AttemptSpec, MOUNTS } from '../runner.ts';
import { changeOwner } from '../supervisor/ownership.ts';
import { writeProvidedFiles } from '../supervisor/provided-files.ts';
import { createBarrierDir } from './start-barrier.ts';

/** User and group of the job's processes and files. */
export type Owner = { uid: number; gid: number };

export type AttemptRecord = {
  machine: string;
  /** The container runs on another machine, so the job's folders are in the container. */
  remote?: boolean;
  owner: Owner;
  timeoutMs: number;
  log: { bytes: number; lines: number };
  /** The limits in force, which may be lower than those that the job requested. */
  cpus: number;
  memoryBytes: number;
  diskBytes: number;
  files: number;
  gpus: number[];
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

/** File name without `.json` → contents. */
type Records = { attempt: AttemptRecord; stop: StopRequest; unstartable: StartRefusal };

/** Creates the folder, which only this server may enter. */
export async function createAttemptDir(attemptDir: string): Promise<void> {
  await mkdir(attemptDir, { mode: 0o700 });
  await createBarrierDir(attemptDir);
  for (const name of ['tmp', 'home']) await mkdir(join(attemptDir, name), { mode: 0o700 });
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

/** @returns undefined when the record does not exist */
export async function readRecord<K extends keyof Records>(
  attemptDir: string,
  kind: K,
): Promise<Records[K] | undefined> {
  try {
    return JSON.parse(await readFile(join(attemptDir, `${kind}.json`), 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
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
