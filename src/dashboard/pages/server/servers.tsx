import { graphql } from '../../graphql/graphql.ts';
import { start } from '../../start.ts';
import { count, size, words } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { Ago, useEvery } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const ServersQuery = graphql(`
  query Servers {
    servers {
      id url role isAlive isCurrent heartbeatAt
      worker {
        runner isAlive jobs
        machines { name cpus usedCpus memoryBytes usedMemoryBytes jobs gpus { name count } }
      }
    }
  }
`);

const REFRESH_MS = 3_000;

/** The Loam processes that share this database, and the machines that run jobs. */
export default function ServersPage() {
  const operator = Boolean(start.viewer?.operator);
  const asked = useAsk({ query: ServersQuery, pause: !operator });
  useEvery(operator ? REFRESH_MS : null, asked.again);
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
                    role: {words(role)}
                    {isCurrent && ' · serves this page'} · last heartbeat <Ago at={heartbeatAt} />
                  </span>
                </div>
                {worker && (
                  <ul className="space-y-1 text-sm">
                    {worker.machines.map((machine) => (
                      <li key={machine.name}>
                        <span className="font-medium break-all">{machine.name}</span>{' '}
                        <span className="text-dim">
                          {count(machine.jobs, 'job')} by {worker.runner} · {machine.usedCpus} of{' '}
                          {machine.cpus} vCPUs · {size(machine.usedMemoryBytes)} of{' '}
                          {size(machine.memoryBytes)}
                          {machine.gpus.map((gpu) => ` · ${gpu.count} × ${gpu.name}`).join('')}
                        </span>
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
