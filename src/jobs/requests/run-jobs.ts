/** Jobs of runs (`src/automation`): several jobs of one commit, which are created together. */
import type pg from 'pg';
import type { NeedCondition, Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { inJob } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import type { Account } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { CommitSource } from '../../repositories/repositories.ts';
import { throwIfOverBudget } from '../record/budgets.ts';
import type { MatrixValue } from '../record/matrix-values.ts';
import type { SecretBox } from '../record/secret-box.ts';
import { resolveInputs, type Siblings } from './inputs.ts';
import { insertJobs, type JobToInsert, prepareJob } from './jobs.ts';
import type { RepositoryInput } from './repository-inputs.ts';
import type { checkRequest } from './request.ts';

export {
  demandRepositoryInputs,
  type RepositoryInput,
  readRepositoryInputs,
  resolveRepositoryInputs,
} from './repository-inputs.ts';
export { checkInputs, type InputRequest } from './request.ts';

type Deps = { db: Db; pool: pg.Pool; config: Config; secretBox: SecretBox; urls: Urls };

type RunJob = {
  /** The name in the file of the run. */
  key: string;
  request: ReturnType<typeof checkRequest>;
  /** Those of the request, with their commits. */
  repositoryInputs: readonly RepositoryInput[];
  /** Positions of earlier jobs of the list. */
  needs: readonly { job: number; when: NeedCondition }[];
  /** The name of the array of its matrix, and the values of its combination; null without a matrix. */
  matrix: { name: string; values: readonly MatrixValue[] } | null;
  /** The jobs whose outputs it gets, in the order of `needs`. A number is a position in the list, a text the id of a job of an earlier run. */
  outputsOf: readonly (string | number)[];
  /** How many jobs with the same key may run at once. */
  maxParallel: number | null;
};

type RunJobs = {
  runId: string;
  namespace: { id: string; name: string; plan: Plan };
  source: CommitSource;
  /** Their commands are those of a file at the commit, so the ref alone decides which secrets they get. */
  isFromRef: boolean;
  jobs: readonly RunJob[];
};

/**
 * Inserts the jobs of a run in the caller's transaction, in the name of `creator`.
 * @throws AppError 400, 403 (permission, quota, secrets), 404; errors of the database if a name is taken
 */
export async function insertRunJobs(
  services: Deps,
  tx: Db,
  creator: Account,
  { runId, namespace, source, isFromRef, jobs }: RunJobs,
): Promise<void> {
  const siblings = listSiblings(jobs);
  const prepared: JobToInsert[] = [];
  for (const { key, request, repositoryInputs, needs, matrix, maxParallel, outputsOf } of jobs) {
    const { inputs: named } = request;
    const job = await resolveInputs({ db: tx }, creator, namespace.id, named, { siblings })
      .then((inputs) =>
        prepareJob(services, creator, {
          namespace,
          request: { ...request, inputs, repositoryInputs, needs: [] },
          source,
          runId,
          matrixValues: matrix?.values ?? [],
          commandFromRef: isFromRef,
        }),
      )
      .catch((error) => {
        throw inJob(key, error);
      });
    prepared.push({
      job,
      runJob: key,
      matrix: matrix?.name ?? null,
      maxParallel,
      needs: needs.map((need) => ({ index: need.job, when: need.when })),
      outputsOf,
    });
  }
  await insertJobs(services, tx, { namespace, jobs: prepared, run: { id: runId } }).catch((error) =>
    throwIfOverBudget(services, namespace.id, error),
  );
}

function listSiblings(jobs: readonly RunJob[]): Siblings {
  const arrays = Map.groupBy(
    jobs.flatMap(({ request: { name, outputPath }, matrix }) =>
      matrix ? { array: matrix.name, name, outputPath, matrixValues: matrix.values } : [],
    ),
    ({ array }) => array,
  );
  return { jobs: new Map(jobs.map(({ request }) => [request.name, request])), arrays };
}

/**
 * Lists the queued and running jobs of a run, newest first, except those that were created before the repository was transferred:
 * they belong to its former namespace.
 */
export async function listOpenJobsOfRun(
  tx: Db,
  runId: string,
  namespaceId: string,
): Promise<{ id: string; name: string }[]> {
  return tx.job.findMany({
    where: { runId, namespaceId, status: { in: ['queued', 'running'] } },
    select: { id: true, name: true },
    // A job comes before those that it needs, so none starts because a job that it needs was cancelled.
    orderBy: { id: 'desc' },
  });
}
