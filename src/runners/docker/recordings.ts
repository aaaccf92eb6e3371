/**
 * The server's side of recorders: starts and ends them, and reads the files that they write. A recorder (`recorder.ts`) is a
 * process that writes a container's output to disk and survives the server and the engine, so that no line is lost.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { mkdir, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { openShims, type ShimPool } from '../process/shims.ts';
import type { LogBatch, LogCursor } from '../runner.ts';
import { DISK_FULL_EXIT, type ProcessIdentity, writeJsonAtomically } from '../supervisor/claim.ts';
import { isAlive, readClaim, readJsonFile, watchChanges } from '../supervisor/folder.ts';
import { parseLog } from '../supervisor/lines.ts';
import { readProcessIdentity, signalOne } from '../supervisor/proc.ts';
import {
  RECORD_DIR,
  type RecordedExit,
  type RecorderFailure,
  type RecordFile,
} from './recorder.ts';
import { barrierDir, LAST_FIFO } from './start-barrier.ts';

const RECORDER = join(import.meta.dirname, 'recorder.ts');
/** Size of the file that is deleted when the disk is full, to make room for the small files of a recorder. */
const RESERVE_BYTES = 64 * 1024;
/** The most that is read from a log at once: parsed lines take about ten times as much memory. A line has 64 KiB at most. */
const READ_BYTES = 256 * 1024;
/** A command begins some milliseconds after its start barrier opens. One that has not begun after this time never will. */
const BEGIN_CHECK_DELAY_MS = 2_000;
/** How long to wait for a recorder to exit after SIGKILL. */
const KILL_TIMEOUT_MS = 10_000;
const NEWLINE = 0x0a;

/** @param dir parent of the attempt folders */
export async function openRecordings(dir: string): Promise<Recordings> {
  return new Recordings(dir, await openShims(dir, { program: RECORDER }));
}

/** Disposing of it leaves recorders running. */
export class Recordings implements AsyncDisposable {
  readonly #dir: string;
  readonly #shims: ShimPool;
  /** Recorders that are being started, by attempt id. */
  readonly #starting = new Map<string, Promise<void>>();

  constructor(dir: string, shims: ShimPool) {
    this.#dir = dir;
    this.#shims = shims;
  }

  /** Whether the attempt has the folder that a recorder needs. */
  isPrepared(attemptId: string): boolean {
    return existsSync(this.#folderOf(attemptId));
  }

  /** Starts a recorder unless one runs. Concurrent calls, of log followers and of `finish`, share one start. */
  async ensureRecorder(attemptId: string): Promise<void> {
    const started = this.#starting.get(attemptId) ?? this.#startRecorder(attemptId);
    this.#starting.set(attemptId, started);
    await started.finally(() => this.#starting.delete(attemptId));
  }

  /** Stores the container's first process, whose end the recorder watches. Called before the start barrier opens. */
  storeInitProcess(attemptId: string, pid: number): void {
    const init: ProcessIdentity = { pid, ...readProcessIdentity(pid) };
    // Without a start time the process has just ended, and another process may soon have its pid. The engine reports the end.
    if (init.startTime) writeJsonAtomically(this.#fileOf(attemptId, 'init'), init);
  }

  /**
   * Yields the lines after `cursor`. Ends after the last line when the container has ended, or when `signal` aborts. Restarts
   * a recorder that was killed, and makes it finish when the command never began.
   * @param hasEnded whether the container has ended, according to the engine
   */
  async *followLog(
    attemptId: string,
    cursor: LogCursor | null,
    hasEnded: () => Promise<boolean>,
    signal: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    const followedSince = Date.now();
    const folder = this.#folderOf(attemptId);
    using changes = watchChanges(folder, signal);
    await using file = await open(this.#fileOf(attemptId, 'log'), 'r');
    const buffer = Buffer.allocUnsafe(READ_BYTES);
    let offset = Number(cursor?.offset ?? 0);
    while (!signal.aborted) {
      // Checked before the read, so that the read sees all lines of a finished recorder.
      const isDone = this.#isDone(attemptId);
      const { bytesRead } = await file.read(buffer, 0, READ_BYTES, offset);
      const length = buffer.subarray(0, bytesRead).lastIndexOf(NEWLINE) + 1;
      offset += length;
      if (length > 0) {
        yield parseLog(buffer.subarray(0, length), { offset });
        continue;
      }
      if (isDone || !existsSync(folder)) return;
      if (!(await this.#findRecorder(attemptId)) && !this.#isDone(attemptId))
        await this.ensureRecorder(attemptId);
      // The recorder does not notice the end of a container whose command never opened the FIFOs.
      const shouldHaveBegun = Date.now() - followedSince > BEGIN_CHECK_DELAY_MS;
      const neverBegan = shouldHaveBegun && !this.#hasBegun(attemptId);
      if (neverBegan && (await hasEnded())) await this.finish(attemptId, signal);
      else await changes.next();
    }
  }

  /**
   * Whether nothing was printed into the FIFOs and the command did not report its begin. Then the image's `/bin/sh` is not a
   * shell, and the output is in the engine's log. False when the recorder's log is missing.
   */
  recordedNothing(attemptId: string): boolean {
    if (this.#hasBegun(attemptId)) return false;
    return statSync(this.#fileOf(attemptId, 'log'), { throwIfNoEntry: false })?.size === 0;
  }

  /**
   * Sends SIGTERM to the recorder until it has completed the log. Called after the end of the container.
   * @returns how the command ended, as far as its parent reported it
   */
  async finish(attemptId: string, signal: AbortSignal): Promise<RecordedExit | undefined> {
    const folder = this.#folderOf(attemptId);
    using changes = watchChanges(folder, signal);
    while (!this.#isDone(attemptId) && existsSync(folder)) {
      signal.throwIfAborted();
      const recorder = await this.#findRecorder(attemptId);
      if (recorder) signalOne(recorder.pid, 'SIGTERM');
      else if (!this.#isDone(attemptId)) await this.ensureRecorder(attemptId);
      await changes.next();
    }
    return readJsonFile<RecordedExit>(this.#fileOf(attemptId, 'exit'));
  }

  /** @returns why the job must be ended; undefined if the log can be written */
  readFailure(attemptId: string): Promise<RecorderFailure | undefined> {
    return readJsonFile<RecorderFailure>(this.#fileOf(attemptId, 'failure'));
  }

  /** @throws Error when the recorder survives SIGKILL */
  async killRecorder(attemptId: string): Promise<void> {
    await this.#starting.get(attemptId)?.catch(() => {});
    const deadline = Date.now() + KILL_TIMEOUT_MS;
    for (;;) {
      const recorder = await this.#findRecorder(attemptId);
      if (!recorder) return;
      if (Date.now() > deadline)
        throw new Error(`The recorder of ${attemptId}, process ${recorder.pid}, survived SIGKILL`);
      signalOne(recorder.pid, 'SIGKILL');
      await delay(5);
    }
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.#shims[Symbol.asyncDispose]();
  }

  async #startRecorder(attemptId: string): Promise<void> {
    if (!(await this.#findRecorder(attemptId))) {
      await rm(this.#fileOf(attemptId, 'claim'), { force: true });
      const exitCode = await this.#shims.launch(attemptId);
      if (exitCode === DISK_FULL_EXIT)
        throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
    }
    // A recorder that was killed, or whose server was killed during its start, may have a claim and no FIFOs yet. The caller
    // retries.
    if (!existsSync(join(barrierDir(join(this.#dir, attemptId)), LAST_FIFO)))
      throw new Error(`The recorder of ${attemptId} has not started`);
  }

  async #findRecorder(attemptId: string): Promise<ProcessIdentity | undefined> {
    const claim = await readClaim(this.#fileOf(attemptId, 'claim'));
    return claim && isAlive(claim) ? claim : undefined;
  }

  #isDone(attemptId: string): boolean {
    return existsSync(this.#fileOf(attemptId, 'done'));
  }

  #hasBegun(attemptId: string): boolean {
    return existsSync(this.#fileOf(attemptId, 'begun'));
  }

  #folderOf(attemptId: string): string {
    return join(this.#dir, attemptId, RECORD_DIR);
  }

  #fileOf(attemptId: string, name: RecordFile): string {
    return join(this.#folderOf(attemptId), name);
  }
}

/** Creates the folder and files that a recorder needs. */
export async function createRecordDir(attemptDir: string): Promise<void> {
  await mkdir(join(attemptDir, RECORD_DIR), { mode: 0o700 });
  await writeFile(join(attemptDir, RECORD_DIR, 'log'), '', { mode: 0o600 });
  // Random bytes, because a disk that compresses would keep no space for zeros.
  const reserve = randomBytes(RESERVE_BYTES);
  await writeFile(join(attemptDir, RECORD_DIR, 'reserve'), reserve, { mode: 0o600 });
}
