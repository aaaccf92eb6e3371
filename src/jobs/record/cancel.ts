/** Cancels jobs: for users, and for the server, which has a reason. The worker is notified by the commit, and ends the process. */
import type pg from 'pg';
import { type Actor, addAuditToStatement, type ChangeBy } from '../../identity/audit.ts';
import type { Db } from '../../platform/database/client.ts';
import {
  createStatementParts,
  pipeline,
  runStatement,
  type Transaction,
} from '../../platform/database/statement.ts';
import { runSpanUntil } from './runtime.ts';
import { isOver, type LockedJob, type Move, moveLockedJobs, PHASES } from './state.ts';

/** The audit entries of jobs that a user cancels. */
export function auditCancelled(by: Actor) {
  return (jobs: readonly LockedJob[]): ChangeBy[] =>
    jobs.map(({ id, name, namespaceId }) => {
      const namespaceIds = [namespaceId];
      return { by, action: 'job.cancel', namespaceIds, subject: id, name };
    });
}

type Cancellation = {
  /** Why the server cancels the job, for its user; default: a user cancels it. */
  reason?(job: LockedJob): string | undefined;
  /** Leaves out jobs whose process has ended: they only store their artifacts. */
  leavesExited?: boolean;
  /** The entries for the audit log; default: none. */
  audit?(jobs: readonly LockedJob[]): readonly ChangeBy[];
};

/** Cancels those of the jobs that have not ended. The caller has locked them. @returns these jobs as they were, with their attempts */
export async function cancelLockedJobs(
  tx: Db | pg.PoolClient,
  jobs: readonly LockedJob[],
  { reason, leavesExited = false, audit }: Cancellation,
): Promise<{ job: LockedJob; attempt: HoldingAttempt | null }[]> {
  const open = jobs.filter(({ status }) => !isOver(status));
  const attempts = new Map((await readHoldingAttempts(tx, open)).map((one) => [one.id, one]));
  const attemptOf = ({ attemptId }: LockedJob) => attempts.get(attemptId ?? '') ?? null;
  const cancelled = leavesExited ? open.filter((job) => !attemptOf(job)?.exitedAt) : open;
  if (cancelled.length === 0) return [];
  const write = async (tx: Transaction) => {
    await moveLockedJobs(tx, cancelled, (job, now) =>
      moveToCancelled(attemptOf(job), now, reason?.(job)),
    );
    if (!audit) return;
    const statement = createStatementParts();
    addAuditToStatement(statement, audit(cancelled));
    await runStatement(tx, `with ${statement.parts} select`, statement.values);
  };
  await ('release' in tx ? pipeline(tx, write) : write(tx));
  return cancelled.map((job) => ({ job, attempt: attemptOf(job) }));
}

function moveToCancelled(
  attempt: HoldingAttempt | null,
  now: Date,
  stopReason: string | undefined,
): Move {
  const ran = runSpanUntil(attempt, now);
  // The process may have ended already, while its artifacts are being stored.
  const set = attempt?.exitedAt ? { exitCode: attempt.exitCode } : {};
  return {
    to: 'cancelled',
    phase: stopReason ?? PHASES.cancelled,
    ran,
    set: { ...set, ...(stopReason !== undefined && { stopReason }) },
  };
}

type HoldingAttempt = {
  id: string;
  startedAt: Date | null;
  exitedAt: Date | null;
  exitCode: number | null;
};

/** Reads the attempts that hold these jobs. */
async function readHoldingAttempts(
  tx: Transaction,
  jobs: readonly LockedJob[],
): Promise<HoldingAttempt[]> {
  const ids = jobs.flatMap(({ attemptId }) => attemptId ?? []);
  if (ids.length === 0) return [];
  return runStatement<HoldingAttempt>(tx, READ_HOLDING_ATTEMPTS, [ids]);
}

const READ_HOLDING_ATTEMPTS = `
  select id, started_at as "startedAt", exited_at as "exitedAt", exit_code as "exitCode"
  from job_attempts where id = any ($1::text[])`;
