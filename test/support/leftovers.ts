/**
 * Ends the processes that a run of the tests leaves behind and removes its databases, also if the run is killed, and finds the
 * processes of one test file.
 *
 * A process that left the process tree or emptied its environment still inherits its limits. The limit of file locks, which
 * Linux ignores since 2.4 and which is unlimited by default, marks the processes of a run and of each of its workers.
 */
import { execFileSync, spawn } from 'node:child_process';
import { readdirSync, readFileSync, rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

/** Above every process id. The marks of the workers of a run are below its own mark, and above the marks of other runs. */
const MARKS_PER_RUN = 2 ** 23;
/** Processes may take this long to end after the end of the run. */
const ENDING_MS = 5_000;

/** The databases of a run take up to 1 GiB, most of it the write-ahead log. */
const MIN_MEMORY_BYTES = 4 * 2 ** 30;

type Leftover = { pid: number; command: string };

/** Marks this process, the parent of the workers, and starts a process that ends all others after this one. */
export default function setup(): void {
  const runMark = markOfRun(process.pid);
  // Its standard input ends with this process. It is started first, so that it does not inherit the mark.
  const args = [import.meta.filename, String(runMark), databaseFolder(process.pid)];
  const cleaner = spawn(process.execPath, args, {
    stdio: ['pipe', 'ignore', 'inherit'],
    detached: true,
  });
  cleaner.unref();
  if (!setMark(runMark)) cleaner.kill();
}

/** The mark of what the parent of the workers starts itself, such as PostgreSQL. */
export const markOfRun = (parent: number): number => (parent + 1) * MARKS_PER_RUN;

/**
 * Where the run keeps its PostgreSQL: in memory, if Linux has room for it. Each app of the tests copies and removes a database
 * of hundreds of files, which takes seven times as long on a disk.
 */
export function databaseFolder(parent: number): string {
  return join(hasRoom('/dev/shm') ? '/dev/shm' : tmpdir(), `loam-test-${parent}`);
}

function hasRoom(folder: string): boolean {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize >= MIN_MEMORY_BYTES;
  } catch {
    return false;
  }
}

/** Marks this worker and everything that it will start. @returns the mark; null if the run has none */
export function markWorker(): number | null {
  const current = markOf('self');
  if (current === null || current % MARKS_PER_RUN !== 0) return current;
  const own = current - process.pid;
  return setMark(own) ? own : null;
}

/** Processes with the mark, except this one. */
export function listMarked(mark: number): Leftover[] {
  return list((one) => one === mark);
}

export function kill({ pid }: Leftover): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

/** @returns false where limits do not work like this: on other systems, or inside of another run */
function setMark(mark: number): boolean {
  try {
    execFileSync('prlimit', [`--pid=${process.pid}`, `--locks=${mark}:${mark}`], {
      stdio: 'ignore',
    });
    return true;
  } catch {
    return false;
  }
}

function markOf(pid: string): number | null {
  const mark = /^Max file locks +(\d+) /m.exec(read(pid, 'limits'))?.[1];
  return mark === undefined ? null : Number(mark);
}

function list(isWanted: (mark: number) => boolean): Leftover[] {
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) return [];
    const mark = markOf(pid);
    if (mark === null || !isWanted(mark)) return [];
    const command = read(pid, 'cmdline').replaceAll('\0', ' ').trim();
    // A process that has ended has no command line.
    return command ? [{ pid: Number(pid), command }] : [];
  });
}

function read(pid: string, file: 'cmdline' | 'limits'): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1');
  } catch {
    return '';
  }
}

async function endAll(runMark: number, databases: string): Promise<void> {
  const remaining = () => list((mark) => mark > runMark - MARKS_PER_RUN && mark <= runMark);
  for (let waited = 0; waited < ENDING_MS && remaining().length > 0; waited += 100)
    await delay(100);
  for (let left = remaining(); left.length > 0; left = remaining()) {
    for (const each of left) {
      console.error(`Ended a process that the tests left behind: ${each.command.slice(0, 150)}`);
      kill(each);
    }
    await delay(100);
  }
  rmSync(databases, { recursive: true, force: true });
}

if (import.meta.main) {
  const [, , runMark, databases = ''] = process.argv;
  process.stdin.resume().once('end', () => endAll(Number(runMark), databases));
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});
}
