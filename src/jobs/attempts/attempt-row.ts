/**
 * Reads an attempt with its job for the worker. The statements are prepared SQL instead of Prisma, because every job waits for
 * them: Prisma used three statements for the row, each with a millisecond of CPU in this thread.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import type { JobTokens } from '../../identity/job-tokens.ts';
import type { TokenIssuer } from '../../identity/token-issuer.ts';
import type { Sealer } from '../../platform/crypto/keys.ts';
import { toColumnName } from '../../platform/database/keyset.ts';
import type { Bus } from '../../platform/events/bus.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import type { LargeFiles } from '../../repositories/lfs/store/store.ts';
import type { Runner } from '../../runners/runner.ts';
import { IS_KEPT } from '../artifacts/kept.ts';
import { IS_RELEASED } from '../record/failure-hold.ts';
import type { SecretBox } from '../record/secret-box.ts';
import type { CheckOutJob, ReadInput } from './checkouts.ts';
import type { InputCache } from './input-cache.ts';

/** The dependencies of a worker. */
export type Deps = {
  config: Config;
  db: Prisma.DefaultPrismaClient;
  pool: pg.Pool;
  bus: Bus;
  cluster: Cluster;
  log: Logger;
  metrics: Metrics;
  space: DiskSpace;
  storage: Storage;
  largeFiles: LargeFiles;
  secretBox: SecretBox;
  storedSecretSealer: Sealer;
  jobTokens: JobTokens;
  tokenIssuer: TokenIssuer;
  runner: Runner;
  checkout: CheckOutJob;
  readInput: ReadInput;
  inputCache: InputCache;
};

const attemptColumns = {
  id: true,
  number: true,
  machine: true,
  handle: true,
  logCursor: true,
  givenValues: true,
  startedAt: true,
  exitedAt: true,
  endedAt: true,
  job: {
    select: {
      id: true,
      name: true,
      namespaceId: true,
      namespace: { select: { name: true, plan: true, storageBytes: true } },
      status: true,
      progress: true,
      logLines: true,
      logBytes: true,
      logFull: true,
      logUntil: true,
      metricPoints: true,
      attemptId: true,
      command: true,
      image: true,
      repo: true,
      repositoryId: true,
      branch: true,
      tag: true,
      snapshotId: true,
      commitSha: true,
      createdById: true,
      commandFromRef: true,
      env: true,
      secrets: true,
      secretNames: true,
      variableNames: true,
      identity: true,
      outputPath: true,
      inputs: true,
      repositoryInputs: true,
      volumes: true,
      cache: true,
      checkpointPath: true,
      checkpointMinutes: true,
      checks: true,
      testReports: true,
      runJob: true,
      outputsOf: true,
      matrixValues: true,
      arrayIndex: true,
      arraySize: true,
      timeoutMinutes: true,
      maxCost: true,
      costPerHour: true,
      runtimeSeconds: true,
      idleTimeoutMinutes: true,
      holdOnFailureMinutes: true,
      heldAt: true,
      heldUntil: true,
      retries: true,
      retryCount: true,
      gpu: true,
      gpuCount: true,
      cpu: true,
      memoryGb: true,
      diskGb: true,
      region: true,
    },
  },
} as const satisfies Prisma.JobAttemptSelect;
export type Attempt = Prisma.JobAttemptGetPayload<{ select: typeof attemptColumns }> & {
  /** Whether the repository has LFS files, so that the checkout may have to replace pointers. */
  hasLargeFiles: boolean;
};

/** Builds the select list of a relation. Each column is named after its field, with `prefix` before it. */
function buildSelectList(alias: string, fields: object, prefix = ''): string {
  return Object.entries(fields)
    .filter(([, selected]) => selected === true)
    .map(([field]) => `${alias}.${toColumnName(field)} as "${prefix}${field}"`)
    .join(', ');
}

const { select: jobColumns } = attemptColumns.job;
const JOB_PREFIX = 'job.';
const NAMESPACE_PREFIX = 'namespace.';

const READ_ATTEMPT = `
  select ${buildSelectList('a', attemptColumns)}, ${buildSelectList('j', jobColumns, JOB_PREFIX)},
    ${buildSelectList('n', jobColumns.namespace.select, NAMESPACE_PREFIX)},
    coalesce(r.large_bytes > 0, false) as "hasLargeFiles"
  from job_attempts a join jobs j on j.id = a.job_id join namespaces n on n.id = j.namespace_id
    left join repositories r on r.id = j.repository_id
  where a.id = $1`;

/** @returns null if the attempt has ended, or was deleted with its job */
export async function readAttempt(
  { pool }: Pick<Deps, 'pool'>,
  id: string,
): Promise<Attempt | null> {
  const { rows } = await pool.query({ name: 'loam-attempt', text: READ_ATTEMPT, values: [id] });
  const [row] = rows;
  if (!row || row.endedAt) return null;
  const fieldsUnder = (prefix: string) =>
    Object.fromEntries(
      Object.entries(row).flatMap(([name, value]) =>
        name.startsWith(prefix) ? [[name.slice(prefix.length), value]] : [],
      ),
    );
  const job = fieldsUnder(JOB_PREFIX);
  const counts = {
    logLines: BigInt(row['job.logLines']),
    logBytes: BigInt(row['job.logBytes']),
    metricPoints: BigInt(row['job.metricPoints']),
  };
  const storageBytes = BigInt(row[`${NAMESPACE_PREFIX}storageBytes`]);
  const namespace = { ...fieldsUnder(NAMESPACE_PREFIX), storageBytes };
  return { ...row, job: { ...job, ...counts, namespace } } as Attempt;
}

/** Reads the id of the worker of an attempt that has not ended. */
export async function findWorkerOf(
  { pool }: Pick<Deps, 'pool'>,
  attemptId: string,
): Promise<string | null> {
  const { rows } = await pool.query<{ worker_id: string }>(
    'select worker_id from job_attempts where id = $1 and ended_at is null',
    [attemptId],
  );
  return rows[0]?.worker_id ?? null;
}

/**
 * Whether an attempt still holds its job, and if not, why.
 * - `released`: it holds the job, whose failed sandbox a user has released (`record/failure-hold.ts`).
 * - `deleted`: the job was deleted, and its artifacts are kept.
 * - `discarded`: the job was deleted, and has no artifacts to keep.
 * - `lost`: the attempt was declared lost, and another attempt of the job may run.
 */
export type Hold = 'held' | 'released' | 'cancelled' | 'deleted' | 'discarded' | 'lost';

export async function readHold(
  { pool }: Pick<Deps, 'pool'>,
  { attemptId, jobId }: { attemptId: string; jobId: string },
): Promise<Hold> {
  const { rows } = await pool.query<{ hold: Hold }>({
    name: 'loam-hold',
    text: `
      select case
        when j.attempt_id = $2 and ${IS_RELEASED} then 'released'
        when j.attempt_id = $2 then 'held'
        when j.status = 'cancelled' then 'cancelled'
        when j.id is not null then 'lost'
        when exists (select from kept_artifacts where id = $1 and ${IS_KEPT}) then 'deleted'
        else 'discarded' end as hold
      from (select) one left join jobs j on j.id = $1`,
    values: [jobId, attemptId],
  });
  return rows[0]?.hold ?? 'discarded';
}
