/**
 * Inserts a new job with its labels, its first journal entry and event, and its audit record, in one statement. Prisma used
 * seven, which were a tenth of the server's work for a short job.
 */

import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Plan } from '../../prisma/generated/enums.ts';
import type { Config } from '../base/config/config.ts';
import { type Actor, type AuditedChange, addAuditToStatement } from '../identity/audit.ts';
import type { Db } from '../platform/database/client.ts';
import { inPoolTransaction, inTransaction, retryConflicts } from '../platform/database/client.ts';
import { toColumnName } from '../platform/database/keyset.ts';
import { statementNameFor } from '../platform/database/rows.ts';
import { createStatementParts, runStatement } from '../platform/database/statement.ts';
import { isUnlimited, requireQuota } from '../platform/limits/quotas.ts';
import { throwIfOverBudget } from './budgets.ts';
import type { JobIdentity } from './identity.ts';
import type { PayloadRow } from './payload.ts';
import { jobRowReader } from './payload.ts';
import { addFirstStatus } from './state.ts';

/** The columns of a new job that are written. */
export type JobData = Omit<
  Prisma.JobGetPayload<object>,
  | keyof typeof COLUMN_DEFAULTS
  | 'status'
  | 'createdAt'
  | 'availableAt'
  | 'nextSeq'
  | 'env'
  | 'inputs'
  | 'identity'
  | 'matrixValues'
  | 'costPerHour'
  | 'maxCost'
> & {
  env: Prisma.InputJsonObject;
  inputs: string;
  identity: JobIdentity | null;
  /** As JSON, because the driver would write a list as an array of PostgreSQL. */
  matrixValues: string | null;
  costPerHour: string;
  maxCost: string | null;
};

/** The values of a new job that are not written, because they are the defaults of their columns. */
export const COLUMN_DEFAULTS = {
  retryCount: 0,
  lossCount: 0,
  exitCode: null,
  runtimeSeconds: 0,
  progressSaid: false,
  logLines: 0n,
  logBytes: 0n,
  logFull: false,
  logUntil: null,
  attemptId: null,
  artifactBytes: null,
  artifactFiles: null,
  artifactsOf: null,
  stopReason: null,
  blocked: false,
  watched: false,
  folded: false,
  arrayId: null,
  runId: null,
  runJob: null,
  usage: null,
  startedAt: null,
  completedAt: null,
} as const;

type NewRow = {
  data: JobData;
  labels: readonly { key: string; value: string }[];
  namespace: { id: string; name: string; plan: Plan };
  author: Actor;
  change: AuditedChange;
};

/** @throws AppError 403 (quota or budget), and database errors if the name is taken or the repository was deleted */
export function writeNewJob<S extends Prisma.JobSelect>(
  services: { db: Db; pool: pg.Pool; config: Config },
  job: NewRow,
  select: S,
): Promise<Prisma.JobGetPayload<{ select: S }>> {
  return write(services, job, select).catch((error) =>
    throwIfOverBudget(services, job.namespace.id, error),
  );
}

async function write<S extends Prisma.JobSelect>(
  services: { db: Db; pool: pg.Pool; config: Config },
  job: NewRow,
  select: S,
): Promise<Prisma.JobGetPayload<{ select: S }>> {
  const { id } = job.data;
  const { namespace } = job;
  const columns = jobRowReader.columns(select);
  if (!columns)
    return inTransaction(services.db, async (tx) => {
      await requireQuota({ ...services, db: tx }, namespace, 'activeJobs');
      const { text, values } = buildInsert(job, 'r.id');
      await runStatement(tx, text, values);
      return tx.job.findUniqueOrThrow({ where: { id }, select });
    });
  const { text, values } = buildInsert(job, columns.sql);
  const runInsert = async (on: pg.Pool | pg.PoolClient) => {
    const query = { name: statementNameFor(text), text, values, rowMode: 'array' } as const;
    const { rows } = await on.query<unknown[]>(query);
    return columns.toRow(rows[0] ?? []) as Prisma.JobGetPayload<{ select: S }>;
  };
  // A single statement needs no explicit transaction.
  if (isUnlimited(services, namespace, 'activeJobs'))
    return retryConflicts(() => runInsert(services.pool));
  return inPoolTransaction(services.pool, async (client) => {
    await requireQuota({ ...services, db: client }, namespace, 'activeJobs');
    return runInsert(client);
  });
}

/** @param columns the columns to return of the new row `r` and its namespace `n` */
function buildInsert(
  { data, labels, namespace, author, change }: NewRow,
  columns: string,
): { text: string; values: unknown[] } {
  const statement = createStatementParts();
  const { parts, parameter, values } = statement;
  const now = new Date();
  const row = { ...data, createdAt: now, availableAt: now, nextSeq: 2 };
  const names = Object.keys(row).map(toColumnName);
  const inserted = Object.values(row).map((value) => parameter(value));
  parts.push(`r as (insert into jobs (${names}) values (${inserted}) returning *)`);
  if (labels.length > 0) {
    const lists = [labels.map(({ key }) => key), labels.map(({ value }) => value)];
    const [keys, texts] = lists.map((list) => parameter(list, 'text[]'));
    parts.push(`labelled as (
      insert into job_labels (job_id, key, value, namespace_id)
      select r.id, label.key, label.value, r.namespace_id
      from r, unnest(${keys}, ${texts}) label (key, value))`);
  }
  const payload: Omit<PayloadRow, 'costPerHour'> = { ...COLUMN_DEFAULTS, ...row, status: 'queued' };
  const topics = addFirstStatus(statement, payload as PayloadRow, namespace.name);
  addAuditToStatement(statement, [{ by: author, ...change }]);
  const notify = `select count(pg_notify('loam', topic)::text) from unnest(${parameter(topics, 'text[]')}) topic`;
  const text = `with ${parts.join(', ')}
    select ${columns}, (${notify}) from r join namespaces n on n.id = r.namespace_id`;
  return { text, values };
}
