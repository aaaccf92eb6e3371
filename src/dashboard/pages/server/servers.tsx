import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { formatBytes, formatCount, formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime, useInterval } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const ServersQuery = graphql(`
  query Servers {
    servers {
      id url role isAlive isCurrent heartbeatAt
      worker {
        runner isAlive jobs
        machines {
          name cpus usedCpus memoryBytes usedMemoryBytes jobs maxJobs regions unavailableReason
          refusesImages refusesJobsWithoutImage gpus { name count }
        }
      }
    }
  }
`);

const REFRESH_MS = 3_000;

/** The Loam processes that share this database, and the machines that run jobs. */
export default function ServersPage() {
  const operator = Boolean(startData.viewer?.operator);
  const asked = useRetryingQuery({ query: ServersQuery, pause: !operator });
  useInterval(operator ? REFRESH_MS : null, asked.again);
  return (
    <SettingsFrame title="Servers" operatorsOnly about="Updated every 3 seconds.">
      <Load asked={asked} of={(data) => data.servers} what="list">
        {(servers) => (
          <ul className="rows">
            {servers.map(({ id, url, role, isAlive, isCurrent, heartbeatAt, worker }) => (
              <li key={id} className="space-y-2">
                <div className="flex flex-wrap items-center gap-x-3">
                  <h2 className="text-base break-all">{url ?? id}</h2>
                  <span className={`text-sm ${isAlive ? 'text-good' : 'text-bad'}`}>
                    {isAlive ? 'alive' : 'gone'}
                  </span>
                  <span className="text-sm text-dim">
                    role: {formatEnum(role)}
                    {isCurrent && ' · serves this page'} · last heartbeat{' '}
                    <RelativeTime at={heartbeatAt} />
                  </span>
                </div>
                {worker && (
                  <ul className="space-y-1 text-sm">
                    {worker.machines.map((machine) => (
                      <li key={machine.name}>
                        <span className="font-medium break-all">{machine.name}</span>{' '}
                        <span className="text-dim">
                          {machine.maxJobs === null
                            ? describeMachine(machine, worker.runner)
                            : describeCluster(machine)}
                          {machine.gpus.map((gpu) => ` · ${gpu.count} × ${gpu.name}`).join('')}
                          {machine.regions &&
                            ` · only ${machine.regions.map((region) => formatEnum(region).replaceAll(' ', '-')).join(', ')}`}
                        </span>
                        {machine.unavailableReason !== null && (
                          <p className="break-words text-bad">
                            takes no jobs: {machine.unavailableReason}
                          </p>
                        )}
                      </li>
                    ))}
                  </ul>
                )}
              </li>
            ))}
          </ul>
        )}
      </Load>
    </SettingsFrame>
  );
}

type Machine = NonNullable<
  NonNullable<ResultOf<typeof ServersQuery>['servers']>[number]['worker']
>['machines'][number];

function describeMachine(machine: Machine, runner: string): string {
  const { jobs, usedCpus, cpus, usedMemoryBytes, memoryBytes, unavailableReason } = machine;
  const count = `${formatCount(jobs, 'job')} by ${runner}`;
  if (unavailableReason !== null) return count;
  return `${count} · ${usedCpus} of ${cpus} vCPUs · ${formatBytes(usedMemoryBytes)} of ${formatBytes(memoryBytes)}`;
}

/** The engine of a cluster shares its nodes among jobs, so only the number of jobs is shown. */
function describeCluster(machine: Machine): string {
  const { jobs, maxJobs, cpus, memoryBytes, refusesImages, refusesJobsWithoutImage } = machine;
  return [
    `${jobs} of ${formatCount(maxJobs ?? 0, 'job')} in the cluster`,
    `up to ${cpus} vCPUs and ${formatBytes(memoryBytes)} for a job`,
    ...(refusesImages ? ['no jobs with an image'] : []),
    ...(refusesJobsWithoutImage ? ['only jobs with an image'] : []),
  ].join(' · ');
}
