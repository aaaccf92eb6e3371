/** How the jobs of a run ended. The results belong to the run, so they outlive the jobs, which users and retention delete. */
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import type { Db } from '../../platform/database/client.ts';
import { runStatement } from '../../platform/database/statement.ts';
import type { RunPlan } from './create.ts';

export type JobResult = {
  /** The name in the file. */
  runJob: string;
  status: JobStatus;
  startedAt: Date | null;
  completedAt: Date | null;
  /** Why it failed by its checks of metrics; null for other jobs, and for deleted ones. */
  failedChecks: string | null;
};

const READ = `
  select run_job as "runJob", status, started_at as "startedAt", completed_at as "completedAt", (
    select string_agg(result ->> 'message', '; ')
    from jsonb_array_elements(check_results) result where result -> 'passed' = 'false'
  ) as "failedChecks"
  from jobs where run_id = $1
  union all
  select run_job, status, started_at, completed_at, null from deleted_run_jobs where run_id = $1`;

export async function readJobResults(tx: Db, runId: string): Promise<JobResult[]> {
  return runStatement<JobResult>(tx, READ, [runId]);
}

/** The jobs of the file of which all combinations succeeded. */
export function listSucceeded(plan: RunPlan, results: readonly JobResult[]): Set<string> {
  const byKey = Map.groupBy(results, ({ runJob }) => runJob);
  return new Set(
    plan.flatMap(({ name, jobs: created = 1 }) => {
      const own = byKey.get(name) ?? [];
      // Results are missing of jobs that versions without `deleted_run_jobs` deleted.
      const isComplete = own.length > 0 && own.length >= created;
      return isComplete && own.every(({ status }) => status === 'succeeded') ? name : [];
    }),
  );
}
