/**
 * A pool of shims. Starting Node takes 65 of the 110 ms that a job would wait for a shim, and a third of the CPU time of a
 * short job. So a shim takes another attempt after the first has ended, and from the first job on a spare shim waits.
 *
 * A shim runs in a session of its own, so that it outlives this server. It reads commands from its standard input, which
 * ends together with this server's starter process (`platform/processes/starter.ts`). Then the shim ends, after its attempt
 * if it has one. Shims run the code that was loaded when they started, even if the files are replaced later.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ownProgram } from '../../platform/processes/own-program.ts';
import { type DetachedProgram, startDetached } from '../../platform/processes/starter.ts';
import { PATH } from './launch.ts';
import type { NetworkSpec } from './namespace.ts';

const SHIM = ownProgram(import.meta, 'shim');
/** Node's compile cache for shims. Stripping the types from the source took 75 of the 110 ms of a start. */
const COMPILE_CACHE = '.compiled';
/** Contains a file for the standard error of each shim, named after the server process that started it. */
const ERRORS = '.shims';
/** Makes V8 collect young objects early: during a flood of lines a shim uses 96 MB, without this option 180 MB. */
const SMALL_YOUNG_GENERATION = '--max-semi-space-size=4';
/** Longest wait for a shim to report the start of its work. */
const START_TIMEOUT_MS = 20_000;
/** Pause between the start of a job and the start of a spare shim, which takes a core for 50 ms. */
const REFILL_PAUSE_MS = 150;
/** Enough for short jobs that end at the same time. An idle shim uses about 15 MB of unshared memory. */
const MAX_IDLE = 8;
/** After this time without a new job all idle shims but one are ended. */
const QUIET_MS = 30_000;

/** A line of a shim's input. If the input ends before `start`, the shim ends. */
export type ShimCommand =
  /** Opens the network of the attempt that a later `start` names. */
  { type: 'connect'; network: NetworkSpec } | { type: 'start'; attempt: string };

/** A line of a shim's output. `started`: the work is being started. `free`: the work has ended, and the shim is idle. */
export type ShimEvent = 'started' | 'free';

type Shim = {
  process: DetachedProgram;
  /** Settles when the work has started. */
  started: PromiseWithResolvers<void>;
  /** Settles when the shim has released its attempt. */
  free: PromiseWithResolvers<void>;
};

type Options = {
  /** Runs in place of `shim.ts`. Each of its processes gets a single attempt. */
  program?: string;
  /** The beginning of the command line of each shim. */
  prefix?: string[];
};

/** Makes the names of error files unique within this process. */
let errorFiles = 0;

/** @param dir contains the folders of attempts */
export async function openShims(dir: string, options: Options = {}): Promise<ShimPool> {
  const errors = join(dir, ERRORS);
  await mkdir(errors, { recursive: true, mode: 0o700 });
  for (const name of await readdir(errors))
    if (!existsSync(`/proc/${name.split('-')[0]}`)) await rm(join(errors, name), { force: true });
  return new ShimPool(dir, options);
}

export class ShimPool implements AsyncDisposable {
  readonly #dir: string;
  readonly #program: string | undefined;
  readonly #prefix: readonly string[];
  /** By attempt: shims of attempts that have not started yet. */
  readonly #reserved = new Map<string, Shim>();
  /** By attempt: shims of started attempts. */
  readonly #working = new Map<string, Shim>();
  readonly #idle: Shim[] = [];
  /** Awaited when the pool is closed. */
  readonly #tasks = new Set<Promise<void>>();
  #refillTimer: NodeJS.Timeout | undefined;
  #quietTimer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(dir: string, { program, prefix = [] }: Options) {
    this.#dir = dir;
    this.#program = program;
    this.#prefix = prefix;
  }

  /** Assigns a shim to the attempt. The shim starts, and opens the network, while the rest of the attempt is being prepared. */
  reserve(attempt: string, network?: NetworkSpec): void {
    if (this.#reserved.has(attempt)) return;
    const shim = this.#take();
    this.#reserved.set(attempt, shim);
    if (network) sendCommand(shim, { type: 'connect', network });
  }

  /**
   * Gives the attempt to a shim and waits until the shim has started the work.
   * @returns the shim's exit code, if it has ended by then
   */
  async launch(attempt: string): Promise<number | null> {
    const shim = this.#reserved.get(attempt) ?? this.#take();
    this.#reserved.delete(attempt);
    this.#working.set(attempt, shim);
    sendCommand(shim, { type: 'start', attempt }, this.#program !== undefined);
    const { promise: timedOut, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, START_TIMEOUT_MS);
    await Promise.race([shim.started.promise, shim.process.ended, timedOut]).finally(() =>
      clearTimeout(timer),
    );
    this.#scheduleRefill();
    this.#scheduleShrink();
    return shim.process.ending?.code ?? null;
  }

  /** Ends the shim of an attempt that will not be started. */
  discard(attempt: string): void {
    const shim = this.#reserved.get(attempt);
    this.#reserved.delete(attempt);
    if (shim) this.#end(shim);
  }

  /** Waits until the shim of an ended attempt has released it; returns at once if this server did not start the attempt. */
  async waitUntilReleased(attempt: string): Promise<void> {
    await this.#working.get(attempt)?.free.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#refillTimer);
    clearTimeout(this.#quietTimer);
    for (const shim of [...this.#reserved.values(), ...this.#idle]) this.#end(shim);
    // Shims with a running attempt continue.
    for (const shim of this.#working.values()) closeInput(shim);
    // The end of a shim adds a task that removes its error file.
    while (this.#tasks.size > 0) await Promise.all(this.#tasks);
  }

  /** Returns the shim that became idle last, whose code and memory are still in the CPU's caches, or a new shim. */
  #take(): Shim {
    return this.#idle.pop() ?? this.#start();
  }

  /** @throws Error when a resource of the machine is exhausted */
  #start(): Shim {
    const errors = join(this.#dir, ERRORS, `${process.pid}-${errorFiles++}`);
    writeFileSync(errors, '', { mode: 0o600 });
    const env = { PATH, NODE_COMPILE_CACHE: join(this.#dir, COMPILE_CACHE) };
    const node = [process.execPath, SMALL_YOUNG_GENERATION, this.#program ?? SHIM, this.#dir];
    const [file = '', ...args] = [...this.#prefix, ...node];
    const onEvent = (event: string) => this.#handle(shim, event as ShimEvent);
    const shim: Shim = {
      process: startDetached({ file, args, cwd: '/', env }, errors, onEvent),
      started: Promise.withResolvers(),
      free: Promise.withResolvers(),
    };
    const onEnd = () => {
      this.#forget(shim);
      this.#track(rm(errors, { force: true }));
    };
    shim.process.ended.then(onEnd, onEnd);
    return shim;
  }

  #handle(shim: Shim, event: ShimEvent): void {
    if (event === 'started') {
      shim.started.resolve();
      return;
    }
    this.#forget(shim);
    shim.started = Promise.withResolvers();
    shim.free = Promise.withResolvers();
    if (this.#isClosed || this.#idle.length >= MAX_IDLE) this.#end(shim);
    else this.#idle.push(shim);
    this.#scheduleRefill();
  }

  /** Removes the shim from all lists, and settles its promises. */
  #forget(shim: Shim): void {
    for (const attempts of [this.#reserved, this.#working])
      for (const [attempt, each] of attempts) if (each === shim) attempts.delete(attempt);
    const index = this.#idle.indexOf(shim);
    if (index >= 0) this.#idle.splice(index, 1);
    shim.started.resolve();
    shim.free.resolve();
  }

  /** Pauses first, because the first lines of a job are on their way, or the next job has arrived already. */
  #scheduleRefill(): void {
    this.#refillTimer ??= setTimeout(() => this.#refill(), REFILL_PAUSE_MS).unref();
  }

  #refill(): void {
    this.#refillTimer = undefined;
    if (this.#isClosed || this.#idle.length > 0) return;
    try {
      this.#idle.push(this.#start());
    } catch {
      // A resource of the machine is exhausted. The next job has to start a shim, and reports the error.
    }
  }

  #scheduleShrink(): void {
    clearTimeout(this.#quietTimer);
    this.#quietTimer = setTimeout(() => {
      for (const shim of this.#idle.splice(1)) this.#end(shim);
    }, QUIET_MS).unref();
  }

  /** Ends a shim without an attempt. The shim may still write the compile cache, so closing the pool waits for its end. */
  #end(shim: Shim): void {
    closeInput(shim);
    this.#track(shim.process.ended);
  }

  /** Errors are ignored, because the next start of this server removes remaining error files. */
  #track(task: Promise<unknown>): void {
    const tracked: Promise<void> = task.then(
      () => void this.#tasks.delete(tracked),
      () => void this.#tasks.delete(tracked),
    );
    this.#tasks.add(tracked);
  }
}

function sendCommand(shim: Shim, command: ShimCommand, isLast = false): void {
  shim.process.write(`${JSON.stringify(command)}\n`, isLast);
}

/** Makes the shim end, after its attempt if it has one. */
function closeInput(shim: Shim): void {
  shim.process.write('', true);
}
