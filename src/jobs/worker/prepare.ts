/** What comes before the start: the checkout and the environment. */
import { AppError } from '../../base/errors.ts';
import { diskRoom } from '../../base/hardware.ts';
import { isDatabaseAway } from '../../platform/database/outage.ts';
import {
  type AttemptSpec,
  type Handle,
  type Outcome,
  RunnerAway,
  Unstartable,
} from '../../runners/runner.ts';
import { printable } from '../logs/cap.ts';
import type { Secrets } from '../secrets.ts';
import { MAX_PROGRESS, PHASES } from '../state.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { isPassing } from './retry.ts';

/**
 * Makes the place for the work. Its handle is stored with the move to `running`, before anything of the work begins; a place
 * whose handle was not stored is made anew.
 * @throws what passes by itself, so that it is tried again; all else is the outcome of the attempt
 */
export async function prepare(
  deps: Deps,
  attempt: Attempt,
  secrets: Secrets,
  ended: AbortSignal,
): Promise<{ handle: Handle } | { outcome: Outcome }> {
  if (ended.aborted) return { outcome: { kind: 'lost' } };
  const { runner, log } = deps;
  const { id, job } = attempt;
  await using progress = openProgress(deps, attempt);
  try {
    return { handle: await runner.prepare(specOf(deps, attempt, secrets, progress), ended) };
  } catch (error) {
    if (ended.aborted) return { outcome: { kind: 'lost' } };
    if (isDatabaseAway(error) || isPassing(error)) {
      if (error instanceof RunnerAway) progress.say(PHASES.away);
      // What was made so far may be what fills the disk.
      await runner
        .remove({ attempt: id })
        .catch((cause) => log.error({ err: cause, job: job.id }, 'a failed start was not removed'));
      throw error;
    }
    const expected = error instanceof Unstartable || error instanceof AppError;
    if (!expected) log.error({ err: error, job: job.id }, 'a job could not be prepared');
    const what = job.repo ? 'The repository could not be cloned' : 'The job could not be prepared';
    const reason = expected ? error.message : `${what}. The server's log says why.`;
    return { outcome: { kind: 'unstartable', reason } };
  }
}

function specOf(
  deps: Deps,
  { id, machine, number, job, hasLargeFiles }: Attempt,
  secrets: Secrets,
  { say }: Progress,
): AttemptSpec {
  const { repositoryId, commitSha, outputPath, gpu, gpuCount, cpu, memoryGb } = job;
  const source = job.repo === null ? null : { repositoryId, commitSha };
  return {
    id,
    machine,
    command: job.command,
    image: job.image,
    hardware: job,
    timeoutMs: job.timeoutMinutes * 60_000,
    log: printable(deps, job),
    report: say,
    env: {
      ...(job.env as Record<string, string>),
      ...secrets,
      JOB_ID: job.id,
      JOB_NAME: job.name,
      JOB_NAMESPACE: job.namespace.name,
      JOB_ATTEMPT: String(number),
      JOB_COMMIT_SHA: commitSha ?? '',
      JOB_OUTPUT_PATH: outputPath ?? '',
      GPU_COUNT: String(gpu === 'none' ? 0 : gpuCount),
      CPU_CORES: String(cpu),
      MEMORY_GB: String(memoryGb),
      CI: 'true',
    },
    checkout:
      source &&
      (async (dir, signal) => {
        const { repositoryId, commitSha } = source;
        if (!repositoryId || !commitSha)
          throw new Unstartable(`The repository ${job.repo} is gone`);
        const asked = diskRoom(job.diskGb);
        const { room } = deps.space;
        // What was said last may be of its image.
        say(PHASES.cloning);
        const what = { repositoryId, commitSha, hasLargeFiles, dir };
        await deps.checkout({ attemptId: id, ...what, signal, room, ...asked });
      }),
  };
}

/** Null when they cannot be opened: the key is another, or they were changed. */
export function openSecrets({ secretBox, log }: Deps, { job }: Attempt): Secrets | null {
  try {
    return job.secrets ? secretBox.open(job.id, job.secrets) : {};
  } catch (error) {
    log.error({ err: error, job: job.id }, 'the secrets of a job cannot be opened');
    return null;
  }
}

/** What `progress` says of a job that is being prepared: how far its image is, then its checkout. */
type Progress = AsyncDisposable & {
  /** Written soon; of several that come meanwhile, the last. */
  say(text: string): void;
};

/** Disposed, it has written the last word, or has failed to: nothing depends on it, and it holds nothing up. */
function openProgress({ db, log }: Deps, { id, job }: Attempt): Progress {
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
