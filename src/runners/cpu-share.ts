/** Computes the CPU use of attempts from successive samples. */

/** `at`: epoch milliseconds; `cpuSeconds`: CPU time on all vCPUs since the start. */
export type CpuSample = { at: number; cpuSeconds: number };

/** Keeps the last sample of each attempt to compare it with the next. */
export class CpuShares {
  readonly #last = new Map<string, CpuSample>();

  /**
   * Returns the percentage of `cpus` that was used since the last sample of the attempt.
   * @param startedAt start of the attempt, used for the first sample
   */
  percentOf(attempt: string, sample: CpuSample, startedAt: number, cpus: number): number {
    const before = this.#last.get(attempt) ?? { at: startedAt, cpuSeconds: 0 };
    this.#last.set(attempt, sample);
    const seconds = Math.max(0.001, (sample.at - before.at) / 1_000);
    return ((sample.cpuSeconds - before.cpuSeconds) / seconds / cpus) * 100;
  }

  forget(attempt: string): void {
    this.#last.delete(attempt);
  }
}
