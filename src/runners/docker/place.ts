/**
 * The folder of an attempt on this machine: what is mounted into its container, and what a server that is started again
 * has to know of it. The engine is asked for all else.
 *
 *   attempt.json      what it was made from, but for its command, environment and secrets; before the container is made
 *   gate/             see `gate.ts`
 *   work, tmp, home   of the job, and its user's alone; of a container on another machine they are in the container
 *   stop.json         that it was told to end, when and why; before it is told
 *   unstartable.json  why it cannot run
 */
import { chmod, mkdir, open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { MOUNTS } from '../runner.ts';
import { giveTo } from '../supervisor/small-trees.ts';
import { makeGate } from './start-barrier.ts';

/** User and group that the job's files belong to, and its processes. */
export type Owner = { uid: number; gid: number };

export type AttemptRecord = {
  machine: string;
  /** The job's folders are in the container, on another machine. */
  remote?: boolean;
  owner: Owner;
  timeoutMs: number;
  log: { bytes: number; lines: number };
  /** What it is held to, which may be less than was asked for. */
  cpus: number;
  memoryBytes: number;
  diskBytes: number;
  files: number;
  gpus: number[];
};

/** `KILL`: at once, else after the grace. */
export type Stop = {
  how: 'TERM' | 'KILL';
  why: 'asked' | 'timeout' | 'disk';
  at: number;
  /** The last line of the log. */
  note?: string;
};

export type Refused = { reason: string };

type Records = { attempt: AttemptRecord; stop: Stop; unstartable: Refused };

/** Its folders, which only the owner may enter. */
export async function makePlace(place: string): Promise<void> {
  await mkdir(place, { mode: 0o700 });
  await makeGate(place);
  for (const name of ['tmp', 'home']) await mkdir(join(place, name), { mode: 0o700 });
}

/** Where the job's folders lie here, by where it sees them. */
export function foldersOf(place: string): { from: string; to: string }[] {
  return Object.entries(MOUNTS).map(([name, to]) => ({ from: join(place, name), to }));
}

/** Makes the job's folders the owner's; they are ours unless we are root. */
export async function giveFoldersTo(place: string, owner: Owner): Promise<void> {
  const folders = foldersOf(place).map(({ from }) => from);
  for (const folder of folders) await chmod(folder, 0o700);
  if (process.getuid?.() === 0) await giveTo(owner, folders);
}

/** Undefined: there is none. */
export async function readRecord<K extends keyof Records>(
  place: string,
  kind: K,
): Promise<Records[K] | undefined> {
  try {
    return JSON.parse(await readFile(join(place, `${kind}.json`), 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** On the disk for good when this returns. */
export async function writeRecord<K extends keyof Records>(
  place: string,
  kind: K,
  record: Records[K],
): Promise<void> {
  const file = join(place, `${kind}.json`);
  await writeSynced(`${file}.new`, JSON.stringify(record));
  await rename(`${file}.new`, file);
  await using folder = await open(place, 'r');
  await folder.sync();
}

async function writeSynced(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'w', 0o600);
  await handle.writeFile(text);
  await handle.sync();
}
