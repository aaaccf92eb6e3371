import { useNavigate, useSearch } from '@tanstack/react-router';
import { lazy, Suspense, useMemo } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Checkbox, Field, Input, Select } from '../../ui/field.tsx';
import { formatCount, formatDuration, formatMoney } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { BudgetSection } from './budget.tsx';
import { NamespaceFrame } from './frame.tsx';

const CostChart = lazy(() => import('./cost-chart.tsx'));

const UsageQuery = graphql(`
  query NamespaceUsageRows(
    $namespace: String!, $from: Date!, $to: Date!, $period: UsagePeriod, $byUser: Boolean!, $after: String
  ) {
    namespace(name: $namespace) {
      id
      usage(first: 100, after: $after, from: $from, to: $to, period: $period, byUser: $byUser) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { from to jobs runtimeSeconds gpuSeconds cost user { id username } }
      }
      total: usage(first: 1, from: $from, to: $to) {
        nodes { jobs runtimeSeconds gpuSeconds cost }
      }
    }
  }
`);

type UsageRow = NonNullable<
  NonNullable<ResultOf<typeof UsageQuery>['namespace']>['usage']
>['nodes'][number];

const DAY_MS = 86_400_000;
/** The date `days` before today, in UTC as in the API. */
function daysAgo(days: number): string {
  return new Date(Date.now() - days * DAY_MS).toISOString().slice(0, 10);
}
const DATE = /^\d{4}-\d\d-\d\d$/;

/** The budget of a namespace, and the run time, GPU time and cost of its jobs. Dates and grouping are in the URL. */
export default function UsagePage() {
  return (
    <NamespaceFrame tab="Usage">
      {({ name, viewerRole }) => (
        <div className="space-y-8">
          <BudgetSection namespace={name} isAdmin={viewerRole === 'ADMIN'} />
          <Usage namespace={name} isAdmin={viewerRole === 'ADMIN'} />
        </div>
      )}
    </NamespaceFrame>
  );
}

function Usage({ namespace, isAdmin }: { namespace: string; isAdmin: boolean }) {
  const search = useSearch({ strict: false });
  const from = DATE.test(search.from ?? '') ? (search.from as string) : daysAgo(29);
  const to = DATE.test(search.to ?? '') ? (search.to as string) : daysAgo(0);
  const period = search.period === 'month' ? 'MONTH' : 'DAY';
  const byUser = isAdmin && search.by === 'user';
  const after = useAfterCursor();
  const asked = useRetryingQuery({
    query: UsageQuery,
    variables: { namespace, from, to, period: byUser ? null : period, byUser, after },
  });
  const navigate = useNavigate();
  const setSearch = (change: Record<string, string | undefined>) =>
    navigate({
      to: '.',
      search: (old) => ({ ...old, after: undefined, ...change }),
      replace: true,
    });
  return (
    <section aria-labelledby="usage" className="space-y-6">
      <h2 id="usage">Usage by time</h2>
      <div className="grid items-end gap-3 sm:grid-cols-4">
        <Field label="From">
          <Input
            type="date"
            value={from}
            onChange={({ target }) => setSearch({ from: target.value || undefined })}
          />
        </Field>
        <Field label="To">
          <Input
            type="date"
            value={to}
            onChange={({ target }) => setSearch({ to: target.value || undefined })}
          />
        </Field>
        <Field label="Period">
          <Select
            value={period}
            disabled={byUser}
            onChange={({ target }) =>
              setSearch({ period: target.value === 'MONTH' ? 'month' : undefined })
            }
          >
            <option value="DAY">day</option>
            <option value="MONTH">month</option>
          </Select>
        </Field>
        {isAdmin && (
          <Checkbox
            label="By user"
            checked={byUser}
            onChange={({ target }) => setSearch({ by: target.checked ? 'user' : undefined })}
          />
        )}
      </div>
      <Load asked={asked} of={(data) => data.namespace} what="usage">
        {({ usage, total }) => {
          const sum = total?.nodes[0];
          if (!usage || usage.totalCount === 0)
            return (
              <Empty title="No finished jobs in this period">
                <p>This page shows the usage and cost of finished jobs. Days are in UTC.</p>
                <ButtonLink to="/new/job" search={{ namespace }}>
                  New job
                </ButtonLink>
              </Empty>
            );
          return (
            <>
              {sum && (
                <p className="text-sm">
                  <span className="text-2xl font-semibold tabular-nums">
                    {formatMoney(sum.cost)}
                  </span>{' '}
                  <span className="text-dim">
                    for {formatCount(sum.jobs, 'finished job')},{' '}
                    {formatDuration(sum.runtimeSeconds)} of run time and{' '}
                    {formatDuration(sum.gpuSeconds)} of GPU time
                  </span>
                </p>
              )}
              {!byUser && <Chart rows={usage.nodes} from={from} to={to} />}
              <UsageTable rows={usage.nodes} byUser={byUser} />
              <CursorPagination pageInfo={usage.pageInfo} total={usage.totalCount} />
            </>
          );
        }}
      </Load>
    </section>
  );
}

function UsageTable({ rows, byUser }: { rows: readonly UsageRow[]; byUser: boolean }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable table must be reachable with the keyboard.
    <section tabIndex={0} aria-label="Usage as a table" className="card sideways">
      <table className="w-full text-right text-sm whitespace-nowrap tabular-nums">
        <thead>
          <tr className="border-b border-line text-dim [&>th]:px-4 [&>th]:py-2 [&>th]:font-medium">
            <th className="text-left">{byUser ? 'User' : 'Date'}</th>
            <th>Finished jobs</th>
            <th>Run time</th>
            <th>GPU time</th>
            <th>Cost</th>
          </tr>
        </thead>
        <tbody className="divide-y divide-line [&_td]:px-4 [&_td]:py-1.5 [&_th]:px-4">
          {rows.map((row) => (
            <tr key={`${row.from} ${row.user?.id}`}>
              <th scope="row" className="text-left font-normal">
                {byUser
                  ? (row.user?.username ?? 'deleted user')
                  : row.from === row.to
                    ? row.from
                    : `${row.from} to ${row.to}`}
              </th>
              <td>{row.jobs}</td>
              <td>{formatDuration(row.runtimeSeconds)}</td>
              <td>{formatDuration(row.gpuSeconds)}</td>
              <td>{formatMoney(row.cost)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Chart({
  rows,
  from,
  to,
}: {
  rows: readonly { from: string; cost: string }[];
  from: string;
  to: string;
}) {
  const days = useMemo(() => rows.map((row) => row.from), [rows]);
  const costs = useMemo(() => rows.map(({ cost }) => Number(cost)), [rows]);
  return (
    <Suspense fallback={<div style={{ height: 200 }} />}>
      <CostChart days={days} costs={costs} from={from} to={to} />
    </Suspense>
  );
}
