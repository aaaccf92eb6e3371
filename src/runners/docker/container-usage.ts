/**
 * Resource usage of a container: CPU and memory from the engine, GPU utilization on a remote machine from `nvidia-smi` in
 * the container.
 *
 * NVIDIA's runtime puts `nvidia-smi` into each container with GPUs, where it lists only the container's own GPUs. On this
 * machine one call of the server's `nvidia-smi` reports all GPUs (`../gpus/ledger.ts`).
 */
import { text } from 'node:stream/consumers';
import { DEFAULT_PATH } from '../container/wrapper.ts';
import type { CpuSample } from '../cpu-share.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';

const QUERY = ['nvidia-smi', '--query-gpu=utilization.gpu', '--format=csv,noheader,nounits'];
const ANSWER_TIMEOUT_MS = 5_000;
/** Enough for one line for each of a few GPUs. */
const MAX_ANSWER_BYTES = 4_096;

export type GpuUtilization = {
  /**
   * Average utilization of the container's GPUs in percent; null where `nvidia-smi` is missing or fails.
   * @throws RunnerUnavailable
   */
  percentOf(container: string): Promise<number | null>;
  forget(container: string): void;
};

/**
 * The program runs in the job's container, so its time and output are limited. After a call that exceeded a limit the program
 * is not run in that container again, because each call would leave one more process in it.
 */
export function openGpuUtilization(engine: Engine): GpuUtilization {
  const excluded = new Set<string>();
  return {
    async percentOf(container) {
      if (excluded.has(container)) return null;
      try {
        const answer = await runNvidiaSmi(engine, container);
        if (answer === null) excluded.add(container);
        return averagePercents(answer ?? '');
      } catch (error) {
        // The container has ended, or has no such program.
        if (error instanceof EngineError) return null;
        throw error;
      }
    },
    forget: (container) => void excluded.delete(container),
  };
}

/** @returns null when the program exceeds a limit */
async function runNvidiaSmi(engine: Engine, container: string): Promise<string | null> {
  const { id } = await engine.call((docker) =>
    docker.getContainer(container).exec({
      Cmd: QUERY,
      // The folder that NVIDIA's runtime uses, whatever the job's own PATH is.
      Env: [`PATH=${DEFAULT_PATH}`],
      AttachStdout: true,
      // Without a terminal the output would be divided into frames.
      Tty: true,
    }),
  );
  const answer = await engine.stream((docker) => docker.getExec(id).start({ Tty: true }));
  const timer = setTimeout(() => answer.destroy(new Error('too late')), ANSWER_TIMEOUT_MS);
  let bytes = 0;
  answer.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > MAX_ANSWER_BYTES) answer.destroy(new Error('too long'));
  });
  try {
    return await text(answer);
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
  }
}

function averagePercents(answer: string): number | null {
  const percents = answer.split('\n').flatMap((line) => /^\s*(\d{1,3})\s*$/.exec(line)?.[1] ?? []);
  if (percents.length === 0) return null;
  const sum = percents.reduce((total, percent) => total + Math.min(100, Number(percent)), 0);
  return sum / percents.length;
}

type UsageSample = CpuSample & { memoryBytes: number };

type StatsResponse = {
  read?: string;
  cpu_stats?: { cpu_usage?: { total_usage?: number } };
  memory_stats?: { usage?: number; stats?: Record<string, number> };
};

/**
 * Reads one sample with `one-shot`: a stream would send one sample per second, and a single sample that includes the
 * previous one takes the engine two seconds.
 * @returns null when the container does not run
 */
export async function readUsageSample(
  engine: Engine,
  container: string,
): Promise<UsageSample | null> {
  let response: StatsResponse;
  try {
    response = (await engine.call((docker) =>
      docker
        .getContainer(container)
        .stats({ stream: false, 'one-shot': true } as unknown as { stream: false }),
    )) as StatsResponse;
  } catch (error) {
    if (isStatus(error, 404, 409)) return null;
    throw error;
  }
  const usage = response.memory_stats?.usage;
  if (usage === undefined) return null;
  const stats = response.memory_stats?.stats ?? {};
  // Cached files that the kernel would free at once; named differently in versions 1 and 2 of control groups.
  const cache = stats.total_inactive_file ?? stats.inactive_file ?? 0;
  return {
    at: Date.parse(response.read ?? '') || Date.now(),
    cpuSeconds: (response.cpu_stats?.cpu_usage?.total_usage ?? 0) / 1e9,
    memoryBytes: Math.max(0, usage - cache),
  };
}
