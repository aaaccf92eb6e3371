/** Runs the same work against two servers in turns, and measures the CPU time of all processes of each. */
import type { Account } from './process.ts';
import { median, time } from './repository.ts';

const WARM_UP = 20;

export type Sample = { ms: number; cpu: number };

/** Prints the median times, the average CPU times, and their ratios. */
export function show(what: string, ours: readonly Sample[], theirs: readonly Sample[]): void {
  const of = (samples: readonly Sample[], key: keyof Sample) =>
    median(samples.map((one) => one[key]));
  const sum = (samples: readonly Sample[]) =>
    samples.reduce((all, { cpu }) => all + cpu, 0) / samples.length;
  const [ms, theirMs] = [of(ours, 'ms'), of(theirs, 'ms')];
  const [cpu, theirCpu] = [sum(ours) * 1_000, sum(theirs) * 1_000];
  console.log(
    `${what}: ${ms.toFixed(0)} ms against ${theirMs.toFixed(0)}, ${(ms / theirMs).toFixed(2)}×; ` +
      `CPU ${cpu.toFixed(1)} ms against ${theirCpu.toFixed(1)}, ${(cpu / theirCpu).toFixed(2)}×`,
  );
}

export type Side = { account: Account; url: string; samples: Sample[] };

/** Runs alternating rounds of both, after a warm-up that does not count. */
export async function alternate(
  sides: readonly [Side, Side],
  { rounds, warmUp = WARM_UP }: { rounds: number; warmUp?: number },
  work: (url: string, round: number) => Promise<unknown>,
): Promise<void> {
  for (let round = -warmUp; round < rounds; round++)
    for (const { account, url, samples } of sides) {
      const before = await account.seconds();
      const ms = await time(() => work(url, round));
      // Waits, so that work after the response counts too.
      await new Promise((resolve) => setTimeout(resolve, round < 0 ? 0 : 150));
      if (round >= 0) samples.push({ ms, cpu: (await account.seconds()) - before });
    }
}
