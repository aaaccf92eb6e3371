import { lazy, Suspense } from 'react';
import { formatBytes } from '../../ui/format.ts';
import { Load, LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { isFailed, isFinished } from '../../ui/status.tsx';
import { useInterval } from '../../ui/time.tsx';
import type { JobData } from './facts.tsx';
import { JobUsage } from './queries.ts';

const UsageChart = lazy(() => import('./usage-chart.tsx'));
const GIB = 2 ** 30;
const REFRESH_MS = 10_000;

/** Charts of the hardware that the job used over time. */
export function Usage({ job }: { job: JobData }) {
  if (!job.startedAt) return null;
  return (
    <section aria-labelledby="usage">
      <h2 id="usage" className="mb-2">
        Resource usage
      </h2>
      <UsageCharts job={job} />
    </section>
  );
}

function UsageCharts({ job: { namespace, name, status, attempts } }: { job: JobData }) {
  const usageQuery = useRetryingQuery({ query: JobUsage, variables: { namespace, name } });
  useInterval(isFinished(status) ? null : REFRESH_MS, usageQuery.again);
  return (
    <Load asked={usageQuery} of={(data) => data.job} what="job">
      {(job) => {
        const samples = job.usageSamples ?? [];
        if (samples.length === 0)
          return (
            <p className="text-sm text-dim">
              {isFinished(status)
                ? 'The job was too short to be measured.'
                : 'No measurements yet. A running job is measured every few seconds.'}
            </p>
          );
        const times = samples.map(({ time }) => Date.parse(time) / 1_000);
        const percents = (title: string, values: number[]) => (
          <UsageChart
            text={describe(title, values, (value) => `${Math.round(value)}%`)}
            unit="%"
            times={times}
            values={values}
            max={100}
          />
        );
        const bytes = (title: string, values: number[], limitGb: number) => {
          const peak = Math.max(...values);
          const limit = limitGb * GIB;
          const isDrawn = showsLimit(peak, limit, isFailed(status));
          const { unit, divisor } = chooseScale(isDrawn ? limit : peak);
          return (
            <UsageChart
              text={`${describe(title, values, formatBytes)}, limit ${formatBytes(limit)}`}
              unit={` ${unit}`}
              times={times}
              values={values.map((value) => value / divisor)}
              limit={isDrawn ? limit / divisor : undefined}
            />
          );
        };
        return (
          <Suspense fallback={<LoadingSkeleton />}>
            <div className="card grid gap-6 p-4 md:grid-cols-2">
              {percents(
                'vCPUs',
                samples.map((s) => s.cpuUtilizationPercent),
              )}
              {bytes(
                'Memory',
                samples.map((s) => s.memoryUsedBytes),
                // On a small machine an attempt gets less memory than the job requested.
                attempts.nodes.at(-1)?.memoryGb ?? job.memoryGb,
              )}
              {job.gpu !== 'NONE' &&
                percents(
                  'GPUs',
                  samples.map((s) => s.gpuUtilizationPercent),
                )}
              {bytes(
                'Disk',
                samples.map((s) => s.diskUsedBytes),
                job.diskGb,
              )}
            </div>
          </Suspense>
        );
      }}
    </Load>
  );
}

function describe(title: string, values: number[], show: (value: number) => string): string {
  return `${title}: last ${show(values.at(-1) ?? 0)}, peak ${show(Math.max(...values))}`;
}

const UNITS: [unit: string, bytes: number][] = [
  ['GiB', 2 ** 30],
  ['MiB', 2 ** 20],
  ['KiB', 2 ** 10],
];

type Scale = { unit: string; divisor: number };

/** The largest unit in which the peak is at least 1. */
function chooseScale(peak: number): Scale {
  const [unit, divisor] = UNITS.find(([, bytes]) => peak >= bytes) ?? ['KiB', 2 ** 10];
  return { unit, divisor };
}

/** Below this share of the limit, the usage would be a flat line at the bottom of the chart. */
const MIN_SHARE_OF_LIMIT = 0.1;

/** Failed jobs always show the limit: a sudden rise may have reached it between two measurements. */
function showsLimit(peak: number, limit: number, hasFailed: boolean): boolean {
  return hasFailed || peak >= limit * MIN_SHARE_OF_LIMIT;
}
