/** The server's side of the shims of containers (`container-shim.ts`): starts, signals and replaces them, and reads what they record. */
import { randomBytes } from 'node:crypto';
import { existsSync, renameSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ownProgram } from '../../platform/processes/own-program.ts';
import { openShims, type ShimPool } from '../process/shims.ts';
import type { LogBatch, LogCursor } from '../runner.ts';
import { followLog } from '../supervisor/attempt-folder.ts';
import { DISK_FULL_EXIT, type ProcessIdentity, writeJsonAtomically } from '../supervisor/claim.ts';
import { isAlive, readClaim, readJsonFile, watchChanges } from '../supervisor/folder.ts';
import { readProcessIdentity, signalOne } from '../supervisor/proc.ts';
import type { AttemptExit } from '../supervisor/supervise.ts';
import { hasCommandBegun, readRecord } from './attempt-dir.ts';

const SHIM = ownProgram(import.meta, 'container-shim');
/** Size of the file that is deleted when the disk is full, to make room for the last lines and the record of the end. */
const RESERVE_BYTES = 64 * 1024;
/** How long to wait for a shim to exit after SIGKILL. */
const KILL_TIMEOUT_MS = 10_000;

/** @param dir parent of the attempt folders */
export async function openContainerShims(dir: string): Promise<ContainerShims> {
  return new ContainerShims(dir, await openShims(dir, { program: SHIM }));
}

/** Disposing of it leaves shims running. */
export class ContainerShims implements AsyncDisposable {
  readonly #dir: string;
  readonly #pool: ShimPool;
  /** Shims that are being started, by attempt id. */
  readonly #starting = new Map<string, Promise<void>>();

  constructor(dir: string, pool: ShimPool) {
    this.#dir = dir;
    this.#pool = pool;
  }

  /** Starts a process that will be the shim, which takes as long as the start of a container. */
  reserve(attempt: string): void {
    this.#pool.reserve(attempt);
  }

  /** Ends a reserved process that is not needed. */
  discard(attempt: string): void {
    this.#pool.discard(attempt);
  }

  /** Stores the container's first process, whose end the shim watches. Called before the shim starts. */
  storeInitProcess(attempt: string, pid: number): void {
    const init: ProcessIdentity = { pid, ...readProcessIdentity(pid) };
    // Without a start time the process has just ended, and another process may soon have its pid.
    if (init.startTime) writeJsonAtomically(this.#fileOf(attempt, 'init'), init);
  }

  /** Makes sure that a shim runs until the end is recorded. Concurrent calls share one start. */
  async ensure(attempt: string): Promise<void> {
    const started = this.#starting.get(attempt) ?? this.#start(attempt);
    this.#starting.set(attempt, started);
    await started.finally(() => this.#starting.delete(attempt));
  }

  /** Yields the lines after `cursor`; ends after the last line when the end is recorded, or when `signal` aborts. */
  async *followLog(
    attempt: string,
    cursor: LogCursor | null,
    signal: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    using end = this.#watchForEnd(attempt, signal, ['log', 'exit']);
    yield* followLog(this.#fileOf(attempt, 'log'), cursor, signal, end);
  }

  /** @returns undefined when the attempt was removed */
  async waitForExit(attempt: string, signal: AbortSignal): Promise<AttemptExit | undefined> {
    using end = this.#watchForEnd(attempt, signal, ['exit']);
    for (;;) {
      const exit = await end.findEnd();
      if (exit === 'removed') return undefined;
      if (exit) return exit;
      await end.next();
      signal.throwIfAborted();
    }
  }

  #watchForEnd(attempt: string, signal: AbortSignal, names: readonly string[]) {
    const changes = watchChanges(join(this.#dir, attempt), signal, names);
    return {
      findEnd: async (): Promise<AttemptExit | 'removed' | undefined> => {
        const exit = await this.readExit(attempt);
        if (exit) return exit;
        if (!existsSync(join(this.#dir, attempt))) return 'removed';
        // At once, because the output that is in the FIFOs is lost when the container ends.
        await this.ensure(attempt);
        return undefined;
      },
      next: async (): Promise<void> => void (await changes.next()),
      [Symbol.dispose]: () => changes[Symbol.dispose](),
    };
  }

  readExit(attempt: string): Promise<AttemptExit | undefined> {
    return readJsonFile<AttemptExit>(this.#fileOf(attempt, 'exit'));
  }

  /** Whether a shim of the attempt was killed, so that the next one may have missed output or the report of the end. */
  wasReplaced(attempt: string): boolean {
    return existsSync(this.#fileOf(attempt, 'claim.lost'));
  }

  /** A shim that is started later gets the signal of the stored stop request. */
  async signal(attempt: string, how: 'TERM' | 'KILL'): Promise<void> {
    const shim = await this.#find(attempt);
    if (shim) signalOne(shim.pid, how === 'TERM' ? 'SIGTERM' : 'SIGUSR2');
  }

  /** @throws Error when the shim survives SIGKILL */
  async kill(attempt: string): Promise<void> {
    this.#pool.discard(attempt);
    await this.#starting.get(attempt)?.catch(() => {});
    for (const deadline = Date.now() + KILL_TIMEOUT_MS; ; await delay(5)) {
      const shim = await this.#find(attempt);
      if (!shim) return;
      if (Date.now() > deadline)
        throw new Error(`The shim of ${attempt}, process ${shim.pid}, survived SIGKILL`);
      signalOne(shim.pid, 'SIGKILL');
    }
  }

  [Symbol.asyncDispose](): PromiseLike<void> {
    return this.#pool[Symbol.asyncDispose]();
  }

  async #start(attempt: string): Promise<void> {
    const file = this.#fileOf(attempt, 'claim');
    const claim = await readClaim(file);
    if (claim && isAlive(claim)) return this.#requireStarted(attempt);
    if (await this.readExit(attempt)) return;
    // Only a shim that has let the command begin may have missed something.
    if (claim && hasCommandBegun(join(this.#dir, attempt))) renameSync(file, `${file}.lost`);
    else if (claim) rmSync(file, { force: true });
    const exitCode = await this.#pool.launch(attempt);
    if (exitCode === DISK_FULL_EXIT)
      throw Object.assign(new Error('the disk is full'), { code: 'ENOSPC' });
    this.#requireStarted(attempt);
    if (!(await this.#find(attempt)) && !(await this.readExit(attempt)))
      throw new Error(`The shim of ${attempt} ended with ${exitCode} and has recorded no end`);
    const stop = await readRecord(join(this.#dir, attempt), 'stop');
    if (stop) await this.signal(attempt, stop.how);
  }

  /** A shim that was killed, or whose server was killed, during its start may have a claim only. The caller retries. */
  #requireStarted(attempt: string): void {
    if (!hasCommandBegun(join(this.#dir, attempt)))
      throw new Error(`The shim of ${attempt} has not started`);
  }

  async #find(attempt: string): Promise<ProcessIdentity | undefined> {
    const claim = await readClaim(this.#fileOf(attempt, 'claim'));
    return claim && isAlive(claim) ? claim : undefined;
  }

  #fileOf(attempt: string, name: string): string {
    return join(this.#dir, attempt, name);
  }
}

/** Creates the files that a shim needs. */
export async function createShimFiles(attemptDir: string): Promise<void> {
  await writeFile(join(attemptDir, 'log'), '', { mode: 0o600 });
  // Random bytes, because a disk that compresses would keep no space for zeros.
  const reserve = randomBytes(RESERVE_BYTES);
  await writeFile(join(attemptDir, 'reserve'), reserve, { mode: 0o600 });
}
