/**
 * Budgets: what the jobs of a namespace may cost in a month in UTC. Admins set one, and the operator another that admins cannot
 * change; both apply. The cost is that of the ledger and of what runs now (`month_cost` in the database), so it stays when jobs
 * are deleted. A trigger refuses new jobs, and `costs/budget-loop.ts` does the rest.
 */
import { Decimal } from 'decimal.js';
import type pg from 'pg';
import { AppError, invalid, notFound } from '../../base/errors.ts';
import { checkMoney, formatMoney } from '../../base/money.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { recordAudit } from '../../identity/audit.ts';
import {
  type Account,
  demand,
  demandAccount,
  demandOperator,
  type Viewer,
} from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction, violatesCheck } from '../../platform/database/client.ts';
import { formatDay } from './usage-ledger.ts';

export type BudgetOwner = 'namespace' | 'operator';
export type OnReached = 'refuse' | 'cancel';

export type Budget = {
  owner: BudgetOwner;
  amount: string;
  onReached: OnReached;
  notify: number[];
  updatedAt: Date;
};

/** The data of the event `budget.reached`. Amounts are text, as everywhere in JSON. */
export type BudgetEventData = {
  budget: {
    namespace: string;
    /** Such as `2026-01`. */
    month: string;
    /** Percentage of the amount. */
    threshold: number;
    amount: string;
    cost: string;
    owner: BudgetOwner;
    on_reached: OnReached;
  };
};

const BUDGET_RULES = { thresholds: { maxEntries: 10, min: 1, max: 100 } } as const;

type Deps = { db: Db; pool: pg.Pool };

type BudgetKey = { namespace: string; owner: BudgetOwner };

/** @throws AppError 400, 401, 403, 404 */
export async function setBudget(
  services: Deps,
  viewer: Viewer,
  {
    namespace: name,
    owner,
    ...input
  }: BudgetKey & { amount: string; onReached: OnReached; notify: readonly number[] },
): Promise<{ namespaceId: string }> {
  const { author, namespace } = await demandChange(services, viewer, { namespace: name, owner });
  const { onReached } = input;
  const amount = checkMoney('month', input.amount);
  const notify = checkThresholds(input.notify);
  const values = { amount, onReached, notify, updatedAt: new Date() };
  const namespaceId = namespace.id;
  await inTransaction(services.db, async (tx) => {
    await tx.budget.upsert({
      where: { namespaceId_owner: { namespaceId, owner } },
      create: { namespaceId, owner, ...values },
      update: values,
    });
    await recordAudit(tx, author, {
      action: 'budget.set',
      namespaceIds: [namespaceId],
      subject: namespaceId,
      name: namespace.name,
      details: { owner, month: formatMoney(amount), onReached, notify },
    });
  });
  return { namespaceId };
}

/** @throws AppError 401, 403, 404 */
export async function deleteBudget(
  services: Deps,
  viewer: Viewer,
  key: BudgetKey,
): Promise<{ namespaceId: string }> {
  const { author, namespace } = await demandChange(services, viewer, key);
  const { owner } = key;
  const namespaceId = namespace.id;
  await inTransaction(services.db, async (tx) => {
    const { count } = await tx.budget.deleteMany({ where: { namespaceId, owner } });
    if (count === 0) throw notFound('Budget');
    await recordAudit(tx, author, {
      action: 'budget.delete',
      namespaceIds: [namespaceId],
      subject: namespaceId,
      name: namespace.name,
      details: { owner },
    });
  });
  return { namespaceId };
}

async function demandChange(
  { pool }: Deps,
  viewer: Viewer,
  { namespace: name, owner }: BudgetKey,
): Promise<{ author: Account; namespace: { id: string; name: string } }> {
  const author = owner === 'operator' ? demandOperator(viewer) : demandAccount(viewer);
  const namespace = await resolveNamespace(pool, name);
  demand(viewer, 'budget.administer', { namespaceId: namespace.id });
  return { author, namespace };
}

function checkThresholds(thresholds: readonly number[]): number[] {
  const { maxEntries, min, max } = BUDGET_RULES.thresholds;
  if (thresholds.length > maxEntries)
    throw invalid('notify', `must not have more than ${maxEntries} entries`);
  if (thresholds.some((each) => each < min || each > max))
    throw invalid('notify', `must be percentages from ${min} to ${max}`);
  if (new Set(thresholds).size < thresholds.length)
    throw invalid('notify', 'must not have the same percentage twice');
  return thresholds.toSorted((a, b) => a - b);
}

/** Answers a refusal of the trigger `jobs_within_budget`. @throws AppError 403, or `error` itself */
export async function throwIfOverBudget(
  { pool }: { pool: pg.Pool },
  namespaceId: string,
  error: unknown,
): Promise<never> {
  if (!violatesCheck(error, 'jobs_within_budget')) throw error;
  const { rows } = await pool.query<{ amount: string; cost: string; owner: BudgetOwner }>(
    `select amount::text, owner, month_cost(namespace_id)::text as cost from budgets
     where namespace_id = $1 order by amount limit 1`,
    [namespaceId],
  );
  const [budget] = rows;
  const amounts = budget
    ? `: its jobs have cost ${formatMoney(roundCost(budget.cost))} of ${formatMoney(budget.amount)}`
    : '';
  const who =
    budget?.owner === 'operator' ? 'The budget that the operator has set for' : 'The budget of';
  throw new AppError(
    'quota_exceeded',
    `${who} the namespace for this month is used up${amounts}. Months end in UTC`,
  );
}

/** To a hundredth of a cent, as all costs. */
export function roundCost(cost: string): Decimal {
  return new Decimal(cost).toDecimalPlaces(4);
}

export type LabelCost = { key: string; value: string; cost: Decimal; jobs: number };

export type BudgetStatus = {
  namespaceId: string;
  /** The first and the last day of the month, in UTC. */
  from: string;
  to: string;
  cost: Decimal;
  /** The cost at the end of the month, if the days to come cost as much as the last seven. */
  forecast: Decimal;
  budgets: Budget[];
};

/** Days from which the cost of a day is forecast. */
const FORECAST_DAYS = 7;

/** The cost of the current month and the budgets. @throws AppError 401, 403 */
export async function readBudgetStatus(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  namespaceId: string,
): Promise<BudgetStatus> {
  demand(viewer, 'usage.read', { namespaceId });
  const { rows } = await pool.query<{ cost: string; recent: string; budgets: BudgetRow[] }>(
    READ_STATUS,
    [namespaceId, FORECAST_DAYS],
  );
  const { cost = '0', recent = '0', budgets = [] } = rows[0] ?? {};
  const now = new Date();
  const [year, month] = [now.getUTCFullYear(), now.getUTCMonth()];
  const end = Date.UTC(year, month + 1, 1);
  const daysLeft = new Decimal(end - now.getTime()).div(86_400_000);
  const perDay = new Decimal(recent).div(FORECAST_DAYS);
  return {
    namespaceId,
    from: formatDay(new Date(Date.UTC(year, month, 1))),
    to: formatDay(new Date(end - 1)),
    cost: roundCost(cost),
    forecast: perDay.times(daysLeft).plus(cost).toDecimalPlaces(4),
    budgets: budgets.map(({ updatedAt, ...budget }) => ({
      ...budget,
      updatedAt: new Date(updatedAt),
    })),
  };
}

type BudgetRow = Omit<Budget, 'updatedAt'> & { updatedAt: string };

/** `recent`: the ledger of the last days, and what runs now, at most as much as in the current month. */
const READ_STATUS = `
  select month_cost($1)::text as cost, (
    greatest(month_cost($1) - (
      select coalesce(sum(price_seconds), 0) / 3600 from usage_days
      where namespace_id = $1 and day >= (date_trunc('month', now(), 'UTC') at time zone 'UTC')::date
    ), 0) + (
      select coalesce(sum(price_seconds), 0) / 3600 from usage_days
      where namespace_id = $1 and day > (now() at time zone 'UTC')::date - $2::int
    )
  )::text as recent, coalesce((
    select json_agg(json_build_object('owner', owner, 'amount', amount::text, 'onReached', on_reached,
      'notify', notify, 'updatedAt', updated_at) order by owner)
    from budgets where namespace_id = $1
  ), '[]') as budgets`;

/** Maximum number of labels, and of jobs of the month that are read for them. */
const MAX_LABELS = 50;
const MAX_JOBS = 50_000;

/**
 * The labels of the most expensive jobs that were created in the current month and still exist. A job with several labels counts
 * for each. The runtime of ended attempts counts.
 * @throws AppError 401, 403
 */
export async function readLabelCosts(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  namespaceId: string,
): Promise<LabelCost[]> {
  demand(viewer, 'usage.read', { namespaceId });
  const { rows } = await pool.query<{ key: string; value: string; cost: string; jobs: number }>(
    `with of_month as (
       select id, cost_per_hour * runtime_seconds / 3600 as cost from jobs
       where namespace_id = $1 and created_at >= date_trunc('month', now(), 'UTC')
       order by created_at desc limit $2
     )
     select key, value, sum(cost)::text as cost, count(*)::int as jobs
     from of_month join job_labels on job_id = id
     group by key, value order by sum(cost) desc, key, value limit $3`,
    [namespaceId, MAX_JOBS, MAX_LABELS],
  );
  return rows.map((row) => ({ ...row, cost: roundCost(row.cost) }));
}
