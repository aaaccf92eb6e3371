import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Empty } from '../../ui/empty.tsx';
import { formatDuration, formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { useInterval } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const QueueQuery = graphql(`
  query ServerQueue {
    queue { gpu region running waiting oldestWait gpusOffered }
  }
`);

const REFRESH_MS = 3_000;

/** The numbers of waiting and running jobs, by GPU and region. */
export default function QueuePage() {
  const operator = Boolean(startData.viewer?.operator);
  const asked = useRetryingQuery({ query: QueueQuery, pause: !operator });
  useInterval(operator ? REFRESH_MS : null, asked.again);
  return (
    <SettingsFrame title="Queue" operatorsOnly about="Updated every 3 seconds.">
      <Load asked={asked} of={(data) => data.queue} what="queue">
        {(pools) =>
          pools.length === 0 ? (
            <Empty title="No jobs are waiting or running">
              <p>This page counts the jobs of all namespaces by GPU and region.</p>
            </Empty>
          ) : (
            // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable table must be reachable with the keyboard.
            <section tabIndex={0} aria-label="Queue" className="card sideways">
              <table className="w-full text-right text-sm whitespace-nowrap tabular-nums">
                <thead>
                  <tr className="border-b border-line text-dim [&>th]:px-4 [&>th]:py-2 [&>th]:font-medium">
                    <th className="text-left">GPU and region</th>
                    <th>Waiting</th>
                    <th>Longest wait</th>
                    <th>Running</th>
                    <th>GPUs available</th>
                  </tr>
                </thead>
                <tbody className="divide-y divide-line [&_td]:px-4 [&_td]:py-1.5 [&_th]:px-4">
                  {pools.map(({ gpu, region, running, waiting, oldestWait, gpusOffered }) => (
                    <tr key={`${gpu} ${region}`}>
                      <th scope="row" className="text-left font-normal">
                        {gpu === 'NONE' ? 'CPU' : gpu.replaceAll('_', ' ')},{' '}
                        {formatEnum(region).replaceAll(' ', '-')}
                      </th>
                      <td>{waiting}</td>
                      <td>{oldestWait === null ? '–' : formatDuration(oldestWait)}</td>
                      <td>{running}</td>
                      <td>{gpusOffered ?? '–'}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </section>
          )
        }
      </Load>
    </SettingsFrame>
  );
}
