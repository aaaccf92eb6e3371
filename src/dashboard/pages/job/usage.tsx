import { lazy, Suspense, useState } from 'react';
import { Load, useAsk, Waiting } from '../../ui/load.tsx';
import { useEvery } from '../../ui/repeat.ts';
import { isOver } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { JobUsage } from './queries.ts';

const UsageChart = lazy(() => import('./usage-chart.tsx'));
const GIB = 2 ** 30;
const AGAIN_MS = 10_000;

/** How much of its hardware the job used, over time. Asked for when it is opened: most look at the log alone. */
export function Usage({ job }: { job: JobData }) {
  const [isOpen, setOpen] = useState(false);
  if (!job.startedAt) return null;
  return (
    <details className="card p-4" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="font-semibold">Usage of the hardware</summary>
      {isOpen && <Charts job={job} />}
    </details>
  );
}

function Charts({ job: { namespace, name, status } }: { job: JobData }) {
  const asked = useAsk({ query: JobUsage, variables: { namespace, name } });
  useEvery(isOver(status) ? null : AGAIN_MS, asked.again);
  return (
    <Load asked={asked} of={(data) => data.job} what="job">
      {(job) => {
        const samples = job.usageSamples ?? [];
        if (samples.length === 0)
          return (
            <p className="mt-2 text-sm text-dim">
              Nothing was measured yet: the job is looked at every few seconds.
            </p>
          );
        const times = samples.map(({ time }) => Date.parse(time) / 1_000);
        const gb = (bytes: number) => bytes / GIB;
        return (
          <Suspense fallback={<Waiting />}>
            <div className="mt-4 grid gap-6 md:grid-cols-2">
              <UsageChart
                title="vCPUs"
                unit="%"
                times={times}
                values={samples.map((s) => s.cpuUtilizationPercent)}
                max={100}
              />
              <UsageChart
                title="Memory"
                unit=" GiB"
                times={times}
                values={samples.map((s) => gb(s.memoryUsedBytes))}
              />
              {job.gpu !== 'NONE' && (
                <UsageChart
                  title="GPUs"
                  unit="%"
                  times={times}
                  values={samples.map((s) => s.gpuUtilizationPercent)}
                  max={100}
                />
              )}
              <UsageChart
                title="Disk"
                unit=" GiB"
                times={times}
                values={samples.map((s) => gb(s.diskUsedBytes))}
              />
            </div>
          </Suspense>
        );
      }}
    </Load>
  );
}
