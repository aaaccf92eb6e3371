/**
 * Holds the sandbox of a failed job, so that a user can look into it: `holdOnFailureMinutes`.
 *
 * The hold is part of the command that the runner runs: a shell around the command of the job waits after a failing exit. So the
 * sandbox stays on every runner, and the hold ends in time while no server runs. The shell prints a mark, from which the worker
 * learns that the hold has begun. SIGTERM ends it, as it ends a job: a release, a cancellation, the timeout and the maximum cost
 * need nothing else. Only the last attempt is held, which is not retried.
 *
 * A job can print the mark itself. It then only changes what is shown of it, and how long it may run without GPU load.
 */
import type pg from 'pg';
import { type Actor, addAuditToStatement } from '../../identity/audit.ts';
import { createStatementParts, pipeline, runStatement } from '../../platform/database/statement.ts';
import { quoteForShell } from '../../runners/process/namespace.ts';
import { HOLD_MARK } from '../../runners/runner.ts';
import { type LockedJob, moveLockedJobs } from './state.ts';

/** A line that the shell prints when the hold begins, with the exit code of the command. */
const MARK = new RegExp(`^${HOLD_MARK}([1-9]\\d{0,2})$`);

/** Searched after the PATH of the job, for `sleep`. */
const FALLBACK_PATH = '/usr/local/bin:/usr/bin:/bin';

/**
 * Adds the hold to the command of a job. The clock is that of the machine, which no change of its time affects. In an image
 * without `sleep` the command is not held. While the command runs, the messages of the shell about a killed child are discarded.
 */
export function holdOnFailure(command: string, seconds: number): string {
  return `loam_stopped=
trap 'loam_stopped=1' TERM
exec 9>&2 2>/dev/null
/bin/sh -c ${quoteForShell(command)} 2>&9 9>&-
loam_code=$?
PATH=$PATH:${FALLBACK_PATH}
if [ "$loam_code" -ne 0 ] && [ -z "$loam_stopped" ] && command -v sleep >/dev/null; then
  printf '\\n${HOLD_MARK}%s\\n' "$loam_code"
  read -r loam_now _ </proc/uptime
  loam_end=$((\${loam_now%.*} + ${seconds}))
  while [ -z "$loam_stopped" ] && [ "\${loam_now%.*}" -lt "$loam_end" ]; do
    sleep 1
    read -r loam_now _ </proc/uptime
  done
fi
exit "$loam_code"`;
}

/** @returns the exit code of the command; null if the line is no mark of a hold */
export function parseHoldMark(line: string): number | null {
  const [, code] = MARK.exec(line) ?? [];
  return code === undefined ? null : Number(code);
}

type HoldRequest = { holdOnFailureMinutes: number; retries: number; retryCount: number };

/** Whether the sandbox of the next or current attempt is held if its command fails. */
export function isHeldOnFailure({ holdOnFailureMinutes, retries, retryCount }: HoldRequest) {
  return holdOnFailureMinutes > 0 && retryCount >= retries;
}

type HeldJob = { holdOnFailureMinutes: number; heldAt: Date | null; heldUntil: Date | null };

/** The end of a hold that nobody ends sooner. */
export function plannedEnd(heldAt: Date, minutes: number): Date {
  return new Date(heldAt.getTime() + minutes * 60_000);
}

/** Whether a user has ended the hold: its end was moved forward. */
export function isReleased({ holdOnFailureMinutes, heldAt, heldUntil }: HeldJob): boolean {
  return (
    heldAt !== null && heldUntil !== null && heldUntil < plannedEnd(heldAt, holdOnFailureMinutes)
  );
}

/** `isReleased` in SQL, for the job `j`. */
export const IS_RELEASED =
  "j.held_until < j.held_at + j.hold_on_failure_minutes * interval '1 minute'";

type NamedJob = { name: string; namespace: { name: string } };

/** The `progress` of a held job. */
export function describeHold(exitCode: number, until: Date, { name, namespace }: NamedJob): string {
  const time = `${until.toISOString().slice(0, 16).replace('T', ' ')} UTC`;
  return `failed with exit code ${exitCode}: held until ${time}, loam shell ${namespace.name}/${name}`;
}

/** The line of the log that takes the place of the mark. */
export function holdLine(exitCode: number, minutes: number, { name, namespace }: NamedJob): string {
  const time = minutes === 1 ? '1 minute' : `${minutes} minutes`;
  const job = `${namespace.name}/${name}`;
  return `Failed with exit code ${exitCode}. The sandbox is held for ${time}: "loam shell ${job}" opens it, "loam release ${job}" ends it.`;
}

/** Ends the hold of a job that the caller has locked. Its worker is notified, and ends the process. */
export async function releaseLockedJob(
  tx: pg.PoolClient,
  job: LockedJob,
  by: Actor,
): Promise<void> {
  await pipeline(tx, async (tx) => {
    await moveLockedJobs(tx, [job], ({ heldAt, heldUntil, heldExitCode }, now) => {
      // A moment before the planned end, so that it is a release in any case.
      const planned = new Date((heldUntil?.getTime() ?? 0) - 1);
      const until = new Date(Math.min(planned.getTime(), now.getTime()));
      const phase = `failed with exit code ${heldExitCode}: released`;
      return { to: 'running', phase, set: { heldUntil: heldAt && until } };
    });
    const statement = createStatementParts();
    const { id, name, namespaceId } = job;
    addAuditToStatement(statement, [
      { by, action: 'job.release', namespaceIds: [namespaceId], subject: id, name },
    ]);
    await runStatement(tx, `with ${statement.parts} select`, statement.values);
  });
}
