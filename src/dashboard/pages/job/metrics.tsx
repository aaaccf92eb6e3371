import { Link } from '@tanstack/react-router';
import { lazy, type RefObject, Suspense, useEffect, useId, useRef, useState } from 'react';
import type { ResultOf } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { Checkbox, Field, Select } from '../../ui/field.tsx';
import { Load, LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { isFinished } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import type { ChartView } from './metric-lines.ts';
import { JobMetricSeries, JobMetrics, JobMetricsLive } from './queries.ts';

const MetricChart = lazy(() => import('./metric-chart.tsx'));
const MAX_SMOOTHING = 0.99;

type JobKey = Pick<JobData, 'namespace' | 'name'>;
type Metric = NonNullable<NonNullable<ResultOf<typeof JobMetrics>['job']>['metrics']>[number];

/** Charts of the metrics that the job prints. */
export function Metrics({ job }: { job: JobData }) {
  if (!job.startedAt) return null;
  return (
    <section aria-labelledby="metrics">
      <div className="mb-2 flex flex-wrap items-baseline gap-x-4">
        <h2 id="metrics">Metrics</h2>
        {job.array && (
          <Link
            to="/$namespace/-/compare"
            params={{ namespace: job.namespace }}
            search={{ array: job.array.id }}
            className="link text-sm"
          >
            Compare with the jobs of {job.array.name}
          </Link>
        )}
      </div>
      <MetricCharts job={job} />
    </section>
  );
}

function MetricCharts({ job: { namespace, name, status } }: { job: JobData }) {
  const key = { namespace, name };
  const metricsQuery = useRetryingQuery({ query: JobMetrics, variables: key });
  // A cancelled job may print until its processes have ended; the page of a running job stays subscribed until then.
  const [mayPrint] = useState(!isFinished(status));
  useLiveSubscription(JobMetricsLive, mayPrint ? `${namespace}/${name}` : null, {
    variables: () => key,
    onData: metricsQuery.again,
  });
  const [view, setView] = useState<ChartView>({ x: 'step', isLog: false, smoothing: 0 });
  // While there is data, the page itself says that the server cannot be reached.
  const { data, error } = metricsQuery;
  return (
    <Load
      asked={{ ...metricsQuery, error: data ? undefined : error }}
      of={(data) => data.job}
      what="job"
    >
      {({ metrics, metricsUrl }) => {
        if (!metrics || metrics.length === 0) return <NoMetrics />;
        return (
          <div className="card p-4">
            <ViewControls view={view} onChange={setView} />
            <div className="mt-4 grid gap-6 md:grid-cols-2">
              {metrics.map((metric) => (
                <LazyChart
                  key={metric.name}
                  job={key}
                  metric={metric}
                  view={view}
                  csvUrl={`${metricsUrl}&name=${encodeURIComponent(metric.name)}`}
                />
              ))}
            </div>
          </div>
        );
      }}
    </Load>
  );
}

function NoMetrics() {
  return (
    <p className="text-sm text-dim">
      No metrics. A program prints one with <code>echo "::metric::loss=0.5"</code>:{' '}
      <a href="/docs/metrics" className="link">
        Metrics of jobs
      </a>
    </p>
  );
}

/** The axis, smoothing and scale of charts. */
export function ViewControls({
  view,
  onChange,
}: {
  view: ChartView;
  onChange: (view: ChartView) => void;
}) {
  const id = useId();
  return (
    <div className="flex flex-wrap items-end gap-x-6 gap-y-3">
      <Field label="Horizontal axis">
        <Select
          className="w-auto text-sm"
          value={view.x}
          onChange={({ target }) => onChange({ ...view, x: target.value as ChartView['x'] })}
        >
          <option value="step">Step</option>
          <option value="time">Time</option>
        </Select>
      </Field>
      <div>
        <label htmlFor={id} className="mb-1 block text-sm font-medium">
          Smoothing: {view.smoothing}
        </label>
        <input
          id={id}
          type="range"
          min={0}
          max={MAX_SMOOTHING}
          step={0.01}
          value={view.smoothing}
          onChange={({ target }) => onChange({ ...view, smoothing: Number(target.value) })}
          className="block h-9 w-40 accent-accent"
        />
      </div>
      <div className="pb-1.5">
        <Checkbox
          label="Logarithmic scale"
          checked={view.isLog}
          onChange={({ target }) => onChange({ ...view, isLog: target.checked })}
        />
      </div>
    </div>
  );
}

/** Reads the points when the chart is first seen, and again while it is seen and there are new ones. */
function LazyChart({
  job,
  metric,
  view,
  csvUrl,
}: {
  job: JobKey;
  metric: Metric;
  view: ChartView;
  csvUrl: string;
}) {
  const container = useRef<HTMLDivElement>(null);
  const isVisible = useIsVisible(container);
  const [wasSeen, setSeen] = useState(false);
  if (isVisible && !wasSeen) setSeen(true);
  const seriesQuery = useRetryingQuery({
    query: JobMetricSeries,
    variables: { ...job, metric: metric.name },
    pause: !wasSeen,
  });
  const { again, data } = seriesQuery;
  const shown = data?.job?.metrics?.[0]?.points;
  useEffect(() => {
    if (isVisible && shown !== undefined && shown < metric.points) again();
    // Once for each new number of points: `again` is another function with each render.
  }, [isVisible, shown, metric.points]);
  return (
    // As high as a chart, so that charts below it are not taken for visible.
    <div ref={container} className="min-h-52 min-w-0">
      {wasSeen && (
        <Load asked={seriesQuery} of={(found) => found.job?.metrics?.[0]} what="metric">
          {({ series }) => (
            <Suspense fallback={<LoadingSkeleton />}>
              <MetricChart metric={metric} series={series ?? []} view={view} csvUrl={csvUrl} />
            </Suspense>
          )}
        </Load>
      )}
    </div>
  );
}

function useIsVisible(container: RefObject<HTMLElement | null>): boolean {
  const [isVisible, setVisible] = useState(false);
  useEffect(() => {
    if (!container.current) return;
    const observer = new IntersectionObserver(([entry]) =>
      setVisible(entry?.isIntersecting ?? false),
    );
    observer.observe(container.current);
    return () => observer.disconnect();
  }, [container]);
  return isVisible;
}
