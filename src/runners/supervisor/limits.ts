/** Computes the limits of an attempt: the resources that its job requests, up to the capacity of the machine. */
import { availableParallelism, totalmem } from 'node:os';
import { diskLimits, type Hardware } from '../../base/hardware.ts';
import { memoizeTtl } from './memoize-ttl.ts';

export type JobLimits = {
  memoryBytes: number;
  /** Limit of all jobs on the machine together. */
  allJobsMemoryBytes: number;
  cpus: number;
  /** Includes threads. */
  processes: number;
  diskBytes: number;
  files: number;
};

const GIB = 2 ** 30;
/** The share of memory for jobs. The rest is for this server, its database and the kernel. */
const JOBS_MEMORY_SHARE = 0.9;
/** Enough for 30 processes with a thread for each of 96 vCPUs, which is about 3,000. */
const PROCESSES = 4_096;
const PROCESSES_PER_CPU = 256;

/** The second argument is the capacity of the machine; default: this machine. A GB of the API is a GiB. */
export function computeLimits(
  { cpu, memoryGb, diskGb }: Hardware,
  { cpus, memoryBytes: allJobsMemoryBytes } = readMachineCapacity(),
): JobLimits {
  const { maxBytes, maxFiles } = diskLimits(diskGb);
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

/** The limits of the server's container may change while it runs. Reading them for each job would read four files. */
const MACHINE_TTL_MS = 1_000;

/** Reads the CPUs and memory that this machine, or the server's container, has for all jobs together. */
export const readMachineCapacity = memoizeTtl(MACHINE_TTL_MS, readMachine);

function readMachine(): Machine {
  // Without a limit `constrainedMemory` is 0, or a number larger than any memory.
  const constrained = process.constrainedMemory() || totalmem();
  const memoryBytes = Math.floor(Math.min(constrained, totalmem()) * JOBS_MEMORY_SHARE);
  return { cpus: availableParallelism(), memoryBytes };
}
