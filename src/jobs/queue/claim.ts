/**
 * Claims jobs from the queue for a worker.
 *
 * Order: a pool contains the waiting jobs of one GPU model and region. Within a namespace and pool, the oldest job is next.
 * Among namespaces, the namespace with the fewest open attempts is next; among equals, the one that was served longest ago.
 * The table `queue_lines` has a row for each namespace and pool with waiting jobs (here called a namespace queue), and an
 * index in this order. So a claim only reads the first rows, whatever the number of namespaces and jobs.
 *
 * Locks:
 * - Claims are serialized by an advisory lock, because two concurrent claims would choose the same jobs. So one claim takes
 *   as many jobs as the worker has room for.
 * - Every transaction that changes the counts of a namespace locks its row in `queue_shares`. A claim does so before it takes
 *   jobs, because it moves the head of a namespace queue past them: without the lock, a job that is inserted at the same time
 *   with a smaller id would stay before the head and never start. Data that was read before the lock may be slightly stale:
 *   a job that was cancelled in the meantime is skipped, and counts need not be exact.
 * - Jobs are locked last, with `skip locked`. A cancellation locks the job first and then waits for the namespace, so
 *   waiting for the job here would be a deadlock.
 *
 * The commit is asynchronous. If a crash loses it, the jobs are still in the queue: no process starts before the handle of
 * its attempt is stored, and that commit waits until all earlier commits are on disk.
 */

import pg from 'pg';
import { JOB_CLAIM_LOCK } from '../../base/advisory-locks.ts';
import { newId } from '../../base/ids.ts';
import { withConnection } from '../../platform/database/client.ts';
import { PHASES } from '../record/state.ts';
import {
  type Admitted,
  ANY_REGION,
  type CandidateJob,
  type ClaimablePools,
  type NamespaceQueue,
  type ResourceRequest,
} from './admission.ts';

/** An open attempt of a worker, with the resources that it holds. */
export type ClaimedAttempt = ResourceRequest & {
  jobId: string;
  attemptId: string;
  machine: string;
};
/** A new attempt. `waitedSeconds`: how long its job could have been claimed before. */
export type ClaimResult = ClaimedAttempt & { region: string; waitedSeconds: number };

export type WaitingJob = CandidateJob & {
  hasRepo: boolean;
  image: string | null;
  volumes: unknown;
};

type ClaimInput = {
  workerId: string;
  runner: string;
  /** Reads the jobs of this namespace only; unset: of all. */
  namespaceId?: string | undefined;
  /** The pools to read. */
  pools: ClaimablePools;
  /** The volumes of the machines, and those to which jobs may write. */
  volumes?: { readable: readonly string[]; writable: readonly string[] };
  /** How many namespace queues to read. */
  maxQueues: number;
  maxJobsPerQueue: number;
  /** Ids of jobs with a reservation, which are read at any position in the queue. */
  reserved: Iterable<string>;
  /** Ids of jobs and namespaces to skip. */
  skip?: { jobs: Iterable<string>; namespaces: Iterable<string> };
  /** Chooses the jobs that start, and their machines. */
  decide(
    queues: NamespaceQueue<WaitingJob>[],
    reserved: WaitingJob[],
  ): readonly Admitted<WaitingJob>[];
};

/**
 * Takes the advisory lock and sets the options of the transaction, in one prepared statement, because separate `set`
 * statements would be parsed each time.
 * - The timeout releases the lock if the server freezes while it decides.
 * - Statements are planned once per connection: planning them each time took six times as long as running them.
 * - Only index scans with nested loops are allowed, even while the tables are small. Otherwise the cached plan would read the
 *   rows of all namespaces to find those of a few.
 */
const LOCK_QUEUE = `
  select set_config('synchronous_commit', 'off', true), set_config('idle_in_transaction_session_timeout', '5s', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    pg_advisory_xact_lock(${JOB_CLAIM_LOCK})`;

const SKIP_LIST = `
  skipped as materialized (
    select array (select jsonb_array_elements_text($1 -> 'skip' -> 'jobs')) as jobs,
      array (select jsonb_array_elements_text($1 -> 'skip' -> 'namespaces')) as namespaces
  ),`;
const NOT_SKIPPED_JOBS = ' and id <> all ((select jobs from skipped)::text[])';
const NOT_SKIPPED_NAMESPACES =
  ' and l.namespace_id <> all ((select namespaces from skipped)::text[])';

/**
 * Each volume of the job is on some machine of this worker, and not full if the job writes to it. Without this condition, jobs that
 * wait for a volume would hide the jobs behind them.
 */
const HAS_VOLUMES = `
          and (volumes = '[]' or not exists (
            select from jsonb_array_elements(volumes) v where not (
              case when (v ->> 'readOnly')::boolean then $1 -> 'readable' else $1 -> 'writable' end
            ) ? (v ->> 'name')
          ))`;

/** The most GPUs of a job in the region of the namespace queue `l`; null if the worker does not serve the region. */
const MOST_GPUS = `greatest((max_gpus ->> l.region)::int, (max_gpus ->> '${ANY_REGION}')::int)`;

/**
 * Reads the waiting jobs among which the worker chooses:
 * - `first_queues`: the first namespace queues that have a job for this worker.
 * - `queues`: these queues, and all other queues of the same namespaces; `rank` is their position in the order of claims.
 * - `max_gpus`: region → the most GPUs of a job, without the regions that the worker does not serve. Queues of other regions are
 *   filtered out by `MOST_GPUS`: in the index the region follows the order of claims, so one scan per GPU model finds the first of all regions.
 * - `reserved`: the jobs with a reservation, whose `rank` is null. They are found by id alone: with the condition of the index
 *   of waiting jobs, the planner would scan that whole index, because it is usually empty when statistics are collected.
 *
 * @param hasSkipList whether to add the conditions of the skip list, which is usually empty
 */
const buildReadStatement = (hasSkipList: boolean) => `
  with pools as (
    select * from jsonb_to_recordset($1 -> 'pools') as p (gpu text, max_gpus jsonb)
  ),${hasSkipList ? SKIP_LIST : ''} first_queues as (
    select in_pool.* from pools cross join lateral (
      select l.namespace_id, l.held, l.served_at, l.line_served_at from queue_lines l
      cross join lateral (
        select from jobs
        where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id and id >= l.head
          and status = 'queued' and not blocked and attempt_id is null and available_at <= now()
          and (l.gpu = 'none' or gpu_count <= ${MOST_GPUS})${HAS_VOLUMES}${hasSkipList ? NOT_SKIPPED_JOBS : ''}
        order by id limit 1
      ) any_job
      where l.gpu = pools.gpu and open and ${MOST_GPUS} is not null
        and ($1 ->> 'namespaceId' is null or l.namespace_id = $1 ->> 'namespaceId')${hasSkipList ? NOT_SKIPPED_NAMESPACES : ''}
      order by l.held, l.served_at, l.namespace_id, l.line_served_at, l.region
      limit ($1 ->> 'maxQueues')::int
    ) in_pool
    order by in_pool.held, in_pool.served_at, in_pool.namespace_id, in_pool.line_served_at
    limit ($1 ->> 'maxQueues')::int
  ), queues as (
    select l.namespace_id, l.gpu, l.region, l.head, l.held, max_gpus, row_number() over (
      order by l.held, l.served_at, l.namespace_id, l.line_served_at, l.region
    )::int as rank
    from (select distinct namespace_id from first_queues) n
      join queue_lines l using (namespace_id) join pools using (gpu)
    where l.open and ${MOST_GPUS} is not null
  ), reserved as materialized (
    select * from jobs where id in (select jsonb_array_elements_text($1 -> 'reserved'))
  )
  select l.rank, l.held, l.namespace_id as "namespaceId", l.gpu, l.region, j.* from queues l
  cross join lateral (
    select id, gpu_count as "gpuCount", cpu, memory_gb as "memoryGb", repo is not null as "hasRepo",
      image, volumes
    from jobs
    where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id and id >= l.head
      and status = 'queued' and not blocked and attempt_id is null and available_at <= now()
      and (l.gpu = 'none' or gpu_count <= ${MOST_GPUS})${HAS_VOLUMES}${hasSkipList ? NOT_SKIPPED_JOBS : ''}
    order by id limit ($1 ->> 'maxJobsPerQueue')::int
  ) j
  union all
  select null, 0, namespace_id, gpu, region, id, gpu_count, cpu, memory_gb, repo is not null,
    image, volumes
  from reserved where status = 'queued' and not blocked and attempt_id is null and available_at <= now()
    ${HAS_VOLUMES}${hasSkipList ? NOT_SKIPPED_JOBS : ''}
  order by rank, id`;

const NO_VOLUMES = { readable: [], writable: [] };
const EMPTY_SKIP_LIST = { jobs: [], namespaces: [] };

/** Every transaction that changes counts takes these locks, ordered by namespace id to avoid deadlocks. */
const LOCK_NAMESPACES = `
  select from queue_shares where namespace_id = any (array (select jsonb_array_elements_text($1)))
  order by namespace_id for update`;

/**
 * Creates the attempts, assigns the jobs to them, and updates the counts.
 * - `previous`: the number and the end of the last attempt of each taken job.
 * - `by_namespace.served_at`: a microsecond apart, so that namespaces served in one claim keep the order of the decision.
 * - `moved`: the head of a namespace queue moves to its oldest job that still waits (because it did not fit or is delayed) and
 *   is older than the last job taken. Without such a job, it moves to the last job taken.
 * - `waited`: since the job became available or, for a retry, since its last attempt ended, whichever is later.
 */
const TAKE = `
  with wanted as (
    select * from jsonb_to_recordset($1 -> 'wanted') as w (
      id text, attempt_id text, machine text, cpus int, memory_bytes bigint, shared boolean,
      progress text, choice_index int
    )
  ), locked as (
    select id, status, blocked, attempt_id from jobs where id in (select id from wanted)
    for update skip locked
  ), taken as (
    update jobs set attempt_id = w.attempt_id, progress = w.progress
    from locked join wanted w using (id)
    where jobs.id = locked.id and locked.status = 'queued' and not locked.blocked and locked.attempt_id is null
    returning jobs.id, jobs.namespace_id, jobs.gpu, jobs.region, jobs.available_at, w.choice_index
  ), previous as (
    select taken.id, coalesce(max(number), 0) as number, max(ended_at) as ended_at
    from taken left join job_attempts a on a.job_id = taken.id group by taken.id
  ), created as (
    insert into job_attempts
      (id, job_id, number, runner, worker_id, machine, cpus, memory_bytes, shared)
    select attempt_id, id, number + 1, $1 ->> 'runner', $1 ->> 'workerId', machine, cpus, memory_bytes, shared
    from previous join wanted using (id)
  ), by_namespace as (
    select namespace_id, count(*)::int as jobs,
      clock_timestamp() + max(choice_index) * interval '1 microsecond' as served_at
    from taken group by namespace_id
  ), by_line as (
    select namespace_id, gpu, region, count(*)::int as jobs, max(id) as last
    from taken group by namespace_id, gpu, region
  ), counted as (
    update queue_shares s set held = held + n.jobs, served_at = n.served_at
    from by_namespace n where n.namespace_id = s.namespace_id
  ), moved as (
    update queue_lines l set
      held = l.held + n.jobs, served_at = n.served_at,
      waiting = l.waiting - coalesce(t.jobs, 0), open = l.waiting > coalesce(t.jobs, 0),
      line_served_at = case when t.jobs is null then l.line_served_at else n.served_at end,
      head = case when t.jobs is null or t.last < l.head then l.head else coalesce((
        select id from jobs
        where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id
          and id between l.head and t.last and status = 'queued' and not blocked and attempt_id is null
          and id not in (select id from taken)
        order by id limit 1
      ), t.last) end
    from queue_lines k join by_namespace n using (namespace_id)
      left join by_line t using (namespace_id, gpu, region)
    where k.open
      and l.namespace_id = k.namespace_id and l.gpu = k.gpu and l.region = k.region
  )
  select id, choice_index, extract(epoch from
    least(now() - available_at, now() - ended_at))::float8 as waited
  from taken join previous using (id) order by choice_index`;

/**
 * Claims the jobs that `decide` chooses and creates an attempt for each, in one transaction.
 * @returns the claimed jobs; fewer than chosen if another transaction has locked a job, for example to cancel it
 */
export async function claimJobs(
  { pool }: { pool: pg.Pool },
  {
    workerId,
    runner,
    namespaceId,
    pools,
    volumes = NO_VOLUMES,
    maxQueues,
    maxJobsPerQueue,
    reserved,
    skip = EMPTY_SKIP_LIST,
    decide,
  }: ClaimInput,
): Promise<ClaimResult[]> {
  const query = {
    namespaceId,
    readable: volumes.readable,
    writable: volumes.writable,
    pools: Array.from(pools, ([gpu, maxGpus]) => ({ gpu, max_gpus: maxGpus })),
    maxQueues,
    maxJobsPerQueue,
    reserved: [...reserved],
    skip: { jobs: [...skip.jobs], namespaces: [...skip.namespaces] },
  };
  // A skipped namespace always has skipped jobs too.
  const readStatement = query.skip.jobs.length > 0 ? 'read_skipping' : 'read';
  return withConnection(pool, async (client) => {
    await prepareStatements(client);
    const results = await runStatements<QueueRow>(client, [
      'begin',
      execute('lock_queue', {}),
      execute(readStatement, query),
    ]);
    const { queues, reservedJobs } = groupByQueue(results.at(-1) ?? []);
    const chosen = decide(queues, reservedJobs);
    if (chosen.length === 0) {
      await client.query('commit');
      return [];
    }
    const namespaces = new Set(chosen.map(({ job }) => job.namespaceId));
    const wanted = chosen.map(({ job, grant }, index) => ({
      id: job.id,
      attempt_id: newId('att'),
      machine: grant.machine,
      cpus: grant.cpus,
      memory_bytes: grant.memoryBytes,
      shared: grant.shared,
      choice_index: index,
      progress: job.hasRepo ? PHASES.cloning : PHASES.preparing,
    }));
    const lock = execute('lock_namespaces', [...namespaces]);
    const take = execute('take', { wanted, runner, workerId });
    const [, taken = []] = await runStatements<TakenRow>(client, [lock, take, 'commit']);
    return taken.flatMap(({ choice_index: index, waited: waitedSeconds }) => {
      const { job, grant } = chosen[index] ?? {};
      const attemptId = wanted[index]?.attempt_id;
      if (!job || !grant || !attemptId) return [];
      const { id: jobId, gpu, gpuCount, cpu, memoryGb, region } = job;
      const { machine } = grant;
      return [{ jobId, attemptId, machine, gpu, gpuCount, cpu, memoryGb, region, waitedSeconds }];
    });
  });
}

type QueueRow = WaitingJob & { rank: number | null; held: number };
type TakenRow = { id: string; choice_index: number; waited: number };

const STATEMENTS = {
  lock_queue: LOCK_QUEUE,
  read: buildReadStatement(false),
  read_skipping: buildReadStatement(true),
  lock_namespaces: LOCK_NAMESPACES,
  take: TAKE,
};

/** The connections on which the statements are prepared. */
const prepared = new WeakSet<pg.PoolClient>();

async function prepareStatements(client: pg.PoolClient): Promise<void> {
  if (prepared.has(client)) return;
  const statements = Object.entries(STATEMENTS).map(
    ([name, text]) => `prepare loam_queue_${name} (jsonb) as ${text}`,
  );
  await client.query(statements.join(';'));
  prepared.add(client);
}

function execute(name: keyof typeof STATEMENTS, input: unknown): string {
  return `execute loam_queue_${name} (${pg.escapeLiteral(JSON.stringify(input))})`;
}

/**
 * Runs statements in one round trip. A query of several statements cannot have parameters, so they contain their values.
 * @returns the rows of each statement
 */
async function runStatements<R>(client: pg.PoolClient, statements: string[]): Promise<R[][]> {
  const results = await client.query(statements.join(';'));
  return (results as unknown as { rows: R[] }[]).map(({ rows }) => rows);
}

/** @param rows ordered by rank and id; jobs with a reservation have no rank */
function groupByQueue(rows: readonly QueueRow[]) {
  const queues: (NamespaceQueue<WaitingJob> & { jobs: WaitingJob[] })[] = [];
  const reservedJobs: WaitingJob[] = [];
  for (const { rank, held, ...job } of rows) {
    if (rank === null) reservedJobs.push(job);
    else if (queues.at(-1)?.rank === rank) queues.at(-1)?.jobs.push(job);
    else queues.push({ namespaceId: job.namespaceId, held, rank, jobs: [job] });
  }
  return { queues, reservedJobs };
}

/**
 * Ids of jobs that were next but locked by another transaction, for example a cancellation. The worker skips them for the rest
 * of its round of claims; otherwise all later jobs would wait for them.
 */
export type SkipList = {
  jobs: ReadonlySet<string>;
  namespaces: ReadonlySet<string>;
  /** Adds the admitted jobs that were not claimed. */
  addUnclaimed(admitted: readonly WaitingJob[], claims: readonly { jobId: string }[]): void;
};

/**
 * A namespace with this many locked jobs is skipped as a whole, because all its jobs may be locked, as when its repository is
 * deleted.
 */
const SKIP_NAMESPACE_AFTER = 8;

export function createSkipList(): SkipList {
  const jobs = new Set<string>();
  const namespaces = new Set<string>();
  const counts = new Map<string, number>();
  return {
    jobs,
    namespaces,
    addUnclaimed(admitted, claims) {
      const claimed = new Set(claims.map(({ jobId }) => jobId));
      for (const { id, namespaceId } of admitted) {
        if (claimed.has(id)) continue;
        jobs.add(id);
        const count = (counts.get(namespaceId) ?? 0) + 1;
        counts.set(namespaceId, count);
        if (count >= SKIP_NAMESPACE_AFTER) namespaces.add(namespaceId);
      }
    },
  };
}
