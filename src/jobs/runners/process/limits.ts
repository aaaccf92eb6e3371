/**
 * What an attempt may use: what was asked for, and no more than this machine has.
 *
 * Control groups hold the whole job to it. Where there are none, the kernel's limits for single processes are
 * what is left, and the shim looks at the sum of their memory every second (`memory.ts`).
 */
import { availableParallelism, totalmem } from 'node:os';
import { diskRoom, type Hardware } from '../../hardware.ts';
import type { Cgroups, Controller } from './cgroups.ts';
import { recently } from './recently.ts';

export type Limits = {
  memoryBytes: number;
  /** Of all jobs of this machine together. */
  allJobsMemoryBytes: number;
  cpus: number;
  /** With their threads. */
  processes: number;
  diskBytes: number;
  files: number;
};

const GIB = 2 ** 30;
/** Of the machine's memory; the rest is for this server, its database and the kernel. */
const SHARE_OF_JOBS = 0.9;
/** A program with a thread for each of 96 vCPUs in each of 30 processes needs 3,000. */
const PROCESSES = 4_096;
const PROCESSES_PER_CPU = 256;
/** Of one process. Node, PostgreSQL and the like ask for 65,536 at most. */
const OPEN_FILES = 65_536;

/**
 * Without a control group a process may have this much more memory that it can write to than its job may use,
 * because it asks for more than it uses: Node wants 512 MiB for code, each thread 8 MiB for its stack. The limit
 * is for what grows between two looks at the sum. Not of its address space (`-v`): Go, Java and CUDA reserve a
 * hundred times of what they use.
 */
const UNUSED_BYTES = 4 * GIB;

/** On this machine, or on another. The GB of the contract are GiB here, as everywhere in this project. */
export function limitsOf(
  { cpu, memoryGb, diskGb }: Hardware,
  { cpus, memoryBytes: allJobsMemoryBytes } = thisMachine(),
): Limits {
  const { maxBytes, maxFiles } = diskRoom(diskGb);
  return {
    memoryBytes: Math.min(memoryGb * GIB, allJobsMemoryBytes),
    allJobsMemoryBytes,
    cpus: Math.min(cpu, cpus),
    processes: Math.max(PROCESSES, PROCESSES_PER_CPU * cpu),
    diskBytes: maxBytes,
    files: maxFiles,
  };
}

type Machine = { cpus: number; memoryBytes: number };

/** A container may be given more or less while it runs. To look takes four files, and every job asks. */
const LOOK_MS = 1_000;

/** What this machine, or the container that we are in, has for all jobs together. */
export const thisMachine = recently(LOOK_MS, lookAtMachine);

function lookAtMachine(): Machine {
  // 0 or a number beyond all machines: not constrained.
  const constrained = process.constrainedMemory() || totalmem();
  const memoryBytes = Math.floor(Math.min(constrained, totalmem()) * SHARE_OF_JOBS);
  return { cpus: availableParallelism(), memoryBytes };
}

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
