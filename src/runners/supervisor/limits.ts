/** What an attempt may use: what was asked for, and no more than this machine has. */
import { availableParallelism, totalmem } from 'node:os';
import { diskLimits, type Hardware } from '../../base/hardware.ts';
import { memoizeTtl } from './memoize-ttl.ts';

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

/** On this machine, or on another. The GB of the contract are GiB here, as everywhere in this project. */
export function limitsOf(
  { cpu, memoryGb, diskGb }: Hardware,
  { cpus, memoryBytes: allJobsMemoryBytes } = thisMachine(),
): Limits {
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

/** A container may be given more or less while it runs. To look takes four files, and every job asks. */
const LOOK_MS = 1_000;

/** What this machine, or the container that we are in, has for all jobs together. */
export const thisMachine = memoizeTtl(LOOK_MS, lookAtMachine);

function lookAtMachine(): Machine {
  // 0 or a number beyond all machines: not constrained.
  const constrained = process.constrainedMemory() || totalmem();
  const memoryBytes = Math.floor(Math.min(constrained, totalmem()) * SHARE_OF_JOBS);
  return { cpus: availableParallelism(), memoryBytes };
}
