/** How busy the vCPUs of attempts are, from what they have used by each sample. */

/** `at`: epoch milliseconds; `cpuSeconds`: since the start, of all vCPUs. */
export type CpuSample = { at: number; cpuSeconds: number };

/** The last sample of each attempt, to be compared with the next. */
export class CpuShares {
  readonly #last = new Map<string, CpuSample>();

  /**
   * Percent of `cpus` since the last sample of the attempt.
   * @param startedAt when it began to use them, for the first sample
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
