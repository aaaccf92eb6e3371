/**
 * The usage of a namespace and its cost: a ledger (`usage_days`) with a row for each namespace, user and day in UTC. The time
 * of an attempt is added to the job and to the ledger in one transaction (`moveJob`). The ledger stays when jobs are deleted.
 * Costs are stored as price per hour times seconds, which is exact, and divided by 3600 when they are shown.
 */

import { Decimal } from 'decimal.js';
import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  paginateList,
} from '../../platform/database/paging.ts';
import { runStatement, type Transaction } from '../../platform/database/statement.ts';
import { runSpanUntil, secondsBetween } from './runtime.ts';

const DAY_MS = 86_400_000;
/** Maximum number of days in a query. */
const MAX_DAYS = 366;
/** The same for a query that returns a row for each day and user. */
const MAX_DAYS_BY_USER = 31;

/** The billed time of an attempt: whole seconds from its start. */
export type RunSpan = { from: Date; seconds: number };

type Priced = { gpu: string; gpuCount: number; costPerHour: { toString(): string } };
type LedgerJob = Priced & { namespaceId: string; createdById: string | null };

/** The time that an attempt ran, if any, and the end of its job, if it has ended. */
export type UsageEntry = { job: LedgerJob; ran?: RunSpan; endedAt?: Date };

/**
 * Adds the time that jobs ran, and counts each job on the day on which it ended. To avoid deadlocks, all transactions lock the
 * rows of the ledger last, in the order of this statement. Only the rows of `queue_shares` are locked later, at the commit.
 */
export async function addUsage(tx: Transaction, used: readonly UsageEntry[]): Promise<void> {
  const parts = used.flatMap(({ job, ran, endedAt }) => {
    const days = ran ? splitByDay(ran).map((part) => ({ ...part, jobs: 0 })) : [];
    if (endedAt) days.push({ day: formatDay(endedAt), seconds: 0, jobs: 1 });
    return days.map((part) => ({ job, ...part }));
  });
  if (parts.length === 0) return;
  await runStatement(tx, ADD_TO_LEDGER, [
    parts.map(({ job }) => job.namespaceId),
    parts.map(({ day }) => day),
    parts.map(({ job }) => job.createdById ?? ''),
    parts.map(({ seconds }) => seconds),
    parts.map(({ job }) => (job.gpu === 'none' ? 0 : job.gpuCount)),
    parts.map(({ job }) => job.costPerHour.toString()),
    parts.map(({ jobs }) => jobs),
  ]);
}

const ADD_TO_LEDGER = `
  insert into usage_days as ledger
    (namespace_id, day, user_id, seconds, gpu_seconds, price_seconds, jobs)
  select namespace_id, day, user_id, sum(seconds), sum(seconds * gpus), sum(seconds * cost_per_hour), sum(jobs)
  from unnest($1::text[], $2::date[], $3::text[], $4::bigint[], $5::int[], $6::numeric[], $7::int[])
    as part (namespace_id, day, user_id, seconds, gpus, cost_per_hour, jobs)
  group by 1, 2, 3 order by 1, 2, 3
  on conflict (namespace_id, day, user_id) do update set
    seconds = ledger.seconds + excluded.seconds,
    gpu_seconds = ledger.gpu_seconds + excluded.gpu_seconds,
    price_seconds = ledger.price_seconds + excluded.price_seconds,
    jobs = ledger.jobs + excluded.jobs`;

/** Splits a run by days in UTC. Only its boundaries are rounded to seconds, so that the parts add up to the whole. */
function splitByDay({ from, seconds }: RunSpan): { day: string; seconds: number }[] {
  const parts: { day: string; seconds: number }[] = [];
  let counted = 0;
  for (let time = from.getTime(); counted < seconds; ) {
    const midnight = (Math.floor(time / DAY_MS) + 1) * DAY_MS;
    const secondsToMidnight = Math.min(seconds, secondsBetween(from, new Date(midnight)));
    if (secondsToMidnight > counted)
      parts.push({ day: formatDay(new Date(time)), seconds: secondsToMidnight - counted });
    counted = secondsToMidnight;
    time = midnight;
  }
  return parts;
}

/** Formats a day in UTC, such as `2026-01-31`. */
export function formatDay(time: Date): string {
  return time.toISOString().slice(0, 10);
}

type Period = 'day' | 'month';

export type UsageQuery = CursorPageRequest & {
  /** The first and the last day, in UTC. */
  from: string;
  to: string;
  /** Null: one row for all days together. */
  period?: Period | null;
  byUser: boolean;
};

export type UsageRow = {
  from: string;
  to: string;
  /** Null for all users together, or for users who have been deleted. */
  userId: string | null;
  seconds: bigint;
  gpuSeconds: bigint;
  cost: Decimal;
  jobs: number;
};

/**
 * Reads the usage from one day to another, both included, by period and user. Running attempts count until now, or until the
 * end of their process.
 * @throws AppError 400, 401, 403; members see the total, and only admins the usage of each user
 */
export async function readNamespaceUsage(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  namespaceId: string,
  { from, to, period, byUser, ...range }: UsageQuery,
): Promise<CursorPage<UsageRow>> {
  demand(viewer, byUser ? 'usage.readByUser' : 'usage.read', { namespaceId });
  const days = 1 + Math.round((Date.parse(to) - Date.parse(from)) / DAY_MS);
  const max = byUser && period === 'day' ? MAX_DAYS_BY_USER : MAX_DAYS;
  if (days < 1) throw invalid('to', 'must not be before from');
  if (days > max) throw invalid('to', `must be at most ${max - 1} days after from`);

  // The name of a period is the common prefix of its days, such as `2026-01`.
  const length = period === 'day' ? 10 : period === 'month' ? 7 : 0;
  const groups = new Map<
    string,
    Omit<UsageRow, 'from' | 'to' | 'cost'> & { price: Decimal; name: string }
  >();
  const add = (name: string, user: string, used: Omit<LedgerRow, 'name' | 'user_id'>) => {
    const key = `${name}/${user}`;
    const group = groups.get(key);
    groups.set(key, {
      name,
      userId: user || null,
      seconds: (group?.seconds ?? 0n) + BigInt(used.seconds),
      gpuSeconds: (group?.gpuSeconds ?? 0n) + BigInt(used.gpu_seconds),
      price: (group?.price ?? new Decimal(0)).plus(used.price_seconds),
      jobs: (group?.jobs ?? 0) + Number(used.jobs),
    });
  };
  const { rows } = await pool.query<{ used: LedgerRow[]; running: RunningAttempt[] }>({
    name: 'loam-usage-of-namespace',
    text: USAGE,
    values: [namespaceId, from, to, length, byUser],
  });
  const now = new Date();
  const { used = [], running = [] } = rows[0] ?? {};
  for (const { name, user_id, ...amounts } of used) add(name, user_id, amounts);
  for (const { user_id, gpu, gpu_count, cost_per_hour, started_at, exited_at } of running) {
    const exitedAt = exited_at === null ? null : new Date(exited_at);
    const ran = runSpanUntil({ startedAt: new Date(started_at), exitedAt }, now);
    for (const { day, seconds } of ran ? splitByDay(ran) : []) {
      if (day < from || day > to) continue;
      const gpu_seconds = gpu === 'none' ? 0 : seconds * gpu_count;
      const price_seconds = new Decimal(cost_per_hour).times(seconds).toFixed();
      const amounts = { seconds, gpu_seconds, price_seconds, jobs: 0 };
      add(day.slice(0, length), byUser ? user_id : '', amounts);
    }
  }
  const list = [...groups.entries()]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, { name, price, ...amounts }]) => ({
      key,
      row: {
        ...amounts,
        ...daysOfPeriod(name, { from, to }),
        cost: price.div(3600).toDecimalPlaces(4),
      },
    }));
  const { items, ...pageInfo } = paginateList(list, range, ({ key }) =>
    Buffer.from(key).toString('base64url'),
  );
  return { ...pageInfo, items: items.map(({ cursor, node }) => ({ cursor, node: node.row })) };
}

type LedgerRow = {
  name: string;
  user_id: string;
  seconds: string | number;
  gpu_seconds: string | number;
  price_seconds: string;
  jobs: number;
};

type RunningAttempt = {
  user_id: string;
  gpu: string;
  gpu_count: number;
  cost_per_hour: string;
  started_at: string;
  exited_at: string | null;
};

/**
 * Reads the ledger and the running attempts in one statement, so that an attempt that ends at the same time is in exactly one
 * of them. The number of running attempts is bounded by the slots of all workers. Large numbers are text, because JSON numbers
 * are inexact. Days are formatted explicitly, because the default format depends on the database's DateStyle.
 */
const USAGE = `
  select coalesce((
    select json_agg(part) from (
      select left(to_char(day, 'YYYY-MM-DD'), $4::int) as name,
        case when $5::bool then user_id else '' end as user_id,
        sum(seconds)::text as seconds, sum(gpu_seconds)::text as gpu_seconds,
        sum(price_seconds)::text as price_seconds, sum(jobs)::int as jobs
      from usage_days where namespace_id = $1 and day between $2::date and $3::date
      group by 1, 2
    ) part
  ), '[]') as used, coalesce((
    select json_agg(part) from (
      select coalesce(j.created_by_id, '') as user_id, j.gpu, j.gpu_count,
        j.cost_per_hour::text as cost_per_hour, a.started_at, a.exited_at
      from jobs j join job_attempts a on a.id = j.attempt_id
      where j.namespace_id = $1 and j.attempt_id is not null and j.status = 'running'
        and a.started_at is not null
    ) part
  ), '[]') as running`;

/** Returns the first and last day of a period, limited to the requested days. */
function daysOfPeriod(name: string, { from, to }: { from: string; to: string }) {
  if (name.length === 10) return { from: name, to: name };
  if (name === '') return { from, to };
  const [year = 0, month = 0] = name.split('-').map(Number);
  const last = formatDay(new Date(Date.UTC(year, month, 0)));
  const first = `${name}-01`;
  return { from: first < from ? from : first, to: last > to ? to : last };
}
