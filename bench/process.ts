/** Measures the CPU time and the memory of processes. */
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

/** In bytes. */
export async function residentOf(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1]) * 1024;
}

/** The CPU time since the start of the process, including kernel time. */
export async function cpuSecondsOf(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** As `cpuSecondsOf`, for the process and its children, including those that have ended. */
export async function cpuSecondsOfAll(pid: number): Promise<number> {
  let seconds = 0;
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => null);
    if (!stat) continue;
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    if (Number(name) !== pid && Number(fields[1]) !== pid) continue;
    const own = Number(fields[11]) + Number(fields[12]);
    const ended = Number(name) === pid ? Number(fields[13]) + Number(fields[14]) : 0;
    seconds += (own + ended) / 100;
  }
  return seconds;
}

export type Watched = {
  seconds: number;
  /** The CPU time of the process without its children. */
  cpuSeconds: number;
  /** Resident memory before the work, and its maximum during the work, in bytes. */
  before: number;
  peak: number;
};

/** The CPU time and the memory that `work` takes in a process. Memory is read every 20 ms. */
export async function watch(pid: number, work: () => Promise<unknown>): Promise<Watched> {
  const before = await residentOf(pid);
  const cpu = await cpuSecondsOf(pid);
  let peak = before;
  let going = true;
  const watching = (async () => {
    while (going) {
      peak = Math.max(peak, await residentOf(pid));
      await delay(20);
    }
  })();
  const start = performance.now();
  await work().finally(() => {
    going = false;
  });
  const seconds = (performance.now() - start) / 1_000;
  await watching;
  return { seconds, cpuSeconds: (await cpuSecondsOf(pid)) - cpu, before, peak };
}

/** The CPU time of processes and all their descendants, with microsecond precision. */
export type Account = AsyncDisposable & {
  seconds(): Promise<number>;
  /** The beginning of a command line that starts a program in the account. */
  wrapper: string[];
};

/**
 * Accounts a process with all its descendants. Needs root, and control groups v1 or v2.
 * @param root unset: what is started by `wrapper`, with the groups that it creates below its own
 */
export async function openAccount(name: string, root?: number): Promise<Account> {
  const isFirst = (await readdir('/sys/fs/cgroup')).includes('cpuacct');
  const folder = join('/sys/fs/cgroup', isFirst ? 'cpuacct' : '', `loam-${name}-${process.pid}`);
  await mkdir(folder);
  const procs = join(folder, 'cgroup.procs');
  for (const pid of root === undefined ? [] : await treeOf(root)) await writeFile(procs, `${pid}`);
  return {
    wrapper: ['sh', '-c', 'echo $$ >"$0" && exec "$@"', procs],
    async seconds() {
      if (isFirst) return Number(await readFile(join(folder, 'cpuacct.usage'), 'utf8')) / 1e9;
      const text = await readFile(join(folder, 'cpu.stat'), 'utf8');
      return Number(/^usage_usec (\d+)$/m.exec(text)?.[1]) / 1e6;
    },
    async [Symbol.asyncDispose]() {
      // Fails while a process is in the group, such as the server, which ends last.
      await rmdir(folder).catch(() => {});
    },
  };
}

/** A process and all its descendants. */
async function treeOf(root: number): Promise<number[]> {
  const parents = new Map<number, number>();
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => null);
    if (stat)
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
  }
  return [...parents.keys()].filter((pid) => {
    let at: number | undefined = pid;
    while (at !== undefined && at !== root) at = parents.get(at);
    return at === root;
  });
}
