type JobTimes = { status: string; completedAt: string | null };
type AttemptTimes = {
  startedAt: string | null;
  exitedAt: string | null;
  endedAt: string | null;
  outcome: string | null;
};

/**
 * The seconds that an attempt adds to `runtimeSeconds` of its job: from the start of its process to its end, or to the
 * cancellation of the job, after which the process may run for another 30 s. Null while it runs, and for lost attempts.
 */
export function billedSeconds(job: JobTimes, attempt: AttemptTimes): number | null {
  const { startedAt, exitedAt, endedAt, outcome } = attempt;
  if (startedAt === null) return null;
  const cancelledAt = parseTime(job.status === 'CANCELLED' ? job.completedAt : null);
  const wasCancelled = parseTime(endedAt) > cancelledAt;
  if (outcome === 'LOST' && !wasCancelled) return null;
  const end = Math.min(parseTime(exitedAt), cancelledAt);
  if (end === NEVER) return null;
  return Math.max(0, Math.round((end - Date.parse(startedAt)) / 1_000));
}

const NEVER = Number.POSITIVE_INFINITY;

function parseTime(at: string | null): number {
  return at === null ? NEVER : Date.parse(at);
}
