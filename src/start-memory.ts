/**
 * Frees memory that only startup needed: compiling the schema and the operations leaves some 80 MB of garbage. V8 collects
 * when new objects are allocated, so on an idle server the garbage would stay. The inspector can collect, too, but a process
 * that had opened an inspector session did not end.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { unsetVariables } from './base/config/config.ts';

/**
 * `npm start` and the image set this variable. With it, glibc maps each allocation from 1 MiB separately and returns it at
 * once. Without it, startup raises that limit up to 32 MiB, and 25 to 40 MB of freed memory stay in the process.
 */
const MALLOC_THRESHOLD = 'MALLOC_MMAP_THRESHOLD_';

/** Unset before other programs are started, because the database and git should use their own settings. */
export function unsetMallocThreshold(): void {
  unsetVariables([MALLOC_THRESHOLD]);
}

/**
 * Growth of the heap, in percent of the live memory (some 70 MB), before V8 marks all of it again. V8's own value is about a
 * tenth: it counts the time of collections on the main thread, but not on other cores, which was 7 % of all CPU time with
 * 8 short jobs in flight.
 */
const GROWTH_PERCENT = 50;

/** The first requests must not wait for the collection, which takes 0.1 to 0.3 s. */
const DELAY_MS = 2_000;

/** Collects once shortly after startup, and seldom from then on. Disposing cancels it. */
export function freeStartupMemory(): Disposable {
  const timer = setTimeout(() => {
    // A collection determines how far the heap may grow until the next, so the flag is set before it.
    setFlagsFromString(`--heap-growing-percent=${GROWTH_PERCENT}`);
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as (options: object) => void;
    // Collects everything and returns free memory to the system, as V8 does when memory is short.
    collect({ type: 'major', flavor: 'last-resort' });
    setFlagsFromString('--no-expose-gc');
  }, DELAY_MS);
  timer.unref();
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}
