/**
 * Starts shims, each in a session of its own, so that it outlives this server.
 *
 * Node's own start is most of what a job would wait for here (65 of 110 ms). So one shim is kept started and waits for
 * the name of its attempt on its standard input, which ends with the starter of this server (`starter.ts`), and the shim
 * with it. It is started after
 * the first job: a server that runs none keeps none. It has the code that this server has, also when the files were
 * replaced since.
 */
import { existsSync } from 'node:fs';
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Detached, detach } from '../../../processes/starter.ts';
import { PATH } from './launch.ts';

const SHIM = join(import.meta.dirname, 'shim.ts');
/** Compiled shims: taking the types out of its source again took 75 of the 110 ms that a start waited for it. */
const CACHE = '.compiled';
/** What shims without an attempt say when they fail: a file for each, named by the server that started it. */
const ERRORS = '.shims';
/** New objects are collected early: a flood of lines took 180 MB of a shim without it, and takes 96. */
const SMALL = '--max-semi-space-size=4';
/** A shim that has not said within this that it runs never will. */
const START_MS = 20_000;

export type Shims = AsyncDisposable & {
  /**
   * Gives the attempt to a shim, and waits until that says that it has started the work.
   * @returns its exit code, if it has ended by then.
   */
  launch(attempt: string): Promise<number | null>;
};

/** Of this process: names of files. */
let count = 0;

type Waiting = { shim: Detached; errors: string };

/** @param dir where the folders of attempts lie */
export async function openShims(dir: string): Promise<Shims> {
  const folder = join(dir, ERRORS);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await readdir(folder))
    if (!existsSync(`/proc/${name.split('-')[0]}`)) await rm(join(folder, name), { force: true });
  let next: Waiting | undefined;
  let closed = false;

  function start(errors: string): Detached {
    const env = { PATH, NODE_COMPILE_CACHE: join(dir, CACHE) };
    const program = { file: process.execPath, args: [SMALL, SHIM, dir], cwd: '/', env };
    return detach(program, errors);
  }

  function keepOne(): void {
    if (closed || next) return;
    const errors = join(folder, `${process.pid}-${count++}`);
    const waiting = { shim: start(errors), errors };
    next = waiting;
    // Killed, or not to be started: then the next job starts its own, and is told why that fails.
    const forget = () => {
      if (next === waiting) next = undefined;
    };
    waiting.shim.ended.then(forget, forget);
  }

  return {
    async launch(attempt) {
      const kept = next;
      next = undefined;
      const errors = join(dir, attempt, 'shim.err');
      if (kept) await rename(kept.errors, errors);
      const shim = kept?.shim ?? start(errors);
      shim.say(attempt);
      const late = new AbortController();
      const waited = delay(START_MS, undefined, { signal: late.signal }).catch(() => {});
      await Promise.race([shim.answered, waited]).finally(() => late.abort());
      keepOne();
      return shim.ending?.code ?? null;
    },
    async [Symbol.asyncDispose]() {
      closed = true;
      const waiting = next;
      next = undefined;
      if (!waiting) return;
      waiting.shim.say('');
      await waiting.shim.ended.catch(() => {});
      await rm(waiting.errors, { force: true });
    },
  };
}
