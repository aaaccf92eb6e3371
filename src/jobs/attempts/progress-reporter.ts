/**
 * Writes the `progress` of a job that has an attempt but does not run yet: the download of its image, its checkout, and the
 * reason why a cluster has not started it.
 */
import { toProgress } from '../record/state.ts';
import type { Attempt, Deps } from './attempt-row.ts';

export type ProgressReporter = AsyncDisposable & {
  /** Writes a text in the background. Of the texts that arrive during a write, only the last is written. */
  report(text: string): void;
};

/** Disposing of it waits for the last write. A failed write is only logged, so that it does not delay the job. */
export function createProgressReporter({ db, log }: Deps, { id, job }: Attempt): ProgressReporter {
  let next: string | undefined;
  let last = job.progress;
  let writing: Promise<void> | undefined;

  async function write(): Promise<void> {
    while (next !== undefined) {
      const progress = next;
      next = undefined;
      // If the job was cancelled in the meantime, its progress must stay `cancelled`.
      await db.job.updateMany({
        where: { id: job.id, attemptId: id, status: 'queued' },
        data: { progress },
      });
    }
  }

  return {
    report(text) {
      const progress = toProgress(text);
      if (progress === last) return;
      last = progress;
      next = progress;
      writing ??= write()
        .catch((error) => log.warn({ err: error, job: job.id }, 'Cannot write the progress'))
        .finally(() => {
          writing = undefined;
        });
    },
    async [Symbol.asyncDispose]() {
      await writing;
    },
  };
}
