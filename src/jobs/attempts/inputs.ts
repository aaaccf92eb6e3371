/** Copies the inputs of a job into the working directory of an attempt. */
import { diskLimits } from '../../base/hardware.ts';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { MAX_OUTPUT_ENTRIES, Unstartable } from '../../runners/runner.ts';
import { CannotExtract, extractArtifacts, InputFolder } from '../artifacts/extract.ts';
import type { ArtifactKey } from '../artifacts/store.ts';
import { isOver } from '../record/state.ts';
import { type JobInput, readInputs } from '../requests/inputs.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { isTransient } from './retry.ts';

/** The copies are made in this thread, about ten thousand a second. */
const MAX_ENTRIES = 2 * MAX_OUTPUT_ENTRIES;

/**
 * @param target.bytes what the checkout in the folder takes on disk
 * @throws Unstartable with a reason for the user of the job; transient errors
 */
export async function copyInputs(
  deps: Pick<Deps, 'db' | 'storage' | 'space' | 'log'>,
  job: Pick<Attempt['job'], 'id' | 'inputs' | 'namespaceId' | 'diskGb'>,
  { dir, bytes }: { dir: string; bytes: number },
  signal: AbortSignal,
): Promise<void> {
  const limits = diskLimits(job.diskGb);
  const folder = new InputFolder(dir, {
    maxBytes: Math.min(limits.maxBytes - bytes, deps.space.room),
    maxEntries: Math.min(limits.maxFiles, MAX_ENTRIES),
  });
  for (const input of readInputs(job)) {
    const key = await findArtifacts(deps, job.namespaceId, input);
    if (!key) continue;
    await extractArtifacts(deps, key, input, folder, signal).catch((error) => {
      if (signal.aborted || isDatabaseUnavailable(error) || isTransient(error)) throw error;
      const isExpected = error instanceof CannotExtract;
      if (!isExpected) deps.log.error({ err: error, job: job.id }, 'Cannot copy an input');
      const reason = isExpected ? error.message : 'they cannot be read. See the log of the server.';
      throw new Unstartable(`The artifacts of ${input.job} could not be copied: ${reason}`);
    });
  }
}

/**
 * Finds the artifacts of a job, also after it was deleted without them.
 * @returns null if a job of an array that is an input as a whole has none
 * @throws Unstartable
 */
async function findArtifacts(
  { db }: Pick<Deps, 'db'>,
  namespaceId: string,
  { jobId, job: name, array }: JobInput,
): Promise<ArtifactKey | null> {
  const job = await db.job.findFirst({
    where: jobId === null ? { namespaceId, name } : { id: jobId },
    select: { id: true, status: true, artifactBytes: true, artifactsOf: true },
  });
  if (job && !isOver(job.status))
    throw new Unstartable(
      `The artifacts of ${name} are inputs, and it has not ended. Use needs to wait for it.`,
    );
  if (job?.artifactBytes === null && array) return null;
  if (job?.artifactBytes === null)
    throw new Unstartable(`The artifacts of ${name} are inputs, and it left none`);
  const owner =
    job ??
    (jobId &&
      (await db.keptArtifacts.findUnique({
        where: { id: jobId, removing: false },
        select: { id: true, artifactsOf: true },
      })));
  if (!owner && array) return null;
  if (!owner) throw new Unstartable(`The artifacts of ${name} are inputs, and were deleted`);
  return { namespaceId, jobId: owner.id, attemptId: owner.artifactsOf };
}
