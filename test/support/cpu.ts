/**
 * Under `LOAM_TEST_CPU=10`, measures what each test file costs in CPU seconds, which depend little on the load of the machine.
 * The reporter (`summary.ts`) prints the ten costliest.
 */
import { readFileSync } from 'node:fs';
import { afterAll } from 'vitest';
import { listMarked, markOfRun, markWorker } from './leftovers.ts';

declare module 'vitest' {
  interface TaskMeta {
    cpu?: Cpu;
  }
}

/** CPU seconds of a file. */
export type Cpu = {
  /** Of its worker and of the programs that it started, without daemons that have ended: init has their time. */
  worker: number;
  /** Of PostgreSQL meanwhile, for the files of all workers. */
  postgres: number;
};

if (process.env.LOAM_TEST_CPU) {
  const workerMark = markWorker();
  const before = measure(workerMark);
  // Of the setup files this one is the first, so this hook is the last of the file.
  // biome-ignore lint/correctness/noEmptyPattern: Vitest demands a pattern.
  afterAll(({}, file) => {
    const after = measure(workerMark);
    file.meta.cpu = {
      worker: after.worker - before.worker,
      postgres: after.postgres - before.postgres,
    };
  });
}

function measure(workerMark: number | null): Cpu {
  if (workerMark === null) throw new Error('LOAM_TEST_CPU needs Linux');
  const pidsOf = (mark: number) => listMarked(mark).map(({ pid }) => pid);
  return {
    worker: secondsOf([process.pid, ...pidsOf(workerMark)]),
    postgres: secondsOf(pidsOf(markOfRun(process.ppid)).filter((pid) => pid !== process.ppid)),
  };
}

/** User and system time of processes and of their children that have ended. */
function secondsOf(pids: readonly number[]): number {
  let ticks = 0;
  for (const pid of pids) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
      const [utime, stime, cutime, cstime] = stat.slice(stat.lastIndexOf(')')).split(' ').slice(12);
      ticks += Number(utime) + Number(stime) + Number(cutime) + Number(cstime);
    } catch {
      // It has ended, and its parent has its time.
    }
  }
  // Linux shows hundredths of a second on all machines that Node supports.
  return ticks / 100;
}
