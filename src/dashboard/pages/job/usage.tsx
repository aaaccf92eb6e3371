import { lazy, Suspense } from 'react';
import { size } from '../../ui/format.ts';
import { Load, useAsk, Waiting } from '../../ui/load.tsx';
import { useEvery } from '../../ui/repeat.ts';
import { isFailed, isOver } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { JobUsage } from './queries.ts';
import { scaleOf, showsLimit } from './usage-scale.ts';

const UsageChart = lazy(() => import('./usage-chart.tsx'));
const GIB = 2 ** 30;
const AGAIN_MS = 10_000;

/** How much of its hardware the job used, over time. */
export function Usage({ job }: { job: JobData }) {
  if (!job.startedAt) return null;
  return (
    <section aria-labelledby="usage">
      <h2 id="usage" className="mb-2">
        Resource usage
      </h2>
      <Charts job={job} />
    </section>
  );
}

function Charts({ job: { namespace, name, status, attempts } }: { job: JobData }) {
  const asked = useAsk({ query: JobUsage, variables: { namespace, name } });
  useEvery(isOver(status) ? null : AGAIN_MS, asked.again);
  return (
    <Load asked={asked} of={(data) => data.job} what="job">
      {(job) => {
        const samples = job.usageSamples ?? [];
        if (samples.length === 0)
          return (
            <p className="text-sm text-dim">
              {isOver(status)
                ? 'The job was too short to be measured.'
                : 'No measurements yet. A running job is measured every few seconds.'}
            </p>
          );
        const times = samples.map(({ time }) => Date.parse(time) / 1_000);
        const percents = (title: string, values: number[]) => (
          <UsageChart
            text={inWords(title, values, (value) => `${Math.round(value)}%`)}
            unit="%"
            times={times}
            values={values}
            max={100}
          />
        );
        const bytes = (title: string, values: number[], limitGb: number) => {
          const most = Math.max(...values);
          const limit = limitGb * GIB;
          const isDrawn = showsLimit(most, limit, isFailed(status));
          const { unit, divisor } = scaleOf(isDrawn ? limit : most);
          return (
            <UsageChart
              text={`${inWords(title, values, size)}, limit ${size(limit)}`}
              unit={` ${unit}`}
              times={times}
              values={values.map((value) => value / divisor)}
              limit={isDrawn ? limit / divisor : undefined}
            />
          );
        };
        return (
          <Suspense fallback={<Waiting />}>
            <div className="card grid gap-6 p-4 md:grid-cols-2">
              {percents(
                'vCPUs',
                samples.map((s) => s.cpuUtilizationPercent),
              )}
              {bytes(
                'Memory',
                samples.map((s) => s.memoryUsedBytes),
                // A small machine gives an attempt less than the job asks for.
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

function inWords(title: string, values: number[], show: (value: number) => string): string {
  return `${title}: last ${show(values.at(-1) ?? 0)}, peak ${show(Math.max(...values))}`;
}
