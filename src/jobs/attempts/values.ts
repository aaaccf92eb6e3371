/**
 * The environment variables and secrets of an attempt: those of its job, and the stored ones that the job names.
 *
 * Stored values are read once for each attempt, before its start, so that a changed secret is used by the next attempt. They are
 * kept encrypted with the attempt until it ends, because after a restart its log must be masked with the same values.
 */
import { sourceRef } from '../../repositories/repositories.ts';
import { type JobOrigin, type JobValues, readValues } from '../../repositories/secrets/secrets.ts';
import { readNeededOutputs } from '../outputs/outputs.ts';
import type { Secrets } from '../record/secret-box.ts';
import type { Attempt, Deps } from './attempt-row.ts';

const UNREADABLE =
  'The secrets of the job cannot be decrypted: the server does not have the key that encrypted them';

/** @returns the reason if the attempt cannot go on without them: neither start, nor store lines of its log unmasked */
export async function readAttemptValues(
  deps: Deps,
  attempt: Attempt,
): Promise<JobValues | { problem: string }> {
  const { job } = attempt;
  const { secretBox, log } = deps;
  let own: JobValues;
  let given: JobValues | null;
  try {
    const secrets = job.secrets ? secretBox.open<Secrets>(job.id, job.secrets) : {};
    own = { env: job.env as Record<string, string>, secrets };
    given = attempt.givenValues && secretBox.open<JobValues>(attempt.id, attempt.givenValues);
  } catch (error) {
    log.error({ err: error, job: job.id }, 'Cannot decrypt the secrets of the job');
    return { problem: UNREADABLE };
  }
  if (!given) {
    const read = await readValues(deps, { ...job, origin: originOf(job), names: job, own });
    if ('problem' in read) return read;
    given = read;
    await storeGiven(deps, attempt.id, given);
  }
  const needed = await readNeededOutputs(deps, job);
  if ('problem' in needed) return needed;
  return {
    env: { ...needed.env, ...own.env, ...given.env },
    secrets: { ...own.secrets, ...given.secrets },
  };
}

function originOf(job: Attempt['job']): JobOrigin {
  const { namespaceId, repositoryId } = job;
  return { namespaceId, repositoryId, ref: sourceRef(job) };
}

/** If the attempt was taken for lost meanwhile, nothing is stored, and the attempt does not start. */
async function storeGiven(
  { pool, secretBox }: Deps,
  attemptId: string,
  given: JobValues,
): Promise<void> {
  if (Object.keys(given.env).length + Object.keys(given.secrets).length === 0) return;
  await pool.query({
    name: 'loam-given-values',
    text: 'update job_attempts set given_values = $2 where id = $1 and ended_at is null',
    values: [attemptId, secretBox.seal(attemptId, given)],
  });
}
