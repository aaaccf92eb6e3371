/**
 * Starts shims, each in a session of its own, so that it outlives this server.
 *
 * Node's own start is most of what a job would wait for here (65 of 110 ms). So one shim is kept started and waits for
 * the name of its attempt on its standard input, which ends with this server, and the shim with it. It is started after
 * the first job: a server that runs none keeps none. It has the code that this server has, also when the files were
 * replaced since.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
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

type Waiting = { child: ChildProcess; errors: string };

/** @param dir where the folders of attempts lie */
export async function openShims(dir: string): Promise<Shims> {
  const folder = join(dir, ERRORS);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await readdir(folder))
    if (!existsSync(`/proc/${name.split('-')[0]}`)) await rm(join(folder, name), { force: true });
  let next: Promise<Waiting | null> | undefined;
  let closed = false;

  async function start(): Promise<Waiting> {
    const errors = join(folder, `${process.pid}-${count++}`);
    await using file = await open(errors, 'a', 0o600);
    const child = spawn(process.execPath, [SMALL, SHIM, dir], {
      cwd: '/',
      env: { PATH, NODE_COMPILE_CACHE: join(dir, CACHE) },
      detached: true,
      stdio: ['pipe', 'pipe', file.fd],
    });
    // Of one that was killed: whoever waits for it sees its end.
    child.on('error', () => {});
    child.stdin?.on('error', () => {});
    return { child, errors };
  }

  /** One that lives, or null. */
  async function take(): Promise<Waiting | null> {
    const waiting = await next;
    next = undefined;
    return waiting && waiting.child.exitCode === null && waiting.child.signalCode === null
      ? waiting
      : null;
  }

  function keepOne(): void {
    if (closed || next) return;
    next = start().then(
      (waiting) => {
        // It keeps nobody waiting: not a process that is done but for it.
        for (const one of [waiting.child, waiting.child.stdin, waiting.child.stdout])
          (one as { unref?(): void } | null)?.unref?.();
        return waiting;
      },
      // Then the next job starts its own, and is told why that fails.
      () => null,
    );
  }

  return {
    async launch(attempt) {
      const { child, errors } = (await take()) ?? (await start());
      await rename(errors, join(dir, attempt, 'shim.err'));
      const { promise, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, START_MS);
      child.stdout?.once('data', () => resolve());
      child.once('exit', () => resolve());
      child.once('error', () => resolve());
      child.stdin?.end(attempt);
      await promise;
      clearTimeout(timer);
      child.stdout?.destroy();
      child.unref();
      keepOne();
      return child.exitCode;
    },
    async [Symbol.asyncDispose]() {
      closed = true;
      const waiting = await take();
      if (!waiting) return;
      const ended = once(waiting.child, 'close');
      waiting.child.ref();
      waiting.child.stdin?.end();
      waiting.child.stdout?.destroy();
      await ended;
      await rm(waiting.errors, { force: true });
    },
  };
}
