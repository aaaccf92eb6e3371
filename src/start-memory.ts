/**
 * Memory that the start took and nothing uses any more: compiling the schema and the operations leaves garbage of some 80 MB,
 * which V8 keeps for as long as little is asked of the server, since it collects by what is newly made. The inspector can
 * collect too, and a process that had opened a session of it did not end.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { unset } from './base/config/config.ts';

/**
 * With it, which `npm start` and the image set, glibc takes each MiB or more from the system by itself and gives it back
 * at once. Without, the start moves that limit up to 32 MiB, and 25 to 40 MB of what it freed stay ours.
 */
const MALLOC_THRESHOLD = 'MALLOC_MMAP_THRESHOLD_';

/** Before anything is started that would inherit it: the database and git know better what they need. */
export function unsetMallocThreshold(): void {
  unset([MALLOC_THRESHOLD]);
}

/**
 * How much the heap may grow, in percent of what is in use, until V8 looks at all of it again. By itself it takes about a tenth:
 * it counts what a collection takes of the program's thread, and not the cores that it takes beside it, which were 7 % of all
 * CPU time with 8 short jobs in flight. What is in use is some 70 MB.
 */
const GROWTH_PERCENT = 50;

/** The first requests are not to wait for it: it takes 0.1 to 0.3 s. */
const AFTER_MS = 2_000;

/** Collects once, a moment after the start, and seldom from then on. Disposing gives it up. */
export function giveBackMemory(): Disposable {
  const timer = setTimeout(() => {
    // A collection says how far the heap may grow until the next.
    setFlagsFromString(`--heap-growing-percent=${GROWTH_PERCENT}`);
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as (options: object) => void;
    // As V8 does where memory is short: all of it, and what is free is given back to the system.
    collect({ type: 'major', flavor: 'last-resort' });
    setFlagsFromString('--no-expose-gc');
  }, AFTER_MS);
  timer.unref();
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}
