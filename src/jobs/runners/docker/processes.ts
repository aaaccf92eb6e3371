/** Processes of a container, as this machine sees them: where its engine runs here and we are root. */
import { readlinkSync } from 'node:fs';
import { allPids, signalOne } from '../process/proc.ts';

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
