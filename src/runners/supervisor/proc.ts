/** Processes as /proc shows them, and signals to many of them. Linux alone: elsewhere nothing is found. */
import { createHash } from 'node:crypto';
import { closeSync, existsSync, readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { gigabytes, type Verdict } from './disk.ts';

/** Set in the environment of what the shim starts, so that it is recognized when its parents have ended. */
export const MARKER = 'LOAM_ATTEMPT_ID';

/** Boot and start time make a pid unique; empty where there is no /proc. */
export function identityOf(pid: number): { startTime: string; bootId: string } {
  const stat = statOf(pid);
  if (!stat) return { startTime: '', bootId: '' };
  return { startTime: stat.startTime, bootId: bootIdNow() };
}

const BOOT_ID = '/proc/sys/kernel/random/boot_id';
let bootId: string | undefined;

/** It is the same as long as this process runs. */
export function bootIdNow(): string {
  bootId ??= existsSync(BOOT_ID) ? readFileSync(BOOT_ID, 'utf8').trim() : '';
  return bootId;
}

export type ProcessStat = { state: string; parent: number; startTime: string; fields: string[] };

/** `/proc/<pid>/stat`, whose second field may itself hold spaces and parentheses. */
export function statOf(pid: number | string): ProcessStat | undefined {
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

/** All processes below `root`, without it. */
export function descendants(root: number): number[] {
  const children = new Map<number, number[]>();
  for (const pid of allPids()) {
    const parent = statOf(pid)?.parent;
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

export function allPids(): number[] {
  return existsSync('/proc/self/stat') ? readdirSync('/proc').filter(isNumber).map(Number) : [];
}

function isNumber(name: string): boolean {
  return /^\d+$/.test(name);
}

/** The processes of an attempt that carry one of its marks, wherever they went. */
export function markedPids(attempt: string): number[] {
  return [...findMarked(attempt)];
}

/**
 * Kills each as soon as it is found, the newest first: one that forks without end lives for milliseconds. Returns
 * whether there was any; where forks go on, one pass that finds none does not yet mean that none is left.
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
  const entry = `${MARKER}=${attempt}\0`;
  const limit = ` ${limitMark(attempt)} `;
  for (const pid of allPids().reverse()) {
    if (pid === process.pid) continue;
    const environment = read(pid, 'environ');
    // Who hides it from us is not our user's.
    if (environment === null) continue;
    if (environment.includes(entry) || (MARKS_LIMITS && read(pid, 'limits')?.includes(limit)))
      yield pid;
  }
}

/** As root we give each job a user of its own, by which its processes are found. */
export const MARKS_LIMITS = process.platform === 'linux' && process.getuid?.() !== 0;

/**
 * A second mark: the limit on the CPU time (in microseconds, 146,000 years) of real-time processes. It means
 * nothing to the processes of a job, and a daemon that clears its environment has inherited it all the same.
 * Only one that lowers its limits on purpose is rid of it.
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
 * Asks each once, and says how many there were. What a process starts after it has been asked is its way of
 * ending (a last upload, a checkpoint) and has the grace period; so nobody is looked for again after the
 * first was asked, only before: one may fork while we walk.
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

/** Again until no new process shows up. */
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
    // It has ended by itself.
  }
}

/** O_CLOEXEC in the flags that /proc shows, in octal; Node opens its own descriptors with it. */
const CLOSED_ON_EXEC = 0o2000000;

/**
 * Closes the descriptors that this process was started with beside its three streams. Whoever started the server may
 * have left some open (a lock, a socket, a pipe to a supervisor), and every program that we start would have them too.
 */
export function closeInherited(): void {
  if (!existsSync('/proc/self/fdinfo')) return;
  for (const fd of readdirSync('/proc/self/fdinfo').map(Number)) {
    if (fd <= 2) continue;
    try {
      const info = readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8');
      const flags = Number.parseInt(/^flags:\s+(\d+)/m.exec(info)?.[1] ?? '', 8);
      if (!(flags & CLOSED_ON_EXEC)) closeSync(fd);
    } catch {
      // That of the folder itself, which is closed by now.
    }
  }
}

/** The memory of a job where no control group holds it: looked at every second, and ended beyond its limit. */
const LOOK_MS = 1_000;
const PAGE = 4096;

/**
 * Watches until the processes have more memory than `limit` bytes, or until `signal` aborts.
 * @returns null when it was aborted.
 */
export async function watchMemory(
  pids: () => number[],
  limit: number,
  signal: AbortSignal,
): Promise<Verdict | null> {
  for (;;) {
    await delay(LOOK_MS, undefined, { signal }).catch(() => {});
    if (signal.aborted) return null;
    const all = pids();
    // What each has in memory is quick to read, but counts shared pages once for each of them.
    if (sum(all, residentMemory) > limit && sum(all, proportionalMemory) > limit)
      return {
        full: false,
        reason: `The job ran out of memory and was ended. It may use ${gigabytes(limit)}.`,
      };
  }
}

/** A line for the log. @param killed how many processes @param bytes what the job may use */
export function tellOutOfMemory(killed: number, bytes: number): string {
  const who = killed === 1 ? 'a process was' : `${killed} processes were`;
  return `The job ran out of memory: ${who} killed. It may use ${gigabytes(bytes)}.`;
}

function sum(pids: readonly number[], of: (pid: number) => number): number {
  return pids.reduce((total, pid) => total + of(pid), 0);
}

/** Bytes; 0 of a process that is gone. */
function residentMemory(pid: number): number {
  return Number(statOf(pid)?.fields[21] ?? 0) * PAGE;
}

/** Bytes, with pages that processes share counted once in all; where that is not readable, all of them. */
export function proportionalMemory(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
    return Number(/^Pss: +(\d+) kB/m.exec(text)?.[1] ?? 0) * 1024;
  } catch {
    return residentMemory(pid);
  }
}
