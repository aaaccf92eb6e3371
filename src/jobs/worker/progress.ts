/** What `progress` says of a job that is being prepared: how far its image is, then its checkout. */
import { MAX_PROGRESS } from '../state.ts';
import type { Attempt, Deps } from './attempt-row.ts';

export type Progress = AsyncDisposable & {
  /** Written soon; of several that come meanwhile, the last. */
  say(text: string): void;
};

/** Disposed, it has written the last word, or has failed to: nothing depends on it, and it holds nothing up. */
export function openProgress({ db, log }: Deps, { id, job }: Attempt): Progress {
  let next: string | undefined;
  /** The claim has written the first phase. */
  let last = job.progress;
  let writing: Promise<void> | undefined;

  async function write(): Promise<void> {
    while (next !== undefined) {
      const progress = next;
      next = undefined;
      // A job that was cancelled says so, whatever happens to its image.
      await db.job.updateMany({
        where: { id: job.id, attemptId: id, status: 'queued' },
        data: { progress },
      });
    }
  }

  return {
    say(text) {
      const said = text.slice(0, MAX_PROGRESS);
      if (said === last) return;
      last = said;
      next = said;
      writing ??= write()
        .catch((error) => log.warn({ err: error, job: job.id }, 'progress was not recorded'))
        .finally(() => {
          writing = undefined;
        });
    },
    async [Symbol.asyncDispose]() {
      await writing;
    },
  };
}
