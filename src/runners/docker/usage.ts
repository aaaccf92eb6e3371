/**
 * How busy the GPUs of a container on another machine are: by the `nvidia-smi` that NVIDIA's runtime puts into each container
 * with GPUs, which lists those alone. On this machine the server's own tells all at once (`../gpu-ledger.ts`).
 *
 * What answers is of the job's image in the end, so it is given little time and little room, and what does not
 * answer in time once is asked no more: each question would leave one more process in the container.
 */
import { text } from 'node:stream/consumers';
import type { CpuSample } from '../cpu-share.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { USUAL_PATH } from './start-barrier.ts';

const ASK = ['nvidia-smi', '--query-gpu=utilization.gpu', '--format=csv,noheader,nounits'];
const ANSWER_MS = 5_000;
/** A line for each of a few GPUs. */
const MOST_BYTES = 4_096;

export type GpuUse = {
  /** Percent, on average over its GPUs; 0 where nothing tells. @throws RunnerAway */
  percentOf(container: string): Promise<number>;
  forget(container: string): void;
};

export function openGpuUse(engine: Engine): GpuUse {
  const silent = new Set<string>();
  return {
    async percentOf(container) {
      if (silent.has(container)) return 0;
      try {
        const answer = await ask(engine, container);
        if (answer === null) silent.add(container);
        return meanOf(answer ?? '');
      } catch (error) {
        // It has ended, or there is no such program.
        if (error instanceof EngineError) return 0;
        throw error;
      }
    },
    forget: (container) => void silent.delete(container),
  };
}

/** Null: it says more than it should, or nothing in time. */
async function ask(engine: Engine, container: string): Promise<string | null> {
  const { id } = await engine.call((docker) =>
    docker.getContainer(container).exec({
      Cmd: ASK,
      // Where NVIDIA's runtime puts it, whatever the job's own says.
      Env: [`PATH=${USUAL_PATH}`],
      AttachStdout: true,
      // Else what it prints is divided into frames.
      Tty: true,
    }),
  );
  const answer = await engine.stream((docker) => docker.getExec(id).start({ Tty: true }));
  const late = setTimeout(() => answer.destroy(new Error('too late')), ANSWER_MS);
  let bytes = 0;
  answer.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > MOST_BYTES) answer.destroy(new Error('too long'));
  });
  try {
    return await text(answer);
  } catch {
    return null;
  } finally {
    clearTimeout(late);
  }
}

function meanOf(answer: string): number {
  const all = answer.split('\n').flatMap((line) => /^\s*(\d{1,3})\s*$/.exec(line)?.[1] ?? []);
  const sum = all.reduce((total, percent) => total + Math.min(100, Number(percent)), 0);
  return sum / Math.max(1, all.length);
}

/** What a container uses at this moment. */
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
