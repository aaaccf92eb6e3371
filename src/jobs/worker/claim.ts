/**
 * Claims jobs from the queue for a worker.
 *
 * Order: within a namespace and pool, the oldest job is next. Between namespaces, the one that holds the fewest jobs, and
 * among equals the one that was served longest ago. The table `queue_lines` has a row for each namespace and pool with
 * waiting jobs and an index in this order, so a claim reads the first entries, whatever the number of namespaces and jobs.
 *
 * Locks:
 * - Claims are serialized by an advisory lock, because two concurrent claims would choose the same jobs. So one claim takes
 *   as many jobs as the worker has room for.
 * - Whoever changes the counts of a namespace locks its row in `queue_shares`, and so does a claim before it takes jobs. It
 *   moves the head of a line past the jobs it takes; without this lock, a job inserted meanwhile with a smaller id would
 *   stay before the head and never start. Data read before the lock may be slightly stale: a job cancelled since is
 *   skipped, and counts need not be exact.
 * - Jobs are locked last, with `skip locked`. A cancellation locks the job first and then waits for the namespace, so
 *   waiting for the job here would be a deadlock.
 *
 * The commit is asynchronous. If a crash loses it, the jobs are still in the queue: nothing runs before the handle is stored,
 * and that commit waits until all earlier ones are on disk.
 */

import type { Pool, PoolClient } from 'pg';
import pg from 'pg';
import { JOB_CLAIM_LOCK } from '../../base/advisory-locks.ts';
import { newId } from '../../base/ids.ts';
import { withConnection } from '../../platform/database/client.ts';
import { PHASES } from '../state.ts';
import type { Admitted, Candidate, QueueLine, ResourceRequest } from './admission.ts';

/** The facts that a worker needs about an attempt that it supervises. */
export type Claim = ResourceRequest & { jobId: string; attemptId: string; machine: string };
/** `waited`: seconds since the job could first have been claimed. */
export type Claimed = Claim & { region: string; waited: number };

export type WaitingJob = Candidate & { region: string; repo: boolean; image: string | null };

type ClaimInput = {
  workerId: string;
  runner: string;
  /** GPU model, or `none` → the most GPUs that a job may ask for. A worker serves every region. */
  pools: ReadonlyMap<string, number>;
  /** How many lines to read, and how many jobs of each. */
  lines: number;
  depth: number;
  /** Ids of jobs that are read wherever they are in the queue. */
  reserved: Iterable<string>;
  /** Ids of jobs and namespaces to skip. */
  skip?: { jobs: Iterable<string>; namespaces: Iterable<string> };
  /** Chooses the jobs that start, and their machines. */
  decide(lines: QueueLine<WaitingJob>[], reserved: WaitingJob[]): readonly Admitted<WaitingJob>[];
};

/**
 * Takes the lock and sets the options of the transaction, in one statement because six would have to be parsed each time.
 * - The timeout releases the lock if the server freezes while it decides.
 * - Statements are planned once per connection: planning them each time took six times as long as running them.
 * - Only index scans with nested loops, also while the tables are small; otherwise the cached plan would read the rows of all
 *   namespaces to find those of a few.
 */
const BEGIN = `
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
 * Reads the first jobs of the first lines that have a job for this worker, and of all other lines of the same namespaces; and
 * the jobs with a reservation (`turn` is null). The latter are found by id alone: with the condition of the index of waiting
 * jobs, the planner would scan that whole index, because it is usually empty when statistics are collected.
 *
 * @param skips whether the skip list is not empty, which is rare; without it, its conditions are left out
 */
const readStatement = (skips: boolean) => `
  with pools as (
    select * from jsonb_to_recordset($1 -> 'pools') as p (gpu text, most int)
  ),${skips ? SKIP_LIST : ''} first as (
    select in_pool.* from pools cross join lateral (
      select l.namespace_id, l.held, l.served_at, l.line_served_at from queue_lines l
      cross join lateral (
        select from jobs
        where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id and id >= l.head
          and status = 'queued' and attempt_id is null and available_at <= now()
          and (l.gpu = 'none' or gpu_count <= most)${skips ? NOT_SKIPPED_JOBS : ''}
        order by id limit 1
      ) any_job
      where l.gpu = pools.gpu and open${skips ? NOT_SKIPPED_NAMESPACES : ''}
      order by l.held, l.served_at, l.namespace_id, l.line_served_at, l.region
      limit ($1 ->> 'lines')::int
    ) in_pool
    order by in_pool.held, in_pool.served_at, in_pool.namespace_id, in_pool.line_served_at
    limit ($1 ->> 'lines')::int
  ), lines as (
    select l.namespace_id, l.gpu, l.region, l.head, l.held, pools.most, row_number() over (
      order by l.held, l.served_at, l.namespace_id, l.line_served_at, l.region
    )::int as turn
    from (select distinct namespace_id from first) n
      join queue_lines l using (namespace_id) join pools using (gpu) where l.open
  ), reserved as materialized (
    select * from jobs where id in (select jsonb_array_elements_text($1 -> 'reserved'))
  )
  select l.turn, l.held, l.namespace_id as "namespaceId", l.gpu, l.region, j.* from lines l
  cross join lateral (
    select id, gpu_count as "gpuCount", cpu, memory_gb as "memoryGb", repo is not null as repo,
      image
    from jobs
    where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id and id >= l.head
      and status = 'queued' and attempt_id is null and available_at <= now()
      and (l.gpu = 'none' or gpu_count <= l.most)${skips ? NOT_SKIPPED_JOBS : ''}
    order by id limit ($1 ->> 'depth')::int
  ) j
  union all
  select null, 0, namespace_id, gpu, region, id, gpu_count, cpu, memory_gb, repo is not null,
    image
  from reserved where status = 'queued' and attempt_id is null and available_at <= now()
    ${skips ? NOT_SKIPPED_JOBS : ''}
  order by turn, id`;

const EMPTY_SKIP_LIST = { jobs: [], namespaces: [] };

/** Everyone who changes the counts of namespaces takes these locks, in the order of their ids. */
const LOCK = `
  select from queue_shares where namespace_id = any (array (select jsonb_array_elements_text($1)))
  order by namespace_id for update`;

/**
 * Creates the attempts, assigns the jobs to them, and updates the counts. The head of a line moves to its first remaining job
 * before the last one taken: a job that did not fit or is delayed.
 */
const TAKE = `
  with wanted as (
    select * from jsonb_to_recordset($1 -> 'wanted') as w (
      id text, attempt_id text, machine text, cpus int, memory_bytes bigint, shared boolean,
      progress text, place int
    )
  ), locked as (
    select id, status, attempt_id from jobs where id in (select id from wanted)
    for update skip locked
  ), taken as (
    update jobs set attempt_id = w.attempt_id, progress = w.progress
    from locked join wanted w using (id)
    where jobs.id = locked.id and locked.status = 'queued' and locked.attempt_id is null
    returning jobs.id, jobs.namespace_id, jobs.gpu, jobs.region, jobs.available_at, w.place
  ), before as (
    select taken.id, coalesce(max(number), 0) as number, max(ended_at) as ended_at
    from taken left join job_attempts a on a.job_id = taken.id group by taken.id
  ), begun as (
    insert into job_attempts
      (id, job_id, number, runner, worker_id, machine, cpus, memory_bytes, shared)
    select attempt_id, id, number + 1, $1 ->> 'runner', $1 ->> 'workerId', machine, cpus, memory_bytes, shared
    from before join wanted using (id)
  ), by_namespace as (
    select namespace_id, count(*)::int as jobs,
      clock_timestamp() + max(place) * interval '1 microsecond' as served_at
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
          and id between l.head and t.last and status = 'queued' and attempt_id is null
          and id not in (select id from taken)
        order by id limit 1
      ), t.last) end
    from queue_lines k join by_namespace n using (namespace_id)
      left join by_line t using (namespace_id, gpu, region)
    where k.open
      and l.namespace_id = k.namespace_id and l.gpu = k.gpu and l.region = k.region
  )
  select id, place, extract(epoch from
    least(now() - available_at, now() - ended_at))::float8 as waited
  from taken join before using (id) order by place`;

/**
 * Claims the jobs that `decide` chooses and creates an attempt for each, in one transaction.
 * @returns the claimed jobs; fewer than chosen if another transaction has locked a job, for example to cancel it
 */
export async function claimJobs(
  { pool }: { pool: Pool },
  { workerId, runner, pools, lines, depth, reserved, skip = EMPTY_SKIP_LIST, decide }: ClaimInput,
): Promise<Claimed[]> {
  const query = {
    pools: Array.from(pools, ([gpu, most]) => ({ gpu, most })),
    ...{ lines, depth, reserved: [...reserved] },
    skip: { jobs: [...skip.jobs], namespaces: [...skip.namespaces] },
  };
  // A namespace is skipped only together with jobs of it.
  const reading = query.skip.jobs.length > 0 ? 'read_skipping' : 'read';
  return withConnection(pool, async (client) => {
    await prepareStatements(client);
    const begin = execute('begin', {});
    const read = await runStatements<Row>(client, ['begin', begin, execute(reading, query)]);
    const chosen = decide(...groupLines(read.at(-1) ?? []));
    if (chosen.length === 0) {
      await client.query('commit');
      return [];
    }
    const namespaces = new Set(chosen.map(({ job }) => job.namespaceId));
    const wanted = chosen.map(({ job, grant }, place) => ({
      ...{ id: job.id, attempt_id: newId('att'), machine: grant.machine, cpus: grant.cpus },
      ...{ memory_bytes: grant.memoryBytes, shared: grant.shared, place },
      progress: job.repo ? PHASES.cloning : PHASES.preparing,
    }));
    const lock = execute('lock', [...namespaces]);
    const take = execute('take', { wanted, runner, workerId });
    const [, taken = []] = await runStatements<Taken>(client, [lock, take, 'commit']);
    return taken.flatMap(({ place, waited }) => {
      const { job, grant } = chosen[place] ?? {};
      const attemptId = wanted[place]?.attempt_id;
      if (!job || !grant || !attemptId) return [];
      const { id: jobId, gpu, gpuCount, cpu, memoryGb, region } = job;
      const { machine } = grant;
      return [{ jobId, attemptId, machine, gpu, gpuCount, cpu, memoryGb, region, waited }];
    });
  });
}

type Row = WaitingJob & { turn: number | null; held: number };
type Taken = { id: string; place: number; waited: number };

const STATEMENTS = {
  begin: BEGIN,
  read: readStatement(false),
  read_skipping: readStatement(true),
  lock: LOCK,
  take: TAKE,
};

/** The connections on which the statements are prepared. */
const prepared = new WeakSet<PoolClient>();

async function prepareStatements(client: PoolClient): Promise<void> {
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

/** Runs statements in one round trip, for which they must have no parameters. @returns the rows of each statement */
async function runStatements<R>(client: PoolClient, statements: string[]): Promise<R[][]> {
  const results = await client.query(statements.join(';'));
  return (results as unknown as { rows: R[] }[]).map(({ rows }) => rows);
}

/** @param rows in the order of turns, and of ids within a turn @returns the lines, and the jobs with a reservation */
function groupLines(rows: readonly Row[]): [QueueLine<WaitingJob>[], WaitingJob[]] {
  const lines: (QueueLine<WaitingJob> & { jobs: WaitingJob[] })[] = [];
  const reserved: WaitingJob[] = [];
  for (const { turn, held, ...job } of rows) {
    if (turn === null) reserved.push(job);
    else if (lines.at(-1)?.turn === turn) lines.at(-1)?.jobs.push(job);
    else lines.push({ namespaceId: job.namespaceId, held, turn, jobs: [job] });
  }
  return [lines, reserved];
}

/**
 * Ids of jobs that were next but locked by another transaction, for example a cancellation. The worker skips them until it
 * has emptied the queue; otherwise all later jobs would wait for them.
 */
export type SkipList = {
  jobs: ReadonlySet<string>;
  namespaces: ReadonlySet<string>;
  /** Adds the admitted jobs that were not claimed. */
  add(admitted: readonly WaitingJob[], claims: readonly { jobId: string }[]): void;
};

/** With this many locked jobs a namespace is skipped: all its jobs may be locked, as when its repository is deleted. */
const MAX_SKIPPED_OF_NAMESPACE = 8;

export function createSkipList(): SkipList {
  const jobs = new Set<string>();
  const namespaces = new Set<string>();
  const counts = new Map<string, number>();
  return {
    jobs,
    namespaces,
    add(admitted, claims) {
      const claimed = new Set(claims.map(({ jobId }) => jobId));
      for (const { id, namespaceId } of admitted) {
        if (claimed.has(id)) continue;
        jobs.add(id);
        const count = (counts.get(namespaceId) ?? 0) + 1;
        counts.set(namespaceId, count);
        if (count >= MAX_SKIPPED_OF_NAMESPACE) namespaces.add(namespaceId);
      }
    },
  };
}
