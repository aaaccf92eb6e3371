/** Finds processes in /proc and signals them. On other systems than Linux no process is found. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { sleep } from '../../base/backoff.ts';
import { formatGigabytes, type StopReason } from './disk.ts';

/** The environment variable that marks processes of an attempt, by which they are found after their parents have ended. */
export const ATTEMPT_ID_VARIABLE = 'LOAM_ATTEMPT_ID';

/** Boot id and start time, which make a pid unique; empty when the process is gone, and on other systems than Linux. */
export function readProcessIdentity(pid: number): { startTime: string; bootId: string } {
  const stat = readProcessStat(pid);
  if (!stat) return { startTime: '', bootId: '' };
  return { startTime: stat.startTime, bootId: readBootId() };
}

const BOOT_ID = '/proc/sys/kernel/random/boot_id';
let bootId: string | undefined;

/** Cached, because it cannot change while this process runs. */
export function readBootId(): string {
  bootId ??= existsSync(BOOT_ID) ? readFileSync(BOOT_ID, 'utf8').trim() : '';
  return bootId;
}

type ProcessStat = { state: string; parent: number; startTime: string; fields: string[] };

/** Parses `/proc/<pid>/stat`, whose second field may contain spaces and parentheses. */
export function readProcessStat(pid: number | string): ProcessStat | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return {
      state: fields[0] ?? '',
      parent: Number(fields[1]),
      startTime: fields[19] ?? '',
      fields,
    };
  } catch {
    return undefined;
  }
}

/** All processes below `root`, without `root` itself. */
export function listDescendants(root: number): number[] {
  const children = new Map<number, number[]>();
  for (const pid of listPids()) {
    const parent = readProcessStat(pid)?.parent;
    if (parent === undefined) continue;
    children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const found: number[] = [];
  for (let level = [root]; level.length > 0; ) {
    level = level.flatMap((pid) => children.get(pid) ?? []);
    found.push(...level);
  }
  return found;
}

export function listPids(): number[] {
  return existsSync('/proc/self/stat') ? readdirSync('/proc').filter(isNumber).map(Number) : [];
}

function isNumber(name: string): boolean {
  return /^\d+$/.test(name);
}

/** Lists processes with a mark of the attempt, whatever their parents are. */
export function listMarkedPids(attempt: string): number[] {
  return [...findMarked(attempt)];
}

/**
 * Kills each marked process as soon as it is found, newest first, because processes of a fork bomb live for milliseconds.
 * @returns whether a process was found. While a job forks, one pass without a process does not mean that none is left.
 */
export function killMarked(attempt: string): boolean {
  let found = false;
  for (const pid of findMarked(attempt)) {
    found = true;
    signalOne(pid, 'SIGKILL');
  }
  return found;
}

function* findMarked(attempt: string): Generator<number> {
  const entry = `${ATTEMPT_ID_VARIABLE}=${attempt}\0`;
  const limit = ` ${limitMark(attempt)} `;
  for (const pid of listPids().reverse()) {
    if (pid === process.pid) continue;
    const environment = read(pid, 'environ');
    // A process whose environment is not readable does not belong to this user.
    if (environment === null) continue;
    if (environment.includes(entry) || (USES_LIMIT_MARK && read(pid, 'limits')?.includes(limit)))
      yield pid;
  }
}

/** Whether processes have the second mark. A root server gives each job its own user, and finds processes by the user. */
export const USES_LIMIT_MARK = process.platform === 'linux' && process.getuid?.() !== 0;

/**
 * The second mark: the limit on the CPU time of real-time processes, set to about 146,000 years (in microseconds). It has no
 * effect on a job, and a daemon that clears its environment still inherits the limit. Only a process that lowers its limits
 * on purpose loses the mark.
 */
export function limitMark(attempt: string): string {
  const digest = createHash('sha256').update(attempt).digest();
  return String(2n ** 62n + BigInt(digest.readUIntBE(0, 6)));
}

function read(pid: number, file: 'environ' | 'limits'): string | null {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1');
  } catch {
    return null;
  }
}

/**
 * Sends SIGTERM to each process once. Processes may fork meanwhile, so `list` is called until its result is stable, but not
 * after the first signal: children that a process starts on SIGTERM (a last upload, a checkpoint) get the grace period.
 * @returns the number of processes
 */
export function terminateAll(list: () => number[]): number {
  let pids = list();
  for (let round = 0; round < 5; round++) {
    const again = list();
    const settled = again.length === pids.length && again.every((pid) => pids.includes(pid));
    pids = again;
    if (settled) break;
  }
  for (const pid of pids) signalOne(pid, 'SIGTERM');
  return pids.length;
}

/** Sends SIGKILL to each process. Repeats until `list` returns no new process, ten times at most. */
export function killAll(list: () => number[]): void {
  const done = new Set<number>();
  for (let round = 0; round < 10; round++) {
    const fresh = list().filter((pid) => !done.has(pid));
    if (fresh.length === 0) return;
    for (const pid of fresh) {
      done.add(pid);
      signalOne(pid, 'SIGKILL');
    }
  }
}

export function signalOne(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // The process has ended.
  }
}

/** How often the memory of a job without a control group is checked. */
const MEMORY_POLL_MS = 1_000;
const PAGE = 4096;

/**
 * Watches until the processes use more memory than `limit` bytes, or until `signal` aborts.
 * @returns null when aborted
 */
export async function watchMemory(
  pids: () => number[],
  limit: number,
  signal: AbortSignal,
): Promise<StopReason | null> {
  for (;;) {
    await sleep(MEMORY_POLL_MS, signal);
    if (signal.aborted) return null;
    const all = pids();
    // Resident memory is fast to read, but counts shared pages once per process.
    if (sum(all, readResidentMemory) > limit && sum(all, readProportionalMemory) > limit)
      return {
        full: false,
        reason: `The job ran out of memory and was ended. It may use ${formatGigabytes(limit)}.`,
      };
  }
}

/**
 * A line for the log.
 * @param killed number of killed processes
 * @param bytes the job's limit
 */
export function describeOutOfMemory(killed: number, bytes: number): string {
  const who = killed === 1 ? 'a process was' : `${killed} processes were`;
  return `The job ran out of memory: ${who} killed. It may use ${formatGigabytes(bytes)}.`;
}

function sum(pids: readonly number[], of: (pid: number) => number): number {
  return pids.reduce((total, pid) => total + of(pid), 0);
}

/** In bytes; 0 for a process that is gone. */
function readResidentMemory(pid: number): number {
  return Number(readProcessStat(pid)?.fields[21] ?? 0) * PAGE;
}

/** In bytes; each process counts its share of a shared page. Returns resident memory where the file is not readable. */
export function readProportionalMemory(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
    return Number(/^Pss: +(\d+) kB/m.exec(text)?.[1] ?? 0) * 1024;
  } catch {
    return readResidentMemory(pid);
  }
}
