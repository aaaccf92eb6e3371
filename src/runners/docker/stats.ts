/** What a container uses at this moment. */
import type { CpuSample } from '../cpu-share.ts';
import { type Engine, isStatus } from './engine.ts';

type Sample = CpuSample & { memoryBytes: number };

type Answer = {
  read?: string;
  cpu_stats?: { cpu_usage?: { total_usage?: number } };
  memory_stats?: { usage?: number; stats?: Record<string, number> };
};

/**
 * Null when it does not run. One answer, at once: a stream of them would be one a second, and an answer that the
 * engine compares with one before takes it two seconds.
 */
export async function sampleOf(engine: Engine, container: string): Promise<Sample | null> {
  let answer: Answer;
  try {
    answer = (await engine.call((docker) =>
      docker
        .getContainer(container)
        .stats({ stream: false, 'one-shot': true } as unknown as { stream: false }),
    )) as Answer;
  } catch (error) {
    if (isStatus(error, 404, 409)) return null;
    throw error;
  }
  const usage = answer.memory_stats?.usage;
  if (usage === undefined) return null;
  const stats = answer.memory_stats?.stats ?? {};
  // Files that the kernel would give back at once; version 1 and version 2 of control groups.
  const cache = stats.total_inactive_file ?? stats.inactive_file ?? 0;
  return {
    at: Date.parse(answer.read ?? '') || Date.now(),
    cpuSeconds: (answer.cpu_stats?.cpu_usage?.total_usage ?? 0) / 1e9,
    memoryBytes: Math.max(0, usage - cache),
  };
}
