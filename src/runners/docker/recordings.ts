/** What recorders keep of containers (`recorder.ts`), as the server sees it: starting them, reading what they wrote, ending them. */
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { mkdir, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { openShims } from '../process/shims.ts';
import type { LogBatch, LogCursor } from '../runner.ts';
import { type Claim, DISK_FULL_EXIT, writeWhole } from '../supervisor/claim.ts';
import { changesOf, isAlive, readClaim, readWhole } from '../supervisor/folder.ts';
import { parseLog } from '../supervisor/lines.ts';
import { identityOf, signalOne } from '../supervisor/proc.ts';
import { sharesKernel } from './facts.ts';
import type { ContainerState } from './outcome.ts';
import { RECORD, type RecordedExit, type Trouble } from './recorder.ts';
import { gateFolder, LAST_FIFO } from './start-barrier.ts';

const RECORDER = join(import.meta.dirname, 'recorder.ts');
/** Given up when the disk is full: room for the records of how it ended. */
const RESERVE_BYTES = 64 * 1024;
/** Of the log at once: lines are held as objects meanwhile, some ten times their size. */
const READ_BYTES = 256 * 1024;
/** A command begins some milliseconds after its gate was opened. */
const BEGUN_MS = 2_000;
/** For a recorder to die. */
const END_MS = 10_000;

/** Disposing it leaves recorders running. */
export type Recordings = AsyncDisposable & {
  /** Whether its place was made for one. */
  canBegin(attempt: string): boolean;
  /** Sees to it that there is a recorder. */
  begin(attempt: string): Promise<void>;
  /** Before its gate is opened: the first process of its container, whose end the recorder sees. */
  noteInit(attempt: string, pid: number): void;
  /** Ends after the last line when the container has ended, or when `signal` aborts. */
  logs(
    attempt: string,
    cursor: LogCursor | null,
    hasEnded: () => Promise<boolean>,
    signal: AbortSignal,
  ): AsyncGenerator<LogBatch>;
  /** Whether nobody has printed into the FIFOs, nor said to begin: what ran was not the shell of the gate. */
  isUnused(attempt: string): boolean;
  /** After the end of the container: all is in the log. @returns how the command ended, as far as that was heard */
  settle(attempt: string, signal: AbortSignal): Promise<RecordedExit | undefined>;
  /** Why the job must be ended; undefined: for nothing. */
  trouble(attempt: string): Promise<Trouble | undefined>;
  /** Ends the recorder. @throws Error when it does not die */
  end(attempt: string): Promise<void>;
};

/** @param dir where the folders of attempts lie */
export async function openRecordings(dir: string): Promise<Recordings> {
  const shims = await openShims(dir, { program: RECORDER });
  const beginning = new Map<string, Promise<void>>();
  const folder = (attempt: string) => join(dir, attempt, RECORD);
  const at = (attempt: string, name: string) => join(folder(attempt), name);

  async function recorderOf(attempt: string): Promise<Claim | undefined> {
    const claim = await readClaim(at(attempt, 'claim'));
    return claim && isAlive(claim) ? claim : undefined;
  }

  async function start(attempt: string): Promise<void> {
    if (!(await recorderOf(attempt))) {
      await rm(at(attempt, 'claim'), { force: true });
      const exitCode = await shims.launch(attempt);
      if (exitCode === DISK_FULL_EXIT)
        throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
    }
    // One that was killed, or was started by a server that was, may have its claim and no FIFOs yet.
    if (!existsSync(join(gateFolder(join(dir, attempt)), LAST_FIFO)))
      throw new Error(`the recorder of ${attempt} has not started`);
  }

  /** Both who follows the log and who waits for the end see to it. */
  async function begin(attempt: string): Promise<void> {
    const begun = beginning.get(attempt) ?? start(attempt);
    beginning.set(attempt, begun);
    await begun.finally(() => beginning.delete(attempt));
  }

  const isDone = (attempt: string) => existsSync(at(attempt, 'done'));

  async function settle(attempt: string, signal: AbortSignal) {
    using changes = changesOf(folder(attempt), signal);
    while (!isDone(attempt) && existsSync(folder(attempt))) {
      signal.throwIfAborted();
      const recorder = await recorderOf(attempt);
      if (recorder) signalOne(recorder.pid, 'SIGTERM');
      else if (!isDone(attempt)) await begin(attempt);
      await changes.next();
    }
    return readWhole<RecordedExit>(at(attempt, 'exit'));
  }

  return {
    canBegin: (attempt) => existsSync(folder(attempt)),

    begin,

    noteInit(attempt, pid) {
      const init: Claim = { pid, ...identityOf(pid) };
      // By its pid alone it would be taken for another. It has just ended; the engine knows when.
      if (init.startTime) writeWhole(at(attempt, 'init'), init);
    },

    async *logs(attempt, cursor, hasEnded, signal) {
      const since = Date.now();
      using changes = changesOf(folder(attempt), signal);
      await using file = await open(at(attempt, 'log'), 'r');
      const buffer = Buffer.allocUnsafe(READ_BYTES);
      let offset = Number(cursor?.offset ?? 0);
      while (!signal.aborted) {
        // Asked before the read: what comes after it is then in this read.
        const done = isDone(attempt);
        const { bytesRead } = await file.read(buffer, 0, READ_BYTES, offset);
        const end = buffer.subarray(0, bytesRead).lastIndexOf(10) + 1;
        offset += end;
        if (end > 0) {
          yield parseLog(buffer.subarray(0, end), { offset });
          continue;
        }
        if (done || !existsSync(folder(attempt))) return;
        if (!(await recorderOf(attempt)) && !isDone(attempt)) await begin(attempt);
        // Of a container that has not begun the recorder does not see the end.
        const isLate = Date.now() - since > BEGUN_MS && !existsSync(at(attempt, 'begun'));
        if (isLate && (await hasEnded())) await settle(attempt, signal);
        else await changes.next();
      }
    },

    isUnused(attempt) {
      if (existsSync(at(attempt, 'begun'))) return false;
      return statSync(at(attempt, 'log'), { throwIfNoEntry: false })?.size === 0;
    },

    settle,

    trouble: (attempt) => readWhole<Trouble>(at(attempt, 'trouble')),

    async end(attempt) {
      await beginning.get(attempt)?.catch(() => {});
      for (const deadline = Date.now() + END_MS; ; await delay(5)) {
        const recorder = await recorderOf(attempt);
        if (!recorder) return;
        if (Date.now() > deadline) throw new Error('its recorder does not end');
        signalOne(recorder.pid, 'SIGKILL');
      }
    },

    [Symbol.asyncDispose]: () => shims[Symbol.asyncDispose](),
  };
}

/** What a recorder needs, before there is one. */
export async function makeRecord(place: string): Promise<void> {
  await mkdir(join(place, RECORD), { mode: 0o700 });
  await writeFile(join(place, RECORD, 'log'), '', { mode: 0o600 });
  // Random, or a disk that compresses would keep nothing free.
  await writeFile(join(place, RECORD, 'reserve'), randomBytes(RESERVE_BYTES), { mode: 0o600 });
}

/**
 * Whether a running container runs on the kernel of this machine, so that a FIFO of ours is the same one in it: its first
 * process is one that we see, in the container's own control group. With an engine in a virtual machine, or a server in a
 * container, it is not.
 */
export function isOnThisKernel({ id, pid, runtime }: ContainerState): boolean {
  if (!sharesKernel(runtime)) return false;
  try {
    return readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(id);
  } catch {
    return false;
  }
}
