/**
 * How the processes of an attempt are held to its limits.
 *
 * Control groups hold the whole job to them. Where there are none, the kernel's limits for single processes are what is
 * left, and the shim looks at the sum of their memory every second (`memory.ts`).
 */
import type { Limits } from '../supervisor/limits.ts';
import type { Cgroups, Controller } from './cgroups.ts';

/** Of one process. Node, PostgreSQL and the like ask for 65,536 at most. */
const OPEN_FILES = 65_536;

/**
 * Without a control group a process may have this much more memory that it can write to than its job may use,
 * because it asks for more than it uses: Node wants 512 MiB for code, each thread 8 MiB for its stack. The limit
 * is for what grows between two looks at the sum. Not of its address space (`-v`): Go, Java and CUDA reserve a
 * hundred times of what they use.
 */
const UNUSED_BYTES = 4 * 2 ** 30;

/**
 * Orders for the shell that becomes a job (`first-process.ts`), which bound each of its processes: it has to do that itself
 * before it starts anything.
 */
export function limitsOfProcesses(limits: Limits, controllers: readonly Controller[]): string[] {
  const script = [
    // A core file is the job's memory, secrets included, written wherever the machine's administrator says.
    'ulimit -c 0',
    // An ordinary user cannot raise it, and need not.
    `ulimit -n ${OPEN_FILES} 2>/dev/null`,
  ];
  if (!controllers.includes('pids')) {
    // The shells disagree about its letter. The kernel counts all processes of the user, ours included.
    const n = limits.processes;
    script.push(`ulimit -u ${n} 2>/dev/null || ulimit -p ${n} 2>/dev/null`);
  }
  if (!controllers.includes('memory')) {
    const kib = Math.floor((limits.memoryBytes + UNUSED_BYTES) / 1024);
    script.push(`ulimit -d ${kib} 2>/dev/null`);
  }
  return script;
}

/** For the operator, at the start: which limits hold. */
export function describeLimits(cgroups: Cgroups | { missing: string }): string {
  if ('missing' in cgroups)
    return (
      'The memory of jobs is watched every second, and each of their processes has limits of its own; ' +
      `their CPU is not limited: ${cgroups.missing}`
    );
  const { version, controllers } = cgroups;
  return `Jobs are limited by control groups (version ${version}: ${controllers.join(', ')})`;
}
