/** The curves of a metric, a line for each job. */
import { useMemo } from 'react';
import type { AlignedData } from 'uplot';
import type { Search } from '../../root.tsx';
import { Field, Select } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { LineChart } from '../job/line-chart.tsx';
import {
  type ChartView,
  hasPositive,
  type MetricSeries,
  toColumns as toLines,
} from '../job/metric-lines.ts';
import { ViewControls } from '../job/metrics.tsx';
import type { ColourScale } from './colours.ts';
import { Legend } from './legend.tsx';
import { ComparedCurves } from './queries.ts';
import { type Column, describeRow, type Order, type Row } from './table-model.ts';

/** Without a selection, and the most that are drawn. */
const DEFAULT_CURVES = 20;
const MAX_CURVES = 50;
const CHART_HEIGHT = 280;

export default function Curves({
  rows,
  picked,
  columns,
  colours,
  order,
  search,
  onChange,
}: {
  rows: readonly Row[];
  picked: readonly Row[];
  columns: readonly Column[];
  colours: ColourScale;
  order: Order | null;
  search: Search;
  onChange: (change: Search) => void;
}) {
  const metrics = columns.filter(({ kind }) => kind === 'metric');
  const metric =
    metrics.find(({ id }) => id === search.curve) ??
    metrics.find(({ id }) => id === order?.id) ??
    metrics[0];
  const candidates = (picked.length > 0 ? picked : rows).filter((row) =>
    metric ? row.metrics.has(metric.title) : false,
  );
  const drawn = candidates.slice(0, picked.length > 0 ? MAX_CURVES : DEFAULT_CURVES);
  const view: ChartView = {
    x: search.axis === 'time' ? 'time' : 'step',
    isLog: search.log === '1',
    smoothing: Math.min(Math.max(Number(search.smooth) || 0, 0), 0.99),
  };
  if (!metric) return null;
  return (
    <section aria-labelledby="curves" className="space-y-3">
      <h2 id="curves">Curves</h2>
      <div className="card space-y-4 p-4">
        <div className="flex flex-wrap items-end gap-x-6 gap-y-3">
          <Field label="Metric">
            <Select
              className="w-auto max-w-64 text-sm"
              value={metric.id}
              onChange={({ target }) => onChange({ curve: target.value })}
            >
              {metrics.map(({ id, title }) => (
                <option key={id} value={id}>
                  {title}
                </option>
              ))}
            </Select>
          </Field>
          <ViewControls
            view={view}
            onChange={({ x, isLog, smoothing }) =>
              onChange({
                axis: x === 'time' ? x : undefined,
                log: isLog ? '1' : undefined,
                smooth: smoothing > 0 ? `${smoothing}` : undefined,
              })
            }
          />
        </div>
        <Chart key={metric.id} metric={metric.title} rows={drawn} view={view} colours={colours} />
        <Legend colours={colours} rows={drawn} />
        {candidates.length > drawn.length && (
          <p className="text-sm text-dim">
            The first {drawn.length} of {formatCount(candidates.length, 'job')}. Select jobs in the
            table to see others.
          </p>
        )}
      </div>
    </section>
  );
}

function Chart({
  metric,
  rows,
  view,
  colours,
}: {
  metric: string;
  rows: readonly Row[];
  view: ChartView;
  colours: ColourScale;
}) {
  const asked = useRetryingQuery({
    query: ComparedCurves,
    variables: { ids: rows.map(({ job }) => job.id), metric },
    pause: rows.length === 0,
  });
  if (rows.length === 0)
    return <p className="text-sm text-dim">None of the jobs has this metric</p>;
  return (
    // As high as the chart with its caption.
    <div style={{ minHeight: CHART_HEIGHT + 24 }}>
      <Load asked={asked} of={({ nodes }) => nodes} what="metric">
        {(nodes) => {
          const found = new Map(
            nodes.flatMap((node) =>
              node && 'metrics' in node && node.metrics
                ? [[node.id, node.metrics[0]?.series?.at(-1)] as const]
                : [],
            ),
          );
          const lines = rows.flatMap((row) => {
            const series = found.get(row.job.id);
            return series ? [{ row, series }] : [];
          });
          return <Lines metric={metric} lines={lines} view={view} colours={colours} />;
        }}
      </Load>
    </div>
  );
}

function Lines({
  metric,
  lines,
  view,
  colours,
}: {
  metric: string;
  lines: { row: Row; series: MetricSeries }[];
  view: ChartView;
  colours: ColourScale;
}) {
  const series = useMemo(() => lines.map((line) => sinceStart(line.series)), [lines]);
  const isLog = view.isLog && hasPositive(series);
  const { x, smoothing } = view;
  const data = useMemo(
    () => toLines(series, { x, isLog, smoothing }).slice(0, series.length + 1) as AlignedData,
    [series, x, isLog, smoothing],
  );
  const names = lines.map(({ row }) => describeRow(row)).join('; ');
  return (
    <LineChart
      text={`${metric} of ${formatCount(lines.length, 'job')}: ${names}`}
      caption={<span className="font-mono break-all">{metric}</span>}
      height={CHART_HEIGHT}
      data={data}
      optionsKey={[x, isLog, ...lines.map(({ row }) => colours.of(row))].join()}
      data-curves={lines.length}
      options={() => ({
        scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
        x: {
          values: (_u, ticks, _axis, _space, step) =>
            ticks.map((at) => (x === 'time' ? formatElapsed(at, step) : formatTick(at))),
        },
        y: { values: (_u, ticks) => ticks.map(formatTick) },
        lines: lines.map(({ row }) => ({ stroke: colours.of(row), width: 1.5, spanGaps: false })),
      })}
    />
  );
}

/** The times since the first point, so that jobs of different days can be compared. */
function sinceStart(series: MetricSeries): MetricSeries {
  const start = series.times.reduce((first, time) => Math.min(first, time), Infinity);
  return { ...series, times: series.times.map((time) => time - start) };
}

function formatElapsed(seconds: number, step: number): string {
  if (step >= 3_600) return `${formatTick(seconds / 3_600)} h`;
  return step >= 60 ? `${formatTick(seconds / 60)} min` : `${formatTick(seconds)} s`;
}

/** A logarithmic scale has ticks without a label. */
function formatTick(tick: number | null): string {
  return tick === null ? '' : `${Number(tick.toPrecision(4))}`;
}
