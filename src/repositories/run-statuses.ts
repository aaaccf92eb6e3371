/** Commit statuses of the jobs of runs, which only the server reports (`statuses.ts` has those of external systems). */
import type { CommitState } from '../../prisma/generated/enums.ts';
import type { Db } from '../platform/database/client.ts';
import { runStatement } from '../platform/database/statement.ts';

export type RunStatusTarget = { repositoryId: string; sha: string; runId: string; creator: string };
type RunJobStatus = {
  context: string;
  state: CommitState;
  description: string;
  targetUrl: string | null;
};

/**
 * Reports the states of jobs of a run, in the caller's transaction. They replace what a user has reported for the context, and
 * the states of earlier runs, but not those of later ones. Numbers of runs tell which is later, because clocks are set back.
 * Without a URL, the former one stays.
 */
export async function reportRunStatuses(
  tx: Db,
  { repositoryId, sha, runId, creator }: RunStatusTarget,
  statuses: readonly RunJobStatus[],
): Promise<void> {
  await runStatement(
    tx,
    `insert into commit_statuses (repository_id, sha, context, state, description, target_url, creator, run_id)
     select $1, $2, s.context, s.state, s.description, s."targetUrl", $3, $4
     from jsonb_to_recordset($5::jsonb) as s
       (context text, state "CommitState", description text, "targetUrl" text)
     order by s.context
     on conflict (repository_id, sha, context) do update set
       state = excluded.state, description = excluded.description, creator = excluded.creator,
       target_url = coalesce(excluded.target_url, commit_statuses.target_url),
       run_id = excluded.run_id, updated_at = now()
     where not exists (
       select from runs former join runs reporting on reporting.id = excluded.run_id
       where former.id = commit_statuses.run_id and former.number > reporting.number)`,
    [repositoryId, sha, creator, runId, JSON.stringify(statuses)],
  );
}

/** Removes the states of jobs that a run did not need after all. */
export async function removeRunStatuses(
  tx: Db,
  { repositoryId, sha, runId }: RunStatusTarget,
  contexts: readonly string[],
): Promise<void> {
  await tx.commitStatus.deleteMany({
    where: { repositoryId, sha, runId, context: { in: [...contexts] } },
  });
}
