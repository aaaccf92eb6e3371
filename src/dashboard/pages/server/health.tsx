import { Link } from '@tanstack/react-router';
import { CircleAlert, CircleCheck } from 'lucide-react';
import type { ReactNode } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { formatBytes, formatCount, formatDuration } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { useInterval } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const HealthQuery = graphql(`
  query ServerHealth {
    health { status }
    version { build commit version }
    sshHostKeys { type fingerprint publicKey }
    serverHealth {
      isDatabaseReachable
      databaseMs
      disks { folder freeBytes totalBytes isLow }
    }
    queue { gpu region running waiting oldestWait gpusOffered }
    servers {
      id url isAlive isCurrent
      worker { isAlive jobs machines { name unavailableReason } }
    }
  }
`);

type HealthData = ResultOf<typeof HealthQuery>;

const REFRESH_MS = 10_000;

/** What the server needs and whether it works, its version, and its SSH host keys. */
export default function HealthPage() {
  const operator = Boolean(startData.viewer?.operator);
  const asked = useRetryingQuery({ query: HealthQuery, pause: !operator });
  useInterval(operator ? REFRESH_MS : null, asked.again);
  return (
    <SettingsFrame title="Health" operatorsOnly about="Updated every 10 seconds.">
      <Load asked={asked} of={(data) => data} what="page">
        {(data) => (
          <div className="space-y-8">
            <Checks data={data} />
            <VersionFacts version={data.version} />
            <HostKeys keys={data.sshHostKeys} />
          </div>
        )}
      </Load>
    </SettingsFrame>
  );
}

/** `problem`: what is degraded; null if the part works. */
type Check = { name: string; state: ReactNode; problem: string | null };

function Checks({ data }: { data: HealthData }) {
  const checks = [
    checkDatabase(data),
    ...checkDisks(data),
    checkQueue(data),
    checkWorkers(data),
    checkServers(data),
  ];
  const problems = checks.filter(({ problem }) => problem !== null);
  return (
    <section aria-labelledby="checks" className="space-y-3">
      <h2 id="checks">
        {problems.length === 0
          ? 'Everything works'
          : `${formatCount(problems.length, 'problem')} found`}
      </h2>
      <ul className="rows text-sm">
        {checks.map(({ name, state, problem }) => (
          <li key={name} className="flex items-start gap-3" data-check={name}>
            {problem === null ? (
              <CircleCheck size={18} className="mt-0.5 shrink-0 text-good" aria-label="Works" />
            ) : (
              <CircleAlert size={18} className="mt-0.5 shrink-0 text-bad" aria-label="Degraded" />
            )}
            <div className="min-w-0">
              <h3 className="text-sm break-all">{name}</h3>
              <p className="break-words text-dim">{state}</p>
              {problem !== null && <p className="break-words text-bad">{problem}</p>}
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

function checkDatabase({ serverHealth }: HealthData): Check {
  const isReachable = serverHealth?.isDatabaseReachable ?? false;
  return {
    name: 'Database',
    state: isReachable ? `answers in ${serverHealth?.databaseMs.toFixed()} ms` : 'away',
    problem: isReachable ? null : 'The database does not answer: nothing can be read or changed.',
  };
}

function checkDisks({ serverHealth }: HealthData): Check[] {
  return (serverHealth?.disks ?? []).map(({ folder, freeBytes, totalBytes, isLow }) => ({
    name: `Disk of ${folder}`,
    state: `${formatBytes(freeBytes)} of ${formatBytes(totalBytes)} free`,
    problem: isLow
      ? 'Pushes, uploads and new jobs are refused until there is more free space (LOAM_DISK_FLOOR).'
      : null,
  }));
}

function checkQueue({ queue }: HealthData): Check {
  const pools = queue ?? [];
  const sum = (of: 'running' | 'waiting') => pools.reduce((total, pool) => total + pool[of], 0);
  const longest = Math.max(0, ...pools.map(({ oldestWait }) => oldestWait ?? 0));
  const stuck = pools.filter(({ waiting, gpusOffered }) => waiting > 0 && gpusOffered === 0);
  const wait = longest > 0 ? `, the longest for ${formatDuration(longest)}` : '';
  return {
    name: 'Queue',
    state: (
      <>
        {sum('running')} running, {sum('waiting')} waiting{wait}.{' '}
        <Link to="/settings/server/queue" className="link">
          Details
        </Link>
      </>
    ),
    problem:
      stuck.length === 0
        ? null
        : `No worker offers ${stuck.map(({ gpu }) => gpu.replaceAll('_', ' ')).join(', ')}, for which jobs wait.`,
  };
}

function checkWorkers({ servers }: HealthData): Check {
  const workers = (servers ?? []).flatMap(({ worker }) => (worker?.isAlive ? [worker] : []));
  const machines = workers.flatMap((worker) => worker.machines);
  const away = machines.filter(({ unavailableReason }) => unavailableReason !== null);
  const jobs = workers.reduce((total, worker) => total + worker.jobs, 0);
  return {
    name: 'Workers',
    state: (
      <>
        {formatCount(workers.length, 'worker')}, {formatCount(machines.length, 'machine')},{' '}
        {formatCount(jobs, 'job')}.{' '}
        <Link to="/settings/server/servers" className="link">
          Details
        </Link>
      </>
    ),
    problem:
      workers.length === 0
        ? 'No worker is alive, so no job starts.'
        : away.length === 0
          ? null
          : away.map(({ name, unavailableReason }) => `${name}: ${unavailableReason}`).join('; '),
  };
}

function checkServers({ servers }: HealthData): Check {
  const gone = (servers ?? []).filter(({ isAlive }) => !isAlive);
  return {
    name: 'Servers',
    state: `${(servers ?? []).length - gone.length} alive`,
    problem:
      gone.length === 0
        ? null
        : `No heartbeat of ${gone.map(({ url, id }) => url ?? id).join(', ')}.`,
  };
}

function VersionFacts({ version }: Pick<HealthData, 'version'>) {
  return (
    <section aria-labelledby="version">
      <h2 id="version" className="mb-3">
        Version
      </h2>
      <dl className="rows text-sm [&>div]:flex [&>div]:gap-4 [&_dt]:w-36 [&_dt]:text-dim">
        <div>
          <dt>Build</dt>
          <dd>{version.build}</dd>
        </div>
        <div>
          <dt>Commit</dt>
          <dd className="min-w-0 font-mono text-[13px] break-all">{version.commit ?? 'unknown'}</dd>
        </div>
        <div>
          <dt>API version</dt>
          <dd>{version.version}</dd>
        </div>
      </dl>
    </section>
  );
}

function HostKeys({ keys: sshHostKeys }: { keys: HealthData['sshHostKeys'] }) {
  return (
    <section aria-labelledby="host-keys">
      <h2 id="host-keys" className="mb-1">
        SSH host keys
      </h2>
      <p className="mb-3 text-sm text-dim">
        When you first connect, compare the fingerprint that SSH shows with these keys.
      </p>
      {sshHostKeys.length > 0 ? (
        <ul className="rows">
          {sshHostKeys.map(({ type, fingerprint, publicKey }) => (
            <li key={fingerprint} className="flex items-center gap-2">
              <div className="min-w-0 flex-1">
                <p className="font-medium">{type}</p>
                <code className="text-[13px] break-all text-dim">{fingerprint}</code>
              </div>
              <CopyButton text={publicKey} label={`Copy the public key ${type}`} />
            </li>
          ))}
        </ul>
      ) : (
        <p className="card px-4 py-3 text-sm text-dim">SSH is off on this server.</p>
      )}
    </section>
  );
}
