import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { lazy, Suspense, useMemo, useRef } from 'react';
import type { VariablesOf } from '../../graphql/graphql.ts';
import { useScheme } from '../../layout/theme.ts';
import type { Search } from '../../root.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Input, Select } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { toJobFilter } from '../jobs/job-filter.ts';
import { useLiveJobs } from '../jobs/live-jobs.ts';
import { NamespaceFrame } from '../namespace/frame.tsx';
import { colourRows } from './colours.ts';
import { ComparisonTable } from './comparison-table.tsx';
import { Differences } from './differences.tsx';
import { MetricChoice } from './metric-choice.tsx';
import { CompareJobs } from './queries.ts';
import {
  type Column,
  chooseOrder,
  describeRow,
  filterRows,
  type MetricName,
  type Row,
  readBest,
  SHOWN_VALUES,
  sortRows,
  toColumns,
  toRows,
} from './table-model.ts';

const Curves = lazy(() => import('./curves.tsx'));
const Plots = lazy(() => import('./plots.tsx'));

/** A comparison is large, and jobs of a sweep change all the time. */
const COALESCE_MS = 5_000;

type Selection = VariablesOf<typeof CompareJobs>['jobs'][number];

/** Jobs side by side: a table, curves and plots. The jobs and the view are in the URL. */
export default function ComparePage() {
  const { namespace } = useParams({ from: '/$namespace/-/compare' });
  const search = useSearch({ strict: false }) as Search;
  const selections = toSelections(namespace, search);
  return (
    <NamespaceFrame tab="Compare jobs" within="Jobs">
      {() =>
        selections.length > 0 ? (
          <Comparison
            key={JSON.stringify(selections)}
            namespace={namespace}
            selections={selections}
            search={search}
          />
        ) : (
          <Empty title="No jobs selected">
            <p>
              Select jobs in the{' '}
              <Link to="/$namespace/-/jobs" params={{ namespace }} className="link">
                list of jobs
              </Link>{' '}
              and choose “Compare”.
            </p>
          </Empty>
        )
      }
    </NamespaceFrame>
  );
}

/** The jobs that the address names: `jobs=a,b,other/c`, or the filters of the list of jobs. */
function toSelections(namespace: string, search: Search): Selection[] {
  const names = (search.jobs ?? '').split(',').filter((name) => name !== '');
  const byNamespace = Map.groupBy(names, (name) =>
    name.includes('/') ? name.slice(0, name.indexOf('/')) : namespace,
  );
  if (names.length > 0)
    return [...byNamespace].map(([owner, of]) => ({
      namespace: owner,
      names: of.map((name) => name.slice(name.indexOf('/') + 1)),
    }));
  const filter = toJobFilter(search);
  return Object.keys(filter).length > 0 || search.all ? [{ namespace, filter }] : [];
}

function Comparison({
  namespace,
  selections,
  search,
}: {
  namespace: string;
  selections: Selection[];
  search: Search;
}) {
  const metrics = search.metrics?.split(',') ?? null;
  const asked = useRetryingQuery({
    query: CompareJobs,
    variables: { jobs: selections, metrics },
  });
  // Other metrics replace the shown ones when they arrive.
  const kept = useRef(asked.data);
  kept.current = asked.data ?? kept.current;
  const live = useLiveJobs([namespace], asked.again, COALESCE_MS);
  return (
    <Load
      asked={{ ...asked, data: kept.current }}
      of={({ compareJobs }) => compareJobs}
      what="comparison"
    >
      {(comparison) => (
        <>
          <p role="status" className="mb-4 flex flex-wrap gap-x-3 text-sm text-dim">
            <span>{formatCount(comparison.jobs.length, 'job')}</span>
            {comparison.isTruncated && <span>Only the newest 1,000 jobs are compared.</span>}
            {comparison.missing.length > 0 && (
              <span className="min-w-0 break-words" data-missing>
                Deleted, or not visible to you: {listSome(comparison.missing)}
              </span>
            )}
            <LiveDot state={live} />
          </p>
          {comparison.jobs.length === 0 ? (
            <Empty title="No jobs to compare" />
          ) : (
            <View comparison={comparison} search={search} namespace={namespace} />
          )}
        </>
      )}
    </Load>
  );
}

const MAX_LISTED = 5;

function listSome(names: readonly string[]): string {
  const rest = names.length - MAX_LISTED;
  return names.slice(0, MAX_LISTED).join(', ') + (rest > 0 ? ` and ${rest} more` : '');
}

type Compared = Parameters<typeof toRows>[0] & {
  readonly metricNames: readonly MetricName[] | null;
};

function View({
  comparison,
  search,
  namespace,
}: {
  comparison: Compared;
  search: Search;
  namespace: string;
}) {
  const navigate = useNavigate();
  const setSearch = (change: Search) =>
    navigate({ to: '.', search: (before) => ({ ...before, ...change }), replace: true });
  const shownValue = SHOWN_VALUES.find((one) => one === search.value) ?? 'last';
  const { metricNames, metrics } = comparison;
  const names = metricNames ?? [];
  const rows = useMemo(() => toRows(comparison), [comparison]);
  const columns = useMemo(
    () => toColumns(rows, metrics ?? [], metricNames ?? [], shownValue),
    [rows, metrics, metricNames, shownValue],
  );
  const order = chooseOrder(columns, search.sort);
  const sortColumn = columns.find(({ id }) => id === order?.id);
  const { find = '' } = search;
  const shown = useMemo(() => {
    const found = filterRows(rows, columns, find);
    return sortColumn && order ? sortRows(found, sortColumn, order.isDescending) : found;
  }, [rows, columns, find, sortColumn, order?.isDescending]);
  const picked = new Set((search.pick ?? '').split(',').filter((key) => key !== ''));
  const pickedRows = rows.filter(({ key }) => picked.has(key));
  const colourColumn =
    columns.find(({ id }) => id === search.colour) ??
    columns.find(({ kind }) => kind === 'value') ??
    null;
  const scheme = useScheme();
  const colours = useMemo(
    () => colourRows(rows, colourColumn, scheme),
    [rows, colourColumn, scheme],
  );
  const metricColumns = columns.filter(({ kind }) => kind === 'metric');
  const plots = { rows: shown, columns, colours, search, onChange: setSearch };
  return (
    <div className="space-y-8">
      <div className="space-y-3">
        <Best rows={shown} column={sortColumn} />
        <search className="flex flex-wrap items-center gap-2">
          <Input
            data-search
            type="search"
            aria-label="Filter jobs"
            placeholder="Filter: lr=0.01 loss<0.5"
            defaultValue={find}
            onChange={({ target }) => setSearch({ find: target.value })}
            className="w-full sm:w-64"
          />
          {metricColumns.length > 0 && (
            <Select
              aria-label="Value of metrics"
              value={shownValue}
              onChange={({ target }) => setSearch({ value: target.value })}
              className="w-auto"
            >
              <option value="last">Last values</option>
              <option value="best">Best values</option>
              <option value="min">Lowest values</option>
              <option value="max">Highest values</option>
            </Select>
          )}
          <ColourChoice columns={columns} shown={colourColumn} onChange={setSearch} />
          <MetricChoice
            names={names}
            chosen={search.metrics?.split(',') ?? metrics?.map(({ name }) => name) ?? []}
            onChange={(chosen) => setSearch({ metrics: chosen.join(',') || undefined })}
          />
        </search>
        <ComparisonTable
          namespace={namespace}
          rows={shown}
          total={rows.length}
          columns={columns}
          order={order}
          colours={colours}
          picked={picked}
          onOrder={(sort) => setSearch({ sort })}
          onPick={(keys) => setSearch({ pick: [...keys].join(',') || undefined })}
        />
      </div>
      {pickedRows.length === 2 && <Differences rows={pickedRows as [Row, Row]} />}
      <Suspense fallback={<LoadingSkeleton />}>
        {metricColumns.length > 0 && <Curves {...plots} picked={pickedRows} order={order} />}
        <Plots {...plots} order={order} />
      </Suspense>
    </div>
  );
}

/** The job at the top of a table that is sorted by a metric. */
function Best({ rows: [row], column }: { rows: readonly Row[]; column: Column | undefined }) {
  const value = row && column ? readBest(row, column) : null;
  if (!row || !column || value === null) return null;
  return (
    <p className="text-lg break-words" data-best>
      <span className="font-mono">{describeRow(row)}</span>: {column.title}{' '}
      <strong className="font-semibold">{column.format(value)}</strong>
    </p>
  );
}

function ColourChoice({
  columns,
  shown,
  onChange,
}: {
  columns: readonly Column[];
  shown: Column | null;
  onChange: (change: Search) => void;
}) {
  return (
    <Select
      aria-label="Colour by"
      value={shown?.id ?? ''}
      onChange={({ target }) => onChange({ colour: target.value })}
      className="w-auto max-w-64"
    >
      {!shown && <option value="">A colour for each job</option>}
      {columns.map(({ id, title }) => (
        <option key={id} value={id}>
          Colour by {title}
        </option>
      ))}
    </Select>
  );
}
