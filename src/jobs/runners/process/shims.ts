/**
 * Starts shims, each in a session of its own, so that it outlives this server.
 *
 * Node's own start is most of what a job would wait for here (65 of 110 ms). So one shim is kept started and waits for
 * the name of its attempt on its standard input, which ends with the starter of this server (`starter.ts`), and the shim
 * with it. It is started after
 * the first job: a server that runs none keeps none. It has the code that this server has, also when the files were
 * replaced since.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Detached, detach } from '../../../processes/starter.ts';
import { PATH } from './launch.ts';
import type { NetworkSpec } from './namespace.ts';

const SHIM = join(import.meta.dirname, 'shim.ts');
/** Compiled shims: taking the types out of its source again took 75 of the 110 ms that a start waited for it. */
const CACHE = '.compiled';
/** What shims without an attempt say when they fail: a file for each, named by the server that started it. */
const ERRORS = '.shims';
/** New objects are collected early: a flood of lines took 180 MB of a shim without it, and takes 96. */
const SMALL = '--max-semi-space-size=4';
/** A shim that has not said within this that it runs never will. */
const START_MS = 20_000;
/** Between the start of a job and that of the shim for the next one, which takes a core for 50 ms. */
const PAUSE_MS = 150;

/** A line of a shim's input. Nothing is started before the last, `start`; when it does not come, the shim ends. */
export type ShimOrder =
  | { order: 'connect'; attempt: string; network: NetworkSpec }
  | { order: 'start'; attempt: string };

export type Shims = AsyncDisposable & {
  /** Gives the attempt a shim that opens its network already, while the rest of it is prepared. Its folder exists. */
  connect(attempt: string, network: NetworkSpec): Promise<void>;
  /**
   * Gives the attempt to a shim, and waits until that says that it has started the work.
   * @returns its exit code, if it has ended by then.
   */
  launch(attempt: string): Promise<number | null>;
  /** Ends the shim of an attempt that is not to be started. */
  discard(attempt: string): void;
};

/** Of this process: names of files. */
let count = 0;

type Waiting = { shim: Detached; errors: string };

/**
 * @param dir where the folders of attempts lie
 * @param program that is started, in place of the shim of a process
 */
export async function openShims(dir: string, program = SHIM): Promise<Shims> {
  const folder = join(dir, ERRORS);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await readdir(folder))
    if (!existsSync(`/proc/${name.split('-')[0]}`)) await rm(join(folder, name), { force: true });
  /** Of attempts that are not started yet. */
  const connected = new Map<string, Detached>();
  let next: Waiting | undefined;
  let later: NodeJS.Timeout | undefined;
  let closed = false;

  function start(errors: string): Detached {
    const env = { PATH, NODE_COMPILE_CACHE: join(dir, CACHE) };
    const node = { file: process.execPath, args: [SMALL, program, dir], cwd: '/', env };
    return detach(node, errors);
  }

  function keepOne(): void {
    later = undefined;
    if (closed || next) return;
    const errors = join(folder, `${process.pid}-${count++}`);
    let waiting: Waiting;
    try {
      // It is taken away with the shim, perhaps before that has begun.
      writeFileSync(errors, '', { mode: 0o600 });
      waiting = { shim: start(errors), errors };
    } catch {
      // The machine is short of something: the next job starts its own, and is told.
      return;
    }
    next = waiting;
    // Killed, or not to be started: then the next job starts its own, and is told why that fails.
    const forget = () => {
      if (next === waiting) next = undefined;
    };
    waiting.shim.ended.then(forget, forget);
  }

  /** The one that is kept, or a new one. */
  async function take(attempt: string): Promise<Detached> {
    const errors = join(dir, attempt, 'shim.err');
    const kept = next;
    next = undefined;
    if (kept) await rename(kept.errors, errors);
    return kept?.shim ?? start(errors);
  }

  const tell = (shim: Detached, order: ShimOrder) =>
    shim.say(`${JSON.stringify(order)}\n`, order.order === 'start');
  const end = (shim: Detached) => shim.say('', true);

  return {
    async connect(attempt, network) {
      const shim = await take(attempt);
      connected.set(attempt, shim);
      // One that dies is none.
      const forget = () => {
        if (connected.get(attempt) === shim) connected.delete(attempt);
      };
      shim.ended.then(forget, forget);
      tell(shim, { order: 'connect', attempt, network });
    },
    async launch(attempt) {
      const shim = connected.get(attempt) ?? (await take(attempt));
      connected.delete(attempt);
      tell(shim, { order: 'start', attempt });
      const late = new AbortController();
      const waited = delay(START_MS, undefined, { signal: late.signal }).catch(() => {});
      await Promise.race([shim.answered, waited]).finally(() => late.abort());
      // Not at once: the first lines of this job are on their way.
      later ??= setTimeout(keepOne, PAUSE_MS).unref();
      return shim.ending?.code ?? null;
    },
    discard(attempt) {
      const shim = connected.get(attempt);
      connected.delete(attempt);
      if (shim) end(shim);
    },
    async [Symbol.asyncDispose]() {
      closed = true;
      clearTimeout(later);
      const waiting = next;
      next = undefined;
      const left = [...connected.values(), ...(waiting ? [waiting.shim] : [])];
      for (const shim of left) end(shim);
      await Promise.allSettled(left.map(({ ended }) => ended));
      if (waiting) await rm(waiting.errors, { force: true });
    },
  };
}
