/**
 * Finds and signals the processes of a container. Works where the engine runs on this machine and this server is root. The shim
 * imports this file, so it imports little.
 */
import { readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { listPids, readProcessStat, signalOne } from '../supervisor/proc.ts';

/** How long to wait for processes to disappear after SIGKILL. */
const KILL_TIMEOUT_MS = 5_000;

/**
 * Lists all processes in the PID namespace of the container's init, without the init.
 * @param initPid pid of the init on this machine
 * @returns an empty list when the container has ended, or runs on another machine
 */
export function listContainerProcesses(initPid: number): number[] {
  const namespace = readPidNamespace(initPid);
  // A process in the server's own namespace is not the init of a container.
  if (initPid <= 1 || namespace === undefined || namespace === readPidNamespace(process.pid))
    return [];
  return listPids().filter((pid) => pid !== initPid && readPidNamespace(pid) === namespace);
}

function readPidNamespace(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`);
  } catch {
    return undefined;
  }
}

/** Signals each process, because the init forwards a signal only to the process group of the command. */
export function sendSigterm(pids: readonly number[]): void {
  for (const pid of pids) signalOne(pid, 'SIGTERM');
}

/**
 * Kills all processes of a container and the engine's process that supervises it (shim), even if the engine has lost track of
 * them. They are recognised by the container's id in their control group or arguments.
 * @throws Error when processes survive SIGKILL
 */
export async function killContainerProcesses(containerId: string): Promise<void> {
  for (const deadline = Date.now() + KILL_TIMEOUT_MS; ; await delay(20)) {
    const found = listPids().filter(
      (pid) =>
        (procFileContains(pid, 'cgroup', containerId) ||
          procFileContains(pid, 'cmdline', containerId)) &&
        !isDead(pid),
    );
    if (found.length === 0) return;
    if (Date.now() > deadline)
      throw new Error(`Processes of container ${containerId} survived SIGKILL: ${found}`);
    for (const pid of found) signalOne(pid, 'SIGKILL');
  }
}

/** A zombie counts as dead, because its parent may reap it late. */
function isDead(pid: number): boolean {
  return ['Z', 'X', ''].includes(readProcessStat(pid)?.state ?? '');
}

/** Whether the text is in a file of the process in /proc, which is not readable for every process. */
export function procFileContains(pid: number, file: 'cgroup' | 'cmdline', text: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(text);
  } catch {
    return false;
  }
}
