type JobEnd = { status: string; completedAt: string | null };
type AttemptEnd = {
  startedAt: string | null;
  exitedAt: string | null;
  endedAt: string | null;
  outcome: string | null;
};

/**
 * The seconds of an attempt that its job has in `runtimeSeconds`: from the start of its process to its end, or to the cancel
 * of the job, which the process outlives by up to half a minute. Null while it runs, and when none count: of a lost attempt.
 */
export function countedSeconds(job: JobEnd, attempt: AttemptEnd): number | null {
  const { startedAt, exitedAt, endedAt, outcome } = attempt;
  if (startedAt === null) return null;
  const cancelledAt = timeOf(job.status === 'CANCELLED' ? job.completedAt : null);
  const wasCancelled = timeOf(endedAt) > cancelledAt;
  if (outcome === 'LOST' && !wasCancelled) return null;
  const end = Math.min(timeOf(exitedAt), cancelledAt);
  if (end === NEVER) return null;
  return Math.max(0, Math.round((end - Date.parse(startedAt)) / 1_000));
}

/** Later than all that has happened. */
const NEVER = Number.POSITIVE_INFINITY;

function timeOf(at: string | null): number {
  return at === null ? NEVER : Date.parse(at);
}
