/** Processes of a container, as this machine sees them: where its engine runs here and we are root. */
import { readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { allPids, signalOne, statOf } from '../supervisor/proc.ts';

/** For processes that got SIGKILL. */
const DEAD_MS = 5_000;

/**
 * All that are in the namespace of the container's init, which is `pid`, without it.
 * Empty when it has ended, or is not of this machine.
 */
export function processesOf(pid: number): number[] {
  const own = namespaceOf(pid);
  // Not in a namespace of its own: then it is no container.
  if (pid <= 1 || own === undefined || own === namespaceOf(process.pid)) return [];
  return allPids().filter((other) => other !== pid && namespaceOf(other) === own);
}

function namespaceOf(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`);
  } catch {
    return undefined;
  }
}

/** To each of them, wherever it went: the init passes a signal on to the process group of the command alone. */
export function terminate(pids: readonly number[]): void {
  for (const pid of pids) signalOne(pid, 'SIGTERM');
}

/**
 * Kills all processes of a container, and what supervises it, also where the engine has forgotten them: they are in its
 * control group, or have its id in their arguments. @throws Error when they do not die
 */
export async function killOf(id: string): Promise<void> {
  for (const deadline = Date.now() + DEAD_MS; ; await delay(20)) {
    const found = allPids().filter(
      (pid) => (reads(pid, 'cgroup', id) || reads(pid, 'cmdline', id)) && !isDead(pid),
    );
    if (found.length === 0) return;
    if (Date.now() > deadline) throw new Error(`processes of a container do not die: ${found}`);
    for (const pid of found) signalOne(pid, 'SIGKILL');
  }
}

/** Whoever should collect them may do it late. */
function isDead(pid: number): boolean {
  return ['Z', 'X', ''].includes(statOf(pid)?.state ?? '');
}

function reads(pid: number, file: 'cgroup' | 'cmdline', id: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(id);
  } catch {
    return false;
  }
}
