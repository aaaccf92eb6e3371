/**
 * Compares budgets with the cost of their namespaces, every ten seconds on every server that answers requests.
 *
 * - A threshold that is reached is published as an event, once in a month: the row of its notice is inserted in the same
 *   transaction.
 * - Of a budget that is reached, waiting jobs do not start. They are postponed without an end, and released when no budget of the
 *   namespace is reached any more: because it was raised or deleted, or in the next month. With `cancel`, waiting and running jobs
 *   are cancelled instead, each under the lock of its row.
 *
 * So all servers can do it at the same time, and no lock is needed. A job costs at most ten seconds more than the budget, and the
 * 30 seconds of its processes to end.
 */
import type pg from 'pg';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import { formatMoney } from '../../base/money.ts';
import { SERVER } from '../../identity/audit.ts';
import { eventNotification } from '../../platform/events/bus.ts';
import { startLoop } from '../../platform/loop.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import {
  type BudgetEventData,
  type BudgetOwner,
  type OnReached,
  roundCost,
} from '../record/budgets.ts';
import { cancelLockedJobs } from '../record/cancel.ts';
import { PHASES, withLockedJobs } from '../record/state.ts';

type Deps = { pool: pg.Pool; log: Logger; metrics: Metrics };

const INTERVAL_MS = 10_000;
/** Maximum number of jobs in one transaction; see `requests/bulk.ts`. */
const BATCH = 100;
/** Maximum number of names in the audit entry of a batch. */
const MAX_NAMES = 20;

/** Runs until disposed. */
export function startBudgetLoop(services: Deps): AsyncDisposable {
  return startLoop(
    { name: 'Enforcing budgets', every: INTERVAL_MS, waitsFirst: true, log: services.log },
    (signal) => enforceBudgets(services, signal),
  );
}

type Row = {
  namespaceId: string;
  namespace: string;
  owner: BudgetOwner;
  amount: string;
  onReached: OnReached;
  cost: string;
  /** Such as `2026-01-01`. */
  month: string;
  isReached: boolean;
  /** Reached thresholds without a notice in this month. */
  thresholds: number[];
};

const READ_BUDGETS = `
  select b.namespace_id as "namespaceId", n.name as namespace, b.owner, b.amount::text, b.on_reached as "onReached",
    cost::text, to_char(month, 'YYYY-MM-DD') as month, cost >= b.amount as "isReached", array (
      select threshold from unnest(b.notify) threshold
      where cost >= b.amount * threshold / 100 and not exists (
        select from budget_notices t where t.namespace_id = b.namespace_id and t.owner = b.owner
          and t.month = spent.month and t.threshold = threshold.threshold)
    ) as thresholds
  from budgets b join namespaces n on n.id = b.namespace_id cross join lateral (
    select month_cost(b.namespace_id) as cost, (date_trunc('month', now(), 'UTC') at time zone 'UTC')::date as month
  ) spent`;

/** Compares all budgets once. */
export async function enforceBudgets(services: Deps, signal?: AbortSignal): Promise<void> {
  const { pool, metrics } = services;
  const { rows } = await pool.query<Row>(READ_BUDGETS);
  const reached = new Set<string>();
  for (const row of rows) {
    if (signal?.aborted) return;
    for (const threshold of row.thresholds) await publishThreshold(services, row, threshold);
    if (!row.isReached) continue;
    reached.add(row.namespaceId);
    if (row.onReached === 'cancel') await cancelActiveJobs(services, row, signal);
    else await postponeWaitingJobs(services, row.namespaceId);
  }
  metrics.budgetsReached(reached.size);
  await releaseJobs(services, [...reached]);
}

async function publishThreshold({ pool }: Deps, row: Row, threshold: number): Promise<void> {
  const { namespaceId, namespace, owner, amount, cost, onReached, month } = row;
  const data: BudgetEventData = {
    budget: {
      namespace,
      month: month.slice(0, 7),
      threshold,
      owner,
      on_reached: onReached,
      amount: formatMoney(amount),
      cost: formatMoney(roundCost(cost)),
    },
  };
  await pool.query(
    `with notice as (
       insert into budget_notices (namespace_id, owner, month, threshold)
       select namespace_id, owner, $3::date, $4 from budgets where namespace_id = $1 and owner = $2
       on conflict do nothing returning namespace_id
     ), event as (
       insert into events (id, type, namespace_id, subject, data)
       select $5, 'budget.reached', namespace_id, namespace_id, $6 from notice returning id
     )
     select pg_notify('loam', $7) from event`,
    [
      ...[namespaceId, owner, month, threshold],
      newId('evt'),
      JSON.stringify(data),
      eventNotification(namespaceId, namespaceId),
    ],
  );
}

/** Cancels the jobs that cost something or would. */
async function cancelActiveJobs(
  { pool, metrics }: Deps,
  { namespaceId, namespace, amount, owner }: Row,
  signal: AbortSignal | undefined,
): Promise<void> {
  const reason = `cancelled: the budget of the namespace for this month, ${formatMoney(amount)}, is used up`;
  for (let after = ''; !signal?.aborted; ) {
    const { rows } = await pool.query<{ id: string }>(
      `select j.id from jobs j left join job_attempts a on a.id = j.attempt_id
       where j.namespace_id = $1 and j.status in ('queued', 'running') and j.id > $2 and a.exited_at is null
       order by j.id limit ${BATCH}`,
      [namespaceId, after],
    );
    const ids = rows.map(({ id }) => id);
    let count = 0;
    // Jobs that another transaction has locked are cancelled by the next round.
    await withLockedJobs(pool, ids, async (client, locked) => {
      const cancelled = await cancelLockedJobs(client, locked, {
        reason: () => reason,
        leavesExited: true,
        audit: (jobs) => [
          {
            by: SERVER,
            action: 'budget.cancel_jobs',
            namespaceIds: [namespaceId],
            subject: namespaceId,
            name: namespace,
            details: {
              owner,
              jobs: jobs.length,
              names: jobs.slice(0, MAX_NAMES).map(({ name }) => name),
            },
          },
        ],
      });
      count = cancelled.length;
    });
    metrics.jobsCancelledOverBudget(count);
    if (ids.length < BATCH) return;
    after = ids.at(-1) as string;
  }
}

/** The time until which jobs are postponed; no retry is delayed for so long. */
const POSTPONED_UNTIL = "timestamptz '9999-01-01 00:00:00Z'";
const POSTPONED = 'waiting: the budget of the namespace for this month is used up';
/** Maximum number of jobs in one statement that postpones or releases jobs. */
const UPDATED_AT_ONCE = 1_000;

/** A job that waits for other jobs is postponed when it no longer does. */
async function postponeWaitingJobs({ pool }: Deps, namespaceId: string): Promise<void> {
  await updateInBatches(
    pool,
    `update jobs set available_at = ${POSTPONED_UNTIL}, progress = $2 where id = any (array (
       select id from jobs where namespace_id = $1 and status = 'queued' and not blocked and attempt_id is null
         and available_at < ${POSTPONED_UNTIL}
       limit ${UPDATED_AT_ONCE} for update skip locked))`,
    [namespaceId, POSTPONED],
  );
}

/** @param reached the namespaces whose jobs stay postponed */
async function releaseJobs({ pool }: Deps, reached: readonly string[]): Promise<void> {
  const released = await updateInBatches(
    pool,
    `update jobs set available_at = now(), progress = $2 where id = any (array (
       select id from jobs where status = 'queued' and available_at > created_at
         and available_at >= ${POSTPONED_UNTIL} and attempt_id is null and namespace_id <> all ($1::text[])
       limit ${UPDATED_AT_ONCE} for update skip locked))`,
    [reached, PHASES.waiting],
  );
  if (released > 0) await pool.query("select pg_notify('loam', 'queue')");
}

async function updateInBatches(pool: pg.Pool, text: string, values: unknown[]): Promise<number> {
  for (let count = 0; ; ) {
    const { rowCount } = await pool.query(text, values);
    count += rowCount ?? 0;
    if ((rowCount ?? 0) < UPDATED_AT_ONCE) return count;
  }
}
