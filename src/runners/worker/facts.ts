/** What this machine has, and how busy it is. */
import { readFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, freemem, hostname, platform, totalmem } from 'node:os';
import type { Gpu } from '../gpus/gpu.ts';
import { listGpus, measureLoad } from '../gpus/gpus.ts';
import type { MachineFacts, MachineReport } from '../machines/protocol.ts';
import { LOCAL_MACHINE, type Runner } from '../runner.ts';
import { memoizeTtl } from '../supervisor/memoize-ttl.ts';

/** The fewest jobs that a machine may run at once, as of `LOAM_JOB_SLOTS` of a server. */
const MIN_SLOTS = 4;

/**
 * They change while the container engine does not answer.
 * @param program version of this program
 */
export function findFacts(
  runner: Runner,
  { gpus, program, slots }: { gpus: readonly Gpu[]; program: string; slots?: number | undefined },
): MachineFacts {
  const { machines, hasUnavailableEngine = false, warning } = runner;
  const machine = machines.find(({ id }) => id === LOCAL_MACHINE);
  // The machine is not listed while an engine that runs all jobs does not answer.
  const total = machine?.cpus ?? availableParallelism();
  const notes = [
    ...(warning ? [warning] : []),
    ...(hasUnavailableEngine
      ? ['Jobs with an image wait: the container engine does not answer.']
      : machine?.withImage === false
        ? ['It runs no jobs with an image: no container engine answers here.']
        : []),
    ...(machine?.withoutImage === false ? ['It runs jobs with an image only.'] : []),
  ];
  return {
    hostname: hostname(),
    os: platform(),
    arch: arch(),
    node: process.versions.node,
    program,
    cpus: total,
    memoryBytes: machine?.memoryBytes ?? totalmem(),
    gpus: gpus.map(({ index, name, profile, uuid, memoryGb }) => ({
      index,
      name,
      profile,
      uuid,
      memoryBytes: (memoryGb ?? 0) * 2 ** 30,
    })),
    withImage: hasUnavailableEngine || (machine?.withImage ?? false),
    withoutImage: machine?.withoutImage ?? hasUnavailableEngine,
    ...(machine?.volumes?.length && { volumes: [...machine.volumes] }),
    slots: slots ?? Math.max(MIN_SLOTS, gpus.length, Math.ceil(total / 2)),
    notes: notes.map((note) => note.slice(0, 500)),
  };
}

type CpuTimes = { busy: number; all: number };

/** The least time between two measurements: a machine reports each change of its attempts, too. */
const LOAD_MS = 10_000;

/** Measures the load since the last measurement. */
export function createLoadMeter(): () => Promise<MachineReport['load']> {
  let before = readCpuTimes();
  const gpus = listGpus();
  // The tools that measure them take a tenth of a second of CPU.
  return memoizeTtl(LOAD_MS, async () => {
    const now = readCpuTimes();
    const share = (now.busy - before.busy) / Math.max(1, now.all - before.all);
    before = now;
    return {
      cpuPercent: Math.min(100, Math.max(0, 100 * share)),
      memoryBytes: totalmem() - readAvailableMemory(),
      gpuPercent: await measureLoad(await gpus),
    };
  });
}

function readCpuTimes(): CpuTimes {
  let all = 0;
  let idle = 0;
  for (const { times } of cpus()) {
    all += Object.values(times).reduce((sum, time) => sum + time, 0);
    idle += times.idle;
  }
  return { busy: all - idle, all };
}

/** Memory that programs can get, in bytes. `freemem` does not count the page cache. */
function readAvailableMemory(): number {
  try {
    const kib = /^MemAvailable:\s+(\d+) kB/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1];
    if (kib) return Number(kib) * 1024;
  } catch {}
  return freemem();
}
