/**
 * Starts shims, each in a session of its own, so that it outlives this server, and gives them attempts.
 *
 * Node's own start is most of what a job would wait for here (65 of 110 ms), and a third of the CPU time that a short job
 * takes. So a shim whose attempt is over takes the next one, and from the first job on one is kept that waits for it. A shim
 * has one attempt at a time. It hears of the next one on its standard input, which ends with the starter of this server
 * (`starter.ts`): then it ends with the attempt that it has, or at once. It has the code that this server has, also when the
 * files were replaced since.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Detached, detach } from '../../platform/processes/starter.ts';
import { PATH } from './launch.ts';
import type { NetworkSpec } from './namespace.ts';

const SHIM = join(import.meta.dirname, 'shim.ts');
/** Compiled shims: taking the types out of its source again took 75 of the 110 ms that a start waited for it. */
const CACHE = '.compiled';
/** What shims say when they fail: a file for each, named by the server that started it. */
const ERRORS = '.shims';
/** New objects are collected early: a flood of lines took 180 MB of a shim without it, and takes 96. */
const SMALL = '--max-semi-space-size=4';
/** A shim that has not said within this that it runs never will. */
const START_MS = 20_000;
/** Between the start of a job and that of the shim for the next one, which takes a core for 50 ms. */
const PAUSE_MS = 150;
/** Shims without an attempt, of some 15 MB each that they do not share: as many as end together where short jobs follow. */
const MOST_KEPT = 8;
/** They are as many while jobs come; after so long without one a single shim is kept. */
const QUIET_MS = 30_000;

/** A line of a shim's input. Nothing is started before `start`; a shim whose input ends before that ends too. */
export type ShimOrder =
  /** To open the network of the attempt that it will be told to start. */
  { order: 'connect'; network: NetworkSpec } | { order: 'start'; attempt: string };

/** A line of its output: the work is being started; it is over, and the shim can take the next attempt. */
export type ShimWord = 'started' | 'free';

export type Shims = AsyncDisposable & {
  /** Gives the attempt a shim that opens its network already, while the rest of it is prepared. */
  connect(attempt: string, network: NetworkSpec): void;
  /**
   * Gives the attempt to a shim, and waits until that says that it has started the work.
   * @returns its exit code, if it has ended by then.
   */
  launch(attempt: string): Promise<number | null>;
  /** Ends the shim of an attempt that is not to be started. */
  discard(attempt: string): void;
  /** Settles when the attempt, which has ended, has no shim any more that this server gave it. */
  released(attempt: string): Promise<void>;
};

/** Of this process: names of files. */
let count = 0;

type Shim = {
  process: Detached;
  /** Settles when the work has started. */
  started: PromiseWithResolvers<void>;
  /** Settles when it has no attempt any more. */
  free: PromiseWithResolvers<void>;
};

/**
 * @param dir where the folders of attempts lie
 * @param options.program that is started, in place of the shim of a process; it takes one attempt alone
 * @param options.around the beginning of the command line of a shim
 */
export async function openShims(
  dir: string,
  { program, around = [] }: { program?: string; around?: string[] },
): Promise<Shims> {
  const folder = join(dir, ERRORS);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await readdir(folder))
    if (!existsSync(`/proc/${name.split('-')[0]}`)) await rm(join(folder, name), { force: true });
  /** Of attempts that are not started yet. */
  const connected = new Map<string, Shim>();
  /** Of attempts that are started. */
  const working = new Map<string, Shim>();
  /** Without an attempt. */
  const kept: Shim[] = [];
  const tasks = new Set<Promise<void>>();
  let later: NodeJS.Timeout | undefined;
  let quiet: NodeJS.Timeout | undefined;
  let closed = false;

  /** @throws Error when the machine is short of something */
  function start(): Shim {
    const errors = join(folder, `${process.pid}-${count++}`);
    writeFileSync(errors, '', { mode: 0o600 });
    const env = { PATH, NODE_COMPILE_CACHE: join(dir, CACHE) };
    const [file = '', ...args] = [...around, process.execPath, SMALL, program ?? SHIM, dir];
    const node = { file, args, cwd: '/', env };
    const shim: Shim = {
      process: detach(node, errors, (word) => hear(shim, word as ShimWord)),
      started: Promise.withResolvers(),
      free: Promise.withResolvers(),
    };
    const gone = () => {
      forget(shim);
      own(rm(errors, { force: true }));
    };
    shim.process.ended.then(gone, gone);
    return shim;
  }

  function hear(shim: Shim, word: ShimWord): void {
    if (word === 'started') {
      shim.started.resolve();
      return;
    }
    forget(shim);
    shim.started = Promise.withResolvers();
    shim.free = Promise.withResolvers();
    if (closed || kept.length >= MOST_KEPT) end(shim);
    else kept.push(shim);
    soon();
  }

  /** What fails of it is found by the next start of this server. */
  function own(task: Promise<unknown>): void {
    const owned: Promise<void> = task.then(
      () => void tasks.delete(owned),
      () => void tasks.delete(owned),
    );
    tasks.add(owned);
  }

  /** That it has an attempt, or waits for one. */
  function forget(shim: Shim): void {
    for (const attempts of [connected, working])
      for (const [attempt, each] of attempts) if (each === shim) attempts.delete(attempt);
    const at = kept.indexOf(shim);
    if (at >= 0) kept.splice(at, 1);
    shim.started.resolve();
    shim.free.resolve();
  }

  function keepOne(): void {
    later = undefined;
    if (closed || kept.length > 0) return;
    try {
      kept.push(start());
    } catch {
      // The machine is short of something: the next job starts its own, and is told.
    }
  }

  /** Not at once: the first lines of a job are on their way, or the next job has come already. */
  function soon(): void {
    later ??= setTimeout(keepOne, PAUSE_MS).unref();
  }

  /** The one that became free last, whose code and memory are at hand; or a new one. */
  const take = () => kept.pop() ?? start();

  function whenQuiet(): void {
    clearTimeout(quiet);
    quiet = setTimeout(() => {
      for (const shim of kept.splice(1)) end(shim);
    }, QUIET_MS).unref();
  }

  const tell = (shim: Shim, order: ShimOrder, last = false) =>
    shim.process.write(`${JSON.stringify(order)}\n`, last);
  /** One with an attempt ends after that, and nobody waits for it. */
  const hangUp = (shim: Shim) => shim.process.write('', true);
  /** One without: it may still write what it has compiled, so it is gone before we say that we are. */
  function end(shim: Shim): void {
    hangUp(shim);
    own(shim.process.ended);
  }

  return {
    connect(attempt, network) {
      const shim = take();
      connected.set(attempt, shim);
      tell(shim, { order: 'connect', network });
    },
    async launch(attempt) {
      const shim = connected.get(attempt) ?? take();
      connected.delete(attempt);
      working.set(attempt, shim);
      tell(shim, { order: 'start', attempt }, program !== undefined);
      const { promise: late, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, START_MS);
      await Promise.race([shim.started.promise, shim.process.ended, late]).finally(() =>
        clearTimeout(timer),
      );
      soon();
      whenQuiet();
      return shim.process.ending?.code ?? null;
    },
    discard(attempt) {
      const shim = connected.get(attempt);
      connected.delete(attempt);
      if (shim) end(shim);
    },
    async released(attempt) {
      await working.get(attempt)?.free.promise;
    },
    async [Symbol.asyncDispose]() {
      closed = true;
      clearTimeout(later);
      clearTimeout(quiet);
      for (const shim of [...connected.values(), ...kept]) end(shim);
      // What works goes on.
      for (const shim of working.values()) hangUp(shim);
      // The end of a shim has its file of errors removed.
      while (tasks.size > 0) await Promise.all(tasks);
    },
  };
}
