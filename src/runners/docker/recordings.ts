/** The server's side of recorders (`recorder.ts`): starts and ends them, and reads the files that they write. */
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { mkdir, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { openShims, type Shims } from '../process/shims.ts';
import type { LogBatch, LogCursor } from '../runner.ts';
import { type Claim, DISK_FULL_EXIT, writeWhole } from '../supervisor/claim.ts';
import { changesOf, isAlive, readClaim, readWhole } from '../supervisor/folder.ts';
import { parseLog } from '../supervisor/lines.ts';
import { identityOf, signalOne } from '../supervisor/proc.ts';
import { sharesKernel } from './engine-facts.ts';
import type { ContainerState } from './outcome.ts';
import { RECORD_DIR, type RecordedExit, type RecorderFailure } from './recorder.ts';
import { barrierDir, LAST_FIFO } from './start-barrier.ts';

const RECORDER = join(import.meta.dirname, 'recorder.ts');
/** Size of the file that is deleted when the disk is full, to make room for the small files of a recorder. */
const RESERVE_BYTES = 64 * 1024;
/** Part of the log that is read at a time: as objects its lines take some ten times their size. */
const READ_BYTES = 256 * 1024;
/** A command begins some milliseconds after its start barrier opens; a check after this time is certainly later. */
const BEGIN_TIMEOUT_MS = 2_000;
/** A recorder must have exited within this after SIGKILL. */
const KILL_TIMEOUT_MS = 10_000;

/** @param dir parent of the attempt folders */
export async function openRecordings(dir: string): Promise<Recordings> {
  return new Recordings(dir, await openShims(dir, { program: RECORDER }));
}

/** Disposing it leaves recorders running. */
export class Recordings implements AsyncDisposable {
  readonly #dir: string;
  readonly #shims: Shims;
  /** Recorders that are being started. */
  readonly #starting = new Map<string, Promise<void>>();

  constructor(dir: string, shims: Shims) {
    this.#dir = dir;
    this.#shims = shims;
  }

  /** Whether the attempt has the folder that a recorder needs. */
  isPrepared(attempt: string): boolean {
    return existsSync(this.#folderOf(attempt));
  }

  /** Starts a recorder unless one runs. Followers of the log and waiters for the end call it at the same time. */
  async ensureRecorder(attempt: string): Promise<void> {
    const started = this.#starting.get(attempt) ?? this.#startRecorder(attempt);
    this.#starting.set(attempt, started);
    await started.finally(() => this.#starting.delete(attempt));
  }

  /** Stores the container's first process, whose end the recorder watches. Call it before the start barrier opens. */
  storeInitProcess(attempt: string, pid: number): void {
    const init: Claim = { pid, ...identityOf(pid) };
    // Without a start time it has just ended, and its pid may soon belong to another process. The engine knows the end.
    if (init.startTime) writeWhole(this.#fileOf(attempt, 'init'), init);
  }

  /** Ends after the last line when the container has ended, or when `signal` aborts. */
  async *readLog(
    attempt: string,
    cursor: LogCursor | null,
    hasEnded: () => Promise<boolean>,
    signal: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    const since = Date.now();
    const folder = this.#folderOf(attempt);
    using changes = changesOf(folder, signal);
    await using file = await open(this.#fileOf(attempt, 'log'), 'r');
    const buffer = Buffer.allocUnsafe(READ_BYTES);
    let offset = Number(cursor?.offset ?? 0);
    while (!signal.aborted) {
      // Checked before the read, so that the read sees all lines of a finished recorder.
      const isDone = this.#isDone(attempt);
      const { bytesRead } = await file.read(buffer, 0, READ_BYTES, offset);
      const end = buffer.subarray(0, bytesRead).lastIndexOf(10) + 1;
      offset += end;
      if (end > 0) {
        yield parseLog(buffer.subarray(0, end), { offset });
        continue;
      }
      if (isDone || !existsSync(folder)) return;
      if (!(await this.#findRecorder(attempt)) && !this.#isDone(attempt))
        await this.ensureRecorder(attempt);
      // The recorder does not notice the end of a container whose command never opened the FIFOs.
      const isLate = Date.now() - since > BEGIN_TIMEOUT_MS && !this.#hasBegun(attempt);
      if (isLate && (await hasEnded())) await this.finish(attempt, signal);
      else await changes.next();
    }
  }

  /** Whether nothing was printed into the FIFOs and no begin was reported: then the image's `/bin/sh` is not a shell. */
  isUnused(attempt: string): boolean {
    if (this.#hasBegun(attempt)) return false;
    return statSync(this.#fileOf(attempt, 'log'), { throwIfNoEntry: false })?.size === 0;
  }

  /**
   * Makes the recorder complete the log; call it after the end of the container.
   * @returns how the command ended, as far as it was reported
   */
  async finish(attempt: string, signal: AbortSignal): Promise<RecordedExit | undefined> {
    const folder = this.#folderOf(attempt);
    using changes = changesOf(folder, signal);
    while (!this.#isDone(attempt) && existsSync(folder)) {
      signal.throwIfAborted();
      const recorder = await this.#findRecorder(attempt);
      if (recorder) signalOne(recorder.pid, 'SIGTERM');
      else if (!this.#isDone(attempt)) await this.ensureRecorder(attempt);
      await changes.next();
    }
    return readWhole<RecordedExit>(this.#fileOf(attempt, 'exit'));
  }

  /** @returns why the job must be ended; undefined: it need not */
  readFailure(attempt: string): Promise<RecorderFailure | undefined> {
    return readWhole<RecorderFailure>(this.#fileOf(attempt, 'trouble'));
  }

  /** @throws Error when the recorder survives SIGKILL */
  async killRecorder(attempt: string): Promise<void> {
    await this.#starting.get(attempt)?.catch(() => {});
    for (const deadline = Date.now() + KILL_TIMEOUT_MS; ; await delay(5)) {
      const recorder = await this.#findRecorder(attempt);
      if (!recorder) return;
      if (Date.now() > deadline)
        throw new Error(`The recorder of ${attempt}, process ${recorder.pid}, survived SIGKILL`);
      signalOne(recorder.pid, 'SIGKILL');
    }
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.#shims[Symbol.asyncDispose]();
  }

  async #startRecorder(attempt: string): Promise<void> {
    if (!(await this.#findRecorder(attempt))) {
      await rm(this.#fileOf(attempt, 'claim'), { force: true });
      const exitCode = await this.#shims.launch(attempt);
      if (exitCode === DISK_FULL_EXIT)
        throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
    }
    // A recorder that was killed, or was started by a server that was killed, may have a claim and no FIFOs yet.
    if (!existsSync(join(barrierDir(join(this.#dir, attempt)), LAST_FIFO)))
      throw new Error(`The recorder of ${attempt} has not started`);
  }

  async #findRecorder(attempt: string): Promise<Claim | undefined> {
    const claim = await readClaim(this.#fileOf(attempt, 'claim'));
    return claim && isAlive(claim) ? claim : undefined;
  }

  #isDone(attempt: string): boolean {
    return existsSync(this.#fileOf(attempt, 'done'));
  }

  #hasBegun(attempt: string): boolean {
    return existsSync(this.#fileOf(attempt, 'begun'));
  }

  #folderOf(attempt: string): string {
    return join(this.#dir, attempt, RECORD_DIR);
  }

  #fileOf(attempt: string, name: string): string {
    return join(this.#folderOf(attempt), name);
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

/**
 * Whether a running container shares the kernel of this machine, so that our FIFOs work in it: its first process is visible
 * here, in the container's own control group. This is not so with an engine in a virtual machine, or a server in a
 * container.
 */
export function runsOnHostKernel({ id, pid, runtime }: ContainerState): boolean {
  if (!sharesKernel(runtime)) return false;
  try {
    return readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(id);
  } catch {
    return false;
  }
}
