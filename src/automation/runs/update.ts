/** Derives the status of runs, and of their commits, from the status of their jobs. */
import type { CommitState, JobStatus, RunStatus } from '../../../prisma/generated/enums.ts';
import { isNeedMet } from '../../jobs/requests/jobs.ts';
import type { Db } from '../../platform/database/client.ts';
import { runStatement } from '../../platform/database/statement.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import { removeRunStatuses, reportRunStatuses } from '../../repositories/repositories.ts';
import type { RunPlan } from './create.ts';
import { type JobResult, readJobResults } from './results.ts';

/** Updates the runs of jobs that have changed or were deleted. Called in the transaction that handles the changes. */
export async function updateRuns(tx: Db, jobIds: readonly string[]): Promise<void> {
  // In the order of their ids, so that two transactions cannot wait for each other.
  const runs = await runStatement<{ id: string }>(
    tx,
    `select id from runs where id in (
       select run_id from jobs where id = any($1) and run_id is not null
       union all select run_id from deleted_run_jobs where job_id = any($1))
     order by id for update`,
    [[...jobIds]],
  );
  for (const { id } of runs) await updateRun(tx, id);
}

async function updateRun(tx: Db, id: string): Promise<void> {
  const run = await tx.run.findUniqueOrThrow({ where: { id } });
  const jobs = await readJobResults(tx, id);
  if (jobs.length === 0) return;
  const outcomes = outcomesOf(run.plan as RunPlan, jobs);
  const status = statusOf(jobs, outcomes);
  const started = jobs.flatMap(({ startedAt }) => startedAt ?? []);
  const isOver = status !== 'queued' && status !== 'running';
  const completed = jobs.flatMap(({ completedAt }) => completedAt ?? []);
  await tx.run.update({
    where: { id },
    data: {
      status,
      startedAt: started.length > 0 ? earliest(started) : null,
      completedAt: isOver ? latest(completed) : null,
    },
    select: { id: true },
  });
  const { repositoryId, sha, actor } = run;
  await notifyReaders(tx, `runs:${repositoryId}`);
  // A file of a schedule says nothing about the commit.
  if (run.file !== null) return;
  const target = { repositoryId, sha, runId: id, creator: actor };
  await reportRunStatuses(
    tx,
    target,
    [...outcomes].flatMap(([context, { state, description }]) =>
      state === null ? [] : [{ context, state, description, targetUrl: null }],
    ),
  );
  const skipped = [...outcomes].filter(([, { state }]) => state === null);
  if (skipped.length > 0)
    await removeRunStatuses(
      tx,
      target,
      skipped.map(([context]) => context),
    );
}

/** Of all combinations of a job of the file. `state` is null if the job was not needed. */
type Outcome = { state: CommitState | null; description: string };

function outcomesOf(plan: RunPlan, jobs: readonly JobResult[]): Map<string, Outcome> {
  const byKey = Map.groupBy(jobs, ({ runJob }) => runJob);
  return new Map(
    [...byKey].map(([key, own]) => {
      const { needs = [], jobs: created = 0 } = plan.find(({ name }) => name === key) ?? {};
      const isSkipped = needs.some(({ job, when }) => {
        const statuses = (byKey.get(job) ?? []).map(({ status }) => status);
        return statuses.length > 0 && isNeedMet(when, statuses) === false;
      });
      return [key, outcomeOf(own, created, isSkipped)];
    }),
  );
}

/** @param created the number of jobs; `jobs` lacks those that earlier versions of Loam deleted */
function outcomeOf(jobs: readonly JobResult[], created: number, isSkipped: boolean): Outcome {
  const count = (...statuses: JobStatus[]) =>
    jobs.filter(({ status }) => statuses.includes(status)).length;
  const of = (number: number, what: string) =>
    created <= 1 ? `${what[0]?.toUpperCase()}${what.slice(1)}` : `${number} of ${created} ${what}`;
  const failed = count('failed', 'timed_out');
  const waiting = count('queued');
  const running = count('running');
  const cancelled = count('cancelled');
  if (failed > 0)
    return { state: 'failure', description: describeFailure(of(failed, 'failed'), jobs) };
  if (running > 0) return { state: 'pending', description: of(running, 'running') };
  if (waiting > 0) return { state: 'pending', description: of(waiting, 'waiting') };
  if (cancelled > 0)
    return { state: isSkipped ? null : 'error', description: of(cancelled, 'cancelled') };
  if (jobs.length < created)
    return {
      state: isSkipped ? null : 'error',
      description: of(created - jobs.length, 'deleted'),
    };
  return { state: 'success', description: of(jobs.length, 'succeeded') };
}

/** As long as descriptions of other systems. */
const MAX_DESCRIPTION = 200;

/** Names a check of a metric that a job has failed. */
function describeFailure(failed: string, jobs: readonly JobResult[]): string {
  const checks = jobs.find(({ failedChecks }) => failedChecks !== null)?.failedChecks;
  if (checks == null) return failed;
  const text = `${failed}: ${checks}`;
  return text.length > MAX_DESCRIPTION ? `${text.slice(0, MAX_DESCRIPTION - 1)}…` : text;
}

function statusOf(jobs: readonly JobResult[], outcomes: ReadonlyMap<string, Outcome>): RunStatus {
  const has = (...statuses: JobStatus[]) => jobs.some(({ status }) => statuses.includes(status));
  if (has('running')) return 'running';
  if (has('queued')) return jobs.some(({ startedAt }) => startedAt) ? 'running' : 'queued';
  if (has('failed', 'timed_out')) return 'failed';
  return [...outcomes.values()].some(({ state }) => state === 'error') ? 'cancelled' : 'succeeded';
}

function earliest(times: readonly Date[]): Date {
  return new Date(Math.min(...times.map((time) => time.getTime())));
}

function latest(times: readonly Date[]): Date {
  return new Date(Math.max(...times.map((time) => time.getTime())));
}
