/**
 * Inserts jobs with their labels, first journal entries and events: a single job, an array, or the jobs of a run. All are in the
 * transaction of the caller, so either all of them exist or none. A single job takes one statement.
 *
 * A job that must wait is inserted blocked, with a row in `job_changes`. The loop (`dependencies/loop.ts`) decides when it
 * starts.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { NeedCondition, Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { newId } from '../../base/ids.ts';
import { addAuditToStatement, type ChangeBy } from '../../identity/audit.ts';
import { toColumnName } from '../../platform/database/keyset.ts';
import { queryRowArrays, type RowColumns } from '../../platform/database/rows.ts';
import {
  createStatementNamer,
  createStatementParts,
  type Queryable,
  runStatement,
  type Transaction,
} from '../../platform/database/statement.ts';
import { isUnlimited, requireQuota } from '../../platform/limits/quotas.ts';
import {
  describeNeeds,
  describeSlots,
  listSlots,
  type SlotRequest,
} from '../dependencies/groups.ts';
import type { JobCredentials } from '../record/job-credentials.ts';
import type { PayloadRow } from '../record/payload.ts';
import type { SecretBox } from '../record/secret-box.ts';
import { addFirstStatuses } from '../record/state.ts';
import { linkInputs } from './inputs.ts';
import { type ArrayRequest, arrayJobName, type Need, neededJobMissing } from './needs.ts';

const nameOf = createStatementNamer('insert.', 300);

/** The columns of a new job that are written. */
type JobData = Omit<
  Prisma.JobGetPayload<object>,
  | keyof typeof COLUMN_DEFAULTS
  | 'status'
  | 'createdAt'
  | 'availableAt'
  | 'nextSeq'
  | 'env'
  | 'inputs'
  | 'repositoryInputs'
  | 'volumes'
  | 'cache'
  | 'checks'
  | 'identity'
  | 'matrixValues'
  | 'costPerHour'
  | 'maxCost'
> & {
  env: Prisma.InputJsonObject;
  inputs: string;
  repositoryInputs: string;
  volumes: string;
  cache: string;
  checks: string;
  identity: JobCredentials | null;
  /** As JSON, because the driver would write a list as an array of PostgreSQL. */
  matrixValues: string | null;
  costPerHour: string;
  maxCost: string | null;
};

/** The values of a new job that are not written, because they are the defaults of their columns. */
const COLUMN_DEFAULTS = {
  retryCount: 0,
  lossCount: 0,
  exitCode: null,
  runtimeSeconds: 0,
  progressSaid: false,
  logLines: 0n,
  logBytes: 0n,
  logFull: false,
  logUntil: null,
  metricPoints: 0n,
  attemptId: null,
  artifactBytes: null,
  artifactFiles: null,
  artifactsOf: null,
  stopReason: null,
  heldAt: null,
  heldUntil: null,
  heldExitCode: null,
  blocked: false,
  watched: false,
  folded: false,
  arrayId: null,
  runId: null,
  runJob: null,
  usage: null,
  cacheUse: [],
  checkResults: null,
  outputs: null,
  startedAt: null,
  completedAt: null,
} as const;

/** A job whose creation was permitted (`prepareJob` in `jobs.ts`), without an id. */
export type PreparedJob = {
  data: Omit<JobData, 'id' | 'secrets' | 'outputsOf'>;
  secrets: Readonly<Record<string, string>>;
  labels: readonly { key: string; value: string }[];
  /** The entry for the audit log. For an array, it is about the first job. */
  change: Omit<ChangeBy, 'subject'>;
};

export type JobToInsert = {
  job: PreparedJob;
  /** Jobs that must have ended: existing ones, and earlier entries of the same list by their index. */
  needs?: readonly (Need | { index: number; when: NeedCondition })[];
  /** The jobs whose outputs it gets, in the order of `needs`. A text is the id of an existing job, a number the index of an earlier entry. */
  outputsOf?: readonly (string | number)[];
  /** Inserts that many jobs instead of one. */
  array?: ArrayRequest | null;
  /** The name of the job in the file of the run. */
  runJob?: string;
  /** The name of the array that the jobs with this `runJob` form, for a matrix. */
  matrix?: string | null;
  /** How many jobs with this `runJob` may run at once in the run, for a matrix. */
  maxParallel?: number | null;
};

/** `row`: the columns that were asked for, of the first job of an entry. */
export type InsertedJob = { id: string; name: string; row?: object };

type NewJobs = {
  namespace: { id: string; name: string; plan: Plan };
  jobs: readonly JobToInsert[];
  run?: { id: string };
};
type Services = { config: Config; secretBox: SecretBox };

/**
 * More jobs than this are inserted blocked, and the loop moves them into the queue in batches: in one transaction, each job that
 * enters the queue takes longer than the one before.
 */
const MAX_UNBLOCKED = 100;

/**
 * Inserts jobs in few statements; 10,000 jobs of an array take about two seconds. The caller has checked with `prepareJob` that
 * they may be created.
 *
 *   const jobs = await Promise.all(requests.map((one) => prepareJob(services, viewer, one)));
 *   await insertJobs(services, tx, {
 *     namespace,
 *     run: { id: 'run_…' },
 *     jobs: [
 *       { job: jobs[0], runJob: 'test' },
 *       { job: jobs[1], runJob: 'train', maxParallel: 2, needs: [{ index: 0, when: 'succeeded' }] },
 *       { job: jobs[2], runJob: 'train', maxParallel: 2, needs: [{ index: 0, when: 'succeeded' }] },
 *     ],
 *   });
 *
 * Jobs of a run are watched: the loop calls `onChanged(tx, jobIds)` in the transaction that handles each change of their status,
 * their insertion and their deletion. Jobs of the same `runJob` are one unit in a concurrency group: they take it together.
 *
 * @returns the jobs of each entry, in the given order, which is also the order in the queue
 * @throws AppError 403 (quota), 404 naming `needs` if a needed job was deleted meanwhile, and database errors if a name is taken,
 *   the repository was deleted, or the budget is used up
 */
export async function insertJobs(
  services: Services,
  tx: Transaction,
  newJobs: NewJobs,
): Promise<InsertedJob[][]> {
  return insertEntries(services, newJobs, { tx });
}

/**
 * Inserts a job like `insertJobs`, or an array, and reads the new job, or the first one, by the same statement.
 * @param tx needs no transaction if `isOneStatement`
 */
export async function insertAndRead(
  services: Services,
  tx: Queryable,
  { namespace, job }: { namespace: NewJobs['namespace']; job: JobToInsert },
  columns: RowColumns,
): Promise<object> {
  const [[first] = []] = await insertEntries(services, { namespace, jobs: [job] }, { tx, columns });
  return first?.row ?? {};
}

/** Whether the job is inserted by a single statement, which needs no explicit transaction. */
export function isOneStatement(
  services: { config: Config },
  { namespace, job: { needs = [], array } }: { namespace: { plan: Plan }; job: JobToInsert },
): boolean {
  return needs.length === 0 && !array && isUnlimited(services, namespace, 'activeJobs');
}

/** With `columns`, each entry is read by the statement that inserts it. */
type Output = { tx: Transaction; columns?: undefined } | { tx: Queryable; columns: RowColumns };

async function insertEntries(
  services: Services,
  { namespace, jobs, run }: NewJobs,
  output: Output,
): Promise<InsertedJob[][]> {
  const { tx } = output;
  const count = jobs.reduce((sum, { array }) => sum + (array?.size ?? 1), 0);
  if (count === 0) return [];
  await requireQuota({ ...services, db: tx }, namespace, 'activeJobs', count);
  // Ids of one millisecond are not ordered by themselves, and the order of ids is the order of the queue.
  const ids = Array.from({ length: count }, () => newId('job')).sort();
  const neededHere = new Set(
    jobs.flatMap(({ needs = [] }) => needs.flatMap((one) => ('index' in one ? [one.index] : []))),
  );
  const matrices = await insertMatrices(tx, namespace.id, jobs);
  const inserted: InsertedJob[][] = [];
  let at = 0;
  for (const [index, entry] of jobs.entries()) {
    const size = entry.array?.size ?? 1;
    const needs = (entry.needs ?? []).flatMap((need) =>
      'index' in need
        ? earlierJobs(inserted, need.index).map((job) => ({
            ...job,
            when: need.when,
            runJob: jobs[need.index]?.runJob ?? null,
            arrayId: matrices.get(jobs[need.index]?.matrix ?? '')?.id ?? null,
          }))
        : [need],
    );
    const isMany = count > MAX_UNBLOCKED;
    const isWatched = run !== undefined || neededHere.has(index);
    const matrix = matrices.get(entry.matrix ?? '');
    const outputsOf = (entry.outputsOf ?? []).flatMap((source) =>
      typeof source === 'string' ? source : earlierJobs(inserted, source).map(({ id }) => id),
    );
    const job = {
      ...entry,
      outputsOf,
      part: matrix ? { arrayId: matrix.id, isFirst: matrix.first === index } : null,
      needs,
      namespace,
      run,
      isMany,
      isWatched,
      ids: ids.slice(at, at + size),
    };
    inserted.push(await insertEntry(services, output, job));
    at += size;
  }
  // Last, because it makes the workers of these jobs wait until the commit.
  const existing = jobs.flatMap(({ needs = [] }) =>
    needs.flatMap((one) => ('id' in one ? [one] : [])),
  );
  await watchNeeded(tx, existing);
  return inserted;
}

function earlierJobs(inserted: readonly InsertedJob[][], index: number): InsertedJob[] {
  const jobs = inserted[index];
  if (!jobs) throw new Error('a job can only need earlier jobs of the list');
  return jobs;
}

/** Inserts an array for each matrix. @returns its id, and the index of the first of its jobs, by its name */
async function insertMatrices(
  tx: Transaction,
  namespaceId: string,
  jobs: readonly JobToInsert[],
): Promise<Map<string, { id: string; first: number }>> {
  const found = new Map<string, { id: string; first: number }>();
  for (const [first, { matrix: name, maxParallel = null }] of jobs.entries()) {
    if (name == null || found.has(name)) continue;
    const id = newId('arr');
    const size = jobs.filter(({ matrix }) => matrix === name).length;
    await insertArray(tx, { id, name, namespaceId, size, maxParallel });
    found.set(name, { id, first });
  }
  return found;
}

type Entry = Omit<JobToInsert, 'needs' | 'outputsOf' | 'matrix'> & {
  /** The array of its matrix. */
  part: { arrayId: string; isFirst: boolean } | null;
  needs: readonly Need[];
  outputsOf: readonly string[];
  namespace: { id: string; name: string };
  run: { id: string } | undefined;
  isMany: boolean;
  isWatched: boolean;
  ids: readonly string[];
};

async function insertEntry(
  { secretBox }: { secretBox: SecretBox },
  output: Output,
  entry: Entry,
): Promise<InsertedJob[]> {
  const { needs, array, part, run, runJob, maxParallel, namespace, ids, isMany, isWatched } = entry;
  const { tx } = output;
  const { data, secrets, labels, change } = entry.job;
  const arrayId = array ? newId('arr') : null;
  if (array && arrayId)
    await insertArray(tx, { id: arrayId, name: data.name, namespaceId: namespace.id, ...array });
  const set = arrayId
    ? { key: `array ${arrayId}`, maxParallel: array?.maxParallel ?? null }
    : run && runJob !== undefined
      ? { key: `run ${run.id} ${runJob}`, maxParallel: maxParallel ?? null }
      : null;
  const slots = listSlots(data, set);
  const waits = needs.length > 0 || slots.length > 0;
  const blocked = waits || isMany;
  const hasSecrets = Object.keys(secrets).length > 0;
  const rows = ids.map((id, index) => ({
    id,
    name: array ? arrayJobName(data.name, index) : data.name,
    array_index: array ? index : data.arrayIndex,
    secrets: hasSecrets ? Buffer.from(secretBox.seal(id, secrets)).toString('hex') : null,
    event_id: newId('evt'),
  }));

  const now = new Date();
  const { name: _name, arrayIndex: _index, ...shared } = data;
  const columns = {
    ...shared,
    inputs: JSON.stringify(linkInputs(JSON.parse(data.inputs), needs)),
    outputsOf: entry.outputsOf,
    ...(array && { arrayId, arraySize: array.size }),
    ...(part && { arrayId: part.arrayId }),
    runId: run?.id ?? null,
    runJob: runJob ?? null,
    blocked,
    watched: isWatched || waits,
    ...(needs.length > 0 && { progress: describeNeeds(needs.map(({ name }) => name)) }),
    ...(needs.length === 0 && slots.length > 0 && { progress: describeSlots(slots) }),
    createdAt: now,
    availableAt: now,
    nextSeq: 2,
  };
  const folded = array ? 'array_index > 0' : `${part !== null && !part.isFirst}`;
  const statement = createStatementParts();
  const { parts, parameter, values } = statement;
  parts.push(`v as (select * from jsonb_to_recordset(${parameter(JSON.stringify(rows), 'jsonb')})
    as v (id text, name text, array_index int, secrets text, event_id text))`);
  const names = Object.keys(columns).map(toColumnName);
  const given = Object.values(columns).map((value) => parameter(value));
  parts.push(`r as (
    insert into jobs (id, name, array_index, secrets, folded, ${names})
    select id, name, array_index, decode(secrets, 'hex'), ${folded}, ${given}
    from v order by id${output.columns ? ' returning *' : ''})`);
  if (labels.length > 0) {
    const lists = [labels.map(({ key }) => key), labels.map(({ value }) => value)];
    const [keys, texts] = lists.map((list) => parameter(list, 'text[]'));
    parts.push(`labelled as (
      insert into job_labels (job_id, key, value, namespace_id)
      select v.id, label.key, label.value, ${parameter(namespace.id, 'text')}
      from v, unnest(${keys}, ${texts}) label (key, value))`);
  }
  if (needs.length > 0) addNeeds(statement, needs);
  if (slots.length > 0) addSlots(statement, slots, needs.length > 0);
  // The loop tells a run about all of its jobs.
  if (blocked || run) parts.push('changed as (insert into job_changes (job_id) select id from v)');
  const firstId = ids[0] ?? '';
  addAuditToStatement(statement, [{ ...change, subject: firstId }]);
  const payload = { ...COLUMN_DEFAULTS, ...columns, id: '', name: '', status: 'queued' };
  const topics = addFirstStatuses(statement, payload as unknown as PayloadRow, {
    namespace: namespace.name,
    // One notification wakes the readers of all events. Nobody follows a job that did not exist.
    firstId,
  });
  const notify = `select pg_notify('loam', topic)::text from unnest(${parameter(topics, 'text[]')}) topic`;
  const text = `with ${parts.join(', ')}`;
  const inserted: InsertedJob[] = rows.map(({ id, name }) => ({ id, name }));
  if (!output.columns) {
    await runStatement(tx, `${text} ${notify}`, values);
    return inserted;
  }
  const reading = `${text}, notified as (${notify})
    select ${output.columns.sql}, (select count(*) from notified)
    from r join namespaces n on n.id = r.namespace_id where r.id = ${parameter(firstId, 'text')}`;
  const query = { name: nameOf(reading), text: reading };
  const [found = []] = await queryRowArrays(output.tx, query, values);
  return inserted.map((one, at) => (at === 0 ? { ...one, row: output.columns.toRow(found) } : one));
}

async function insertArray(
  tx: Transaction,
  array: { id: string; name: string; namespaceId: string } & ArrayRequest,
): Promise<void> {
  const { id, name, namespaceId, size, maxParallel } = array;
  await runStatement(
    tx,
    `insert into job_arrays (id, namespace_id, name, size, max_parallel) values ($1, $2, $3, $4, $5)
     returning id`,
    [id, namespaceId, name, size, maxParallel],
  );
}

type Parts = ReturnType<typeof createStatementParts>;

function addNeeds({ parts, parameter }: Parts, needs: readonly Need[]): void {
  // The last one counts when two entries name the same job.
  const byId = new Map(needs.map((need) => [need.id, need]));
  const listed = parameter(JSON.stringify([...byId.values()]), 'jsonb');
  parts.push(`needed as (
    insert into job_needs (job_id, needed_id, needed_name, run_job, array_id, condition)
    select v.id, n.id, n.name, n."runJob", n."arrayId", n.when::"NeedCondition"
    from v, jsonb_to_recordset(${listed})
      as n (id text, name text, "runJob" text, "arrayId" text, "when" text))`);
}

function addSlots({ parts, parameter }: Parts, slots: readonly SlotRequest[], isPending: boolean) {
  parts.push(`slots as (
    insert into job_slots (job_id, group_key, unit, max_running, on_conflict, state)
    select v.id, s."groupKey", coalesce(s.unit, v.id), s."maxRunning", s."onConflict"::"GroupConflict",
      '${isPending ? 'pending' : 'waiting'}'
    from v, jsonb_to_recordset(${parameter(JSON.stringify(slots), 'jsonb')})
      as s ("groupKey" text, unit text, "maxRunning" int, "onConflict" text))`);
}

/** From now on, changes of these jobs are noted. A lock keeps them from being deleted before the commit. */
async function watchNeeded(tx: Transaction, needs: readonly Need[]): Promise<void> {
  if (needs.length === 0) return;
  const ids = [...new Set(needs.map(({ id }) => id))];
  const found = await runStatement<{ id: string; watched: boolean }>(
    tx,
    'select id, watched from jobs where id = any ($1::text[]) order by id for no key update',
    [ids],
  );
  const missing = needs.find(({ id }) => !found.some((job) => job.id === id));
  if (missing) throw neededJobMissing(missing.name);
  const unwatched = found.filter(({ watched }) => !watched).map(({ id }) => id);
  if (unwatched.length === 0) return;
  await runStatement(
    tx,
    'update jobs set watched = true where id = any ($1::text[]) returning id',
    [unwatched],
  );
}
