/**
 * Applies the retention rules of all namespaces, in transactions of at most `BATCH` jobs. The jobs are locked and checked again
 * before anything is removed, so a job that another server removes, or that gets the label `keep`, is left out. Each transaction
 * writes one audit entry with the names.
 *
 * Logs and files are removed afterwards by the maintenance tasks that also do this for deleted jobs.
 */
import type pg from 'pg';
import { addAuditToStatement, SERVER } from '../../identity/audit.ts';
import { inPoolTransaction } from '../../platform/database/client.ts';
import {
  createStatementParts,
  runStatement,
  type Transaction,
} from '../../platform/database/statement.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { detachArtifacts } from '../artifacts/kept.ts';
import { type LockedJob, withLockedJobs } from '../record/state.ts';
import { deleteLockedJobs } from '../requests/jobs.ts';
import {
  daysByKind,
  findNeededJobs,
  HAS_KIND,
  IS_EXEMPT,
  IS_SETTLED,
  type RetentionKind,
} from './retention.ts';

type Deps = { pool: pg.Pool; metrics: Metrics };

const BATCH = 100;
const DAY_MS = 86_400_000;

type Rules = {
  namespaceId: string;
  namespace: string;
  jobDays: number | null;
  logDays: number | null;
  artifactDays: number | null;
  jobsUntil: Date | null;
  logsUntil: Date | null;
  artifactsUntil: Date | null;
  updatedAt: Date;
};

type Position = { completedAt: Date; id: string };

/** What remains to do for one kind in one namespace. */
type Step = {
  rules: Rules;
  kind: RetentionKind;
  /** Jobs that ended before this, and artifacts whose job was deleted before this, are due. */
  cutoff: Date;
  /** The last job that the sweep has looked at; null before the first. */
  position: Position | null;
  /** The end of the first job that must wait, for example because another job needs it. */
  firstLeft: Date | null;
};

const UNTIL = { jobs: 'jobsUntil', logs: 'logsUntil', artifacts: 'artifactsUntil' } as const;
const UNTIL_COLUMN = {
  jobs: 'jobs_until',
  logs: 'logs_until',
  artifacts: 'artifacts_until',
} as const;

/**
 * Returns a maintenance task: each call handles one batch, and returns whether there may be more. After the last namespace, the
 * next call begins a new sweep.
 */
export function createRetentionSweep(
  deps: Deps,
  now: () => Date = () => new Date(),
): () => Promise<boolean> {
  let lastNamespace = '';
  let steps: Step[] = [];
  return async () => {
    const [step] = steps;
    if (step) {
      // A namespace whose batch fails must not stop the others. The next sweep tries it again.
      steps.shift();
      if (await sweepBatch(deps, step)) steps.unshift(step);
      else await storePosition(deps, step);
      return true;
    }
    const rules = await readNextRules(deps, lastNamespace);
    lastNamespace = rules?.namespaceId ?? '';
    if (!rules) return false;
    const due = Object.entries(daysByKind(rules)) as [RetentionKind, number][];
    steps = due.map(([kind, days]) => ({
      rules,
      kind,
      cutoff: new Date(now().getTime() - days * DAY_MS),
      position: toPosition(rules[UNTIL[kind]]),
      firstLeft: null,
    }));
    return true;
  };
}

function toPosition(until: Date | null): Position | null {
  return until && { completedAt: until, id: '' };
}

async function readNextRules({ pool }: Deps, after: string): Promise<Rules | undefined> {
  const { rows } = await pool.query<Rules>(
    `select r.namespace_id as "namespaceId", n.name as namespace, job_days as "jobDays",
       log_days as "logDays", artifact_days as "artifactDays", jobs_until as "jobsUntil",
       logs_until as "logsUntil", artifacts_until as "artifactsUntil", r.updated_at as "updatedAt"
     from retention_rules r join namespaces n on n.id = r.namespace_id
     where r.namespace_id > $1 and n.deleted_at is null order by r.namespace_id limit 1`,
    [after],
  );
  return rows[0];
}

/** @returns whether there may be more */
async function sweepBatch(deps: Deps, step: Step): Promise<boolean> {
  const { kind, rules, cutoff, position } = step;
  if (!(await isCurrent(deps, rules))) return false;
  const removedKept = kind === 'artifacts' ? await removeKeptBatch(deps, step) : 0;
  const { rows } = await deps.pool.query<Position & { isDue: boolean }>(
    `select j.id, j.completed_at as "completedAt", ${HAS_KIND[kind]} and not ${IS_EXEMPT} as "isDue"
     from jobs j where j.namespace_id = $1 and j.completed_at < $2
       and ($3::timestamptz is null or (j.completed_at, j.id) > ($3, $4))
     order by j.completed_at, j.id limit ${BATCH}`,
    [rules.namespaceId, cutoff, position?.completedAt ?? null, position?.id ?? ''],
  );
  const due = rows.filter(({ isDue }) => isDue);
  const left = new Set(await removeFromJobs(deps, step, due));
  step.firstLeft ??= due.find(({ id }) => left.has(id))?.completedAt ?? null;
  step.position = rows.at(-1) ?? position;
  return rows.length === BATCH || removedKept === BATCH;
}

/** An admin may have changed the rules meanwhile: the next sweep follows the new ones. */
async function isCurrent({ pool }: Deps, { namespaceId, updatedAt }: Rules): Promise<boolean> {
  const { rowCount } = await pool.query(
    'select from retention_rules where namespace_id = $1 and updated_at = $2',
    [namespaceId, updatedAt],
  );
  return rowCount === 1;
}

/** @returns the ids of jobs that must wait for a later sweep */
async function removeFromJobs(
  deps: Deps,
  { rules, kind, cutoff }: Step,
  due: readonly Position[],
): Promise<string[]> {
  if (due.length === 0) return [];
  const ids = due.map(({ id }) => id);
  let removed = 0;
  let waiting: string[] = [];
  const locked = await withLockedJobs(deps.pool, ids, async (client, jobs) => {
    const still = await runStatement<{ id: string; isSettled: boolean }>(client, RECHECK[kind], [
      jobs.map(({ id }) => id),
      cutoff,
    ]);
    const needed = await findNeededJobs(client, rules.namespaceId, ids);
    const isWaiting = ({ id, isSettled }: (typeof still)[number]) => !isSettled || needed.has(id);
    waiting = still.filter(isWaiting).map(({ id }) => id);
    const going = new Set(still.filter((job) => !isWaiting(job)).map(({ id }) => id));
    const targets = jobs.filter(({ id }) => going.has(id));
    if (targets.length === 0) return;
    await REMOVE[kind](client, targets);
    await recordRemoval(client, rules, kind, targets);
    removed = targets.length;
  });
  deps.metrics.retentionRemoved(kind, removed);
  return [...waiting, ...locked];
}

const recheckSql = (kind: RetentionKind) => `
  select j.id, ${IS_SETTLED} as "isSettled" from jobs j
  where j.id = any ($1::text[]) and j.completed_at < $2 and ${HAS_KIND[kind]} and not ${IS_EXEMPT}`;

const RECHECK: Readonly<Record<RetentionKind, string>> = {
  jobs: recheckSql('jobs'),
  logs: recheckSql('logs'),
  artifacts: recheckSql('artifacts'),
};

/** Removes something of locked jobs. */
const REMOVE: Readonly<
  Record<RetentionKind, (tx: Transaction, jobs: readonly LockedJob[]) => Promise<void>>
> = {
  // Artifacts that the rules keep for ever stay without their job, as when a user deletes it.
  jobs: (tx, jobs) => deleteLockedJobs(tx, jobs, { by: null, deleteArtifacts: false }),
  async logs(tx, jobs) {
    await runStatement(tx, REMOVE_LOGS, [jobs.map(({ id }) => id)]);
  },
  async artifacts(tx, jobs) {
    const ids = jobs.map(({ id }) => id);
    // The row, which is marked, leads the maintenance task to the files.
    await detachArtifacts(tx, ids, true);
    await runStatement(tx, FORGET_ARTIFACTS, [ids]);
  },
};

const REMOVE_LOGS = `
  with emptied as (
    update jobs set log_lines = 0, log_bytes = 0 where id = any ($1::text[]) returning id
  )
  insert into deleted_journals (job_id) select id from emptied order by id on conflict do nothing`;

const FORGET_ARTIFACTS = `
  update jobs set artifact_bytes = null, artifact_files = null, artifacts_of = null
  where id = any ($1::text[])`;

/** Marks a batch of the artifacts of deleted jobs. @returns how many */
async function removeKeptBatch({ pool, metrics }: Deps, { rules, cutoff }: Step): Promise<number> {
  const { namespaceId } = rules;
  const count = await inPoolTransaction(pool, async (client) => {
    const { rows } = await client.query<{ id: string; name: string }>(
      `select id, name from kept_artifacts
       where namespace_id = $1 and not removing and not exempt and deleted_at < $2
         and not exists (
           select from jobs j cross join lateral jsonb_array_elements(j.inputs) input
           where j.namespace_id = $1 and j.status in ('queued', 'running') and j.inputs <> '[]'
             and input ->> 'jobId' = kept_artifacts.id)
       order by deleted_at, id limit ${BATCH} for update skip locked`,
      [namespaceId, cutoff],
    );
    if (rows.length === 0) return 0;
    const ids = rows.map(({ id }) => id);
    await client.query('update kept_artifacts set removing = true where id = any ($1)', [ids]);
    await recordRemoval(client, rules, 'artifacts', rows);
    return rows.length;
  });
  metrics.retentionRemoved('artifacts', count);
  return count;
}

async function recordRemoval(
  tx: Transaction,
  { namespaceId, namespace }: Rules,
  kind: RetentionKind,
  removed: readonly { name: string }[],
): Promise<void> {
  const statement = createStatementParts();
  addAuditToStatement(statement, [
    {
      by: SERVER,
      action: 'retention.remove',
      namespaceIds: [namespaceId],
      subject: namespaceId,
      name: namespace,
      details: { kind, count: removed.length, jobs: removed.map(({ name }) => name) },
    },
  ]);
  await runStatement(tx, `with ${statement.parts} select`, statement.values);
}

/** The next sweep continues here, so that it need not read the jobs that stay. */
async function storePosition({ pool }: Deps, step: Step): Promise<void> {
  const { rules, kind, position, firstLeft } = step;
  const until = firstLeft ?? position?.completedAt ?? null;
  if (until === null || until.getTime() === rules[UNTIL[kind]]?.getTime()) return;
  await pool.query(
    `update retention_rules set ${UNTIL_COLUMN[kind]} = $3
     where namespace_id = $1 and updated_at = $2`,
    [rules.namespaceId, rules.updatedAt, until],
  );
}
