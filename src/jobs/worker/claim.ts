/**
 * Taking jobs from the queue for a worker.
 *
 * Within a namespace and pool the oldest job is next. Between namespaces that one is next which holds the fewest jobs,
 * and of equals the one that was served longest ago. `queue_lines` has that order in an index: a row for each
 * namespace and pool in which jobs wait, so a claim reads the first entries, however many namespaces wait and
 * however many jobs have ever run.
 *
 * Claims follow each other (an advisory lock), or two workers would take by one and the same order; so a claim takes as
 * many jobs as the worker has room for. Whoever changes what is counted of a namespace locks its row in
 * `queue_shares`, and so does the claim before it takes: the head of a line moves past what it takes, and a job that
 * came with a smaller id after the statement had begun would be left behind for ever. What it read before that may be
 * a moment old: a job that was cancelled since is left out, and counts of that moment are as good as those of the
 * next. The jobs are locked last, and those that somebody else holds are left out: who cancels a job holds its row and
 * then waits for the namespace, so waiting for that row here could never end.
 *
 * The commit is not waited for until it is on disk. A claim that the database forgets in a crash was none: nothing runs
 * before the handle is stored, and storing it waits for that, and for all before it.
 */
import pg, { type Pool, type PoolClient } from 'pg';
import { onConnection } from '../../database/client.ts';
import { newId } from '../../ids.ts';
import { PHASES } from '../state.ts';
import type { Admitted, Candidate, Line, Wish } from './admission.ts';

/** Advisory lock under which workers claim jobs, one worker at a time. */
const CLAIMING = 465825750385;

/** What a worker must know of an attempt that it looks after. */
export type Claim = Wish & { jobId: string; attemptId: string; machine: string };
/** `waited`: seconds since it could have been claimed. */
export type Claimed = Claim & { region: string; waited: number };

export type Waiting = Candidate & { region: string; repo: boolean; image: string | null };

type ClaimInput = {
  workerId: string;
  runner: string;
  /** GPU model, or `none`, → the most GPUs that a job may ask for. A worker serves every region. */
  pools: ReadonlyMap<string, number>;
  /** How many lines are looked at, and how many jobs of each. */
  lines: number;
  depth: number;
  /** Ids of jobs that are looked at wherever they stand. */
  reserved: Iterable<string>;
  /** Whom to pass over, by their ids. */
  without?: { jobs: Iterable<string>; namespaces: Iterable<string> };
  /** Which of them start, and where. */
  decide(lines: Line<Waiting>[], reserved: Waiting[]): readonly Admitted<Waiting>[];
};

/**
 * The lock that a claim holds, which is given up when its server is frozen while it decides, and how its statements are planned: once for a connection, because planning them again
 * each time took six times as long as carrying them out; and row by row through indexes also while the tables are still
 * small, or they would read the rows of all namespaces for those of a few. One statement, because six have to be parsed.
 */
const BEGIN = `
  select set_config('synchronous_commit', 'off', true), set_config('idle_in_transaction_session_timeout', '5s', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    pg_advisory_xact_lock(${CLAIMING})`;

const WITHOUT = `
  without as materialized (
    select array (select jsonb_array_elements_text($1 -> 'without' -> 'jobs')) as jobs,
      array (select jsonb_array_elements_text($1 -> 'without' -> 'namespaces')) as namespaces
  ),`;
const NOT_THOSE_JOBS = ' and id <> all ((select jobs from without)::text[])';
const NOT_THOSE_NAMESPACES =
  ' and l.namespace_id <> all ((select namespaces from without)::text[])';

/**
 * The first jobs of the first lines that have a job for us, and of all other lines of the same namespaces; and the jobs
 * with a reservation (`turn` is null). Those are found by their ids alone: with the condition of the index of waiting
 * jobs, which is empty whenever statistics are taken, the planner takes that index, and walks it whole.
 *
 * @param passesOver whether there is anybody to pass over, which is seldom: else it is not looked for
 */
const readStatement = (passesOver: boolean) => `
  with pools as (
    select * from jsonb_to_recordset($1 -> 'pools') as p (gpu text, most int)
  ),${passesOver ? WITHOUT : ''} first as (
    select in_pool.* from pools cross join lateral (
      select l.namespace_id, l.held, l.served_at, l.line_served_at from queue_lines l
      cross join lateral (
        select from jobs
        where gpu = l.gpu and region = l.region and namespace_id = l.namespace_id and id >= l.head
          and status = 'queued' and attempt_id is null and available_at <= now()
          and (l.gpu = 'none' or gpu_count <= most)${passesOver ? NOT_THOSE_JOBS : ''}
        order by id limit 1
      ) any_job
      where l.gpu = pools.gpu and open${passesOver ? NOT_THOSE_NAMESPACES : ''}
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
      and (l.gpu = 'none' or gpu_count <= l.most)${passesOver ? NOT_THOSE_JOBS : ''}
    order by id limit ($1 ->> 'depth')::int
  ) j
  union all
  select null, 0, namespace_id, gpu, region, id, gpu_count, cpu, memory_gb, repo is not null,
    image
  from reserved where status = 'queued' and attempt_id is null and available_at <= now()
    ${passesOver ? NOT_THOSE_JOBS : ''}
  order by turn, id`;

const NOBODY = { jobs: [], namespaces: [] };

/** By all who change what is counted of a namespace, and by those who lock several in the order of their ids. */
const LOCK = `
  select from queue_shares where namespace_id = any (array (select jsonb_array_elements_text($1)))
  order by namespace_id for update`;

/**
 * Gives the jobs to their attempts, and counts. A line's head moves on to the first job up to the last one taken that
 * was not taken: one that did not fit, or that is to be tried again later.
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
 * Takes those jobs that `decide` says, and opens an attempt for each, in one transaction.
 * @returns what was taken: less than was decided where somebody else holds a job, such as who cancels it at that moment
 */
export async function claimJobs(
  { pool }: { pool: Pool },
  { workerId, runner, pools, lines, depth, reserved, without = NOBODY, decide }: ClaimInput,
): Promise<Claimed[]> {
  const wish = {
    pools: Array.from(pools, ([gpu, most]) => ({ gpu, most })),
    ...{ lines, depth, reserved: [...reserved] },
    without: { jobs: [...without.jobs], namespaces: [...without.namespaces] },
  };
  // A namespace is passed over for its jobs, so never without one.
  const reading = wish.without.jobs.length > 0 ? 'read_without' : 'read';
  return onConnection(pool, async (client) => {
    await prepare(client);
    const read = await run<Row>(client, ['begin', execute('begin', {}), execute(reading, wish)]);
    const chosen = decide(...linesOf(read.at(-1) ?? []));
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
    const [, taken = []] = await run<Taken>(client, [lock, take, 'commit']);
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

type Row = Waiting & { turn: number | null; held: number };
type Taken = { id: string; place: number; waited: number };

const STATEMENTS = {
  begin: BEGIN,
  read: readStatement(false),
  read_without: readStatement(true),
  lock: LOCK,
  take: TAKE,
};

/** The connections that have the statements. */
const prepared = new WeakSet<PoolClient>();

async function prepare(client: PoolClient): Promise<void> {
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

/** Statements in one round trip, for which they can have no parameters. @returns the rows of each */
async function run<R>(client: PoolClient, statements: string[]): Promise<R[][]> {
  const results = await client.query(statements.join(';'));
  return (results as unknown as { rows: R[] }[]).map(({ rows }) => rows);
}

/** `rows` in the order of turns, and within one of ids. */
function linesOf(rows: readonly Row[]): [Line<Waiting>[], Waiting[]] {
  const lines: (Line<Waiting> & { jobs: Waiting[] })[] = [];
  const reserved: Waiting[] = [];
  for (const { turn, held, ...job } of rows) {
    if (turn === null) reserved.push(job);
    else if (lines.at(-1)?.turn === turn) lines.at(-1)?.jobs.push(job);
    else lines.push({ namespaceId: job.namespaceId, held, turn, jobs: [job] });
  }
  return [lines, reserved];
}
