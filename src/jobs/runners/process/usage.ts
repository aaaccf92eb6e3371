/** What a process tree uses, from /proc; GPUs from nvidia-smi. Linux alone: elsewhere there is nothing to read. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { proportionalMemory } from './memory.ts';
import { descendants, statOf } from './proc.ts';

const run = promisify(execFile);

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

export type TreeUsage = { cpuSeconds: number; memoryBytes: number };

/** Of `root` and all below it; null when it is gone. */
export function usageOfTree(root: number): TreeUsage | null {
  if (!statOf(root)) return null;
  let ticks = 0;
  let memoryBytes = 0;
  for (const pid of [root, ...descendants(root)]) {
    const fields = statOf(pid)?.fields;
    if (!fields) continue;
    // Fields 14 to 17: own user and system time, and that of children that were waited for, so that
    // each second is counted once whether the process that used it is alive or over.
    for (const field of fields.slice(11, 15)) ticks += Number(field);
    memoryBytes += proportionalMemory(pid);
  }
  return { cpuSeconds: ticks / TICKS_PER_SECOND, memoryBytes };
}

/** As nvidia-smi names them → our models. */
const MODELS: [RegExp, string][] = [
  [/A100.*40GB/i, 'A100-40GB'],
  [/A100.*80GB/i, 'A100-80GB'],
  [/H100/i, 'H100-80GB'],
  [/\bL4\b/i, 'L4'],
  [/\bT4\b/i, 'T4'],
];

export type GpuInfo = { index: number; model: string; percent: number };

/** The GPUs of this machine that we have a name for; none where there is no nvidia-smi. */
export async function listGpus(): Promise<GpuInfo[]> {
  try {
    const query = '--query-gpu=index,name,utilization.gpu';
    const { stdout } = await run('nvidia-smi', [query, '--format=csv,noheader,nounits'], {
      timeout: 10_000,
    });
    return stdout
      .trim()
      .split('\n')
      .flatMap((line) => {
        const [index, name = '', percent] = line.split(',').map((part) => part.trim());
        const model = MODELS.find(([pattern]) => pattern.test(name))?.[1];
        return model ? [{ index: Number(index), model, percent: Number(percent) || 0 }] : [];
      });
  } catch {
    return [];
  }
}
