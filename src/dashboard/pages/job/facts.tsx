import { Link } from '@tanstack/react-router';
import type { ResultOf } from '../../graphql/graphql.ts';
import { CopyButton } from '../../ui/copy.tsx';
import {
  describeValues,
  formatBytes,
  formatCount,
  formatDuration,
  formatMoney,
  shortSha,
} from '../../ui/format.ts';
import { isFinished } from '../../ui/status.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { ArrayLink } from '../jobs/array-row.tsx';
import { useRuntime } from '../jobs/job-row.tsx';
import { Dependencies } from './dependencies.tsx';
import type { JobFacts } from './queries.ts';
import { CommandText, Setting } from './setting.tsx';

export type JobData = ResultOf<typeof JobFacts>;

/** The runtime of the job and its cost so far. */
export function RuntimeAndCost({ job }: { job: JobData }) {
  const seconds = useRuntime(job);
  const cost =
    job.status === 'RUNNING' ? (seconds * Number(job.costPerHour)) / 3_600 : job.totalCost;
  return (
    <>
      {job.startedAt && (
        <span className="tabular-nums" data-runtime>
          ran {formatDuration(seconds)}
        </span>
      )}
      <span className="tabular-nums" data-cost>
        {formatMoney(cost)}
        {!isFinished(job.status) && ` at ${formatMoney(job.costPerHour)} an hour`}
      </span>
    </>
  );
}

function StoredCheckpoint({ createdAt, sizeBytes, files }: NonNullable<JobData['checkpoint']>) {
  return (
    <>
      {formatCount(files, 'file')}, {formatBytes(sizeBytes)} packed, <RelativeTime at={createdAt} />
    </>
  );
}

/** What the last attempt did with a cache. */
function describeCache(cache: JobData['caches'][number]): string {
  const { key, resolvedKey, restoredKey, restoredBytes, isSaved, problem } = cache;
  if (resolvedKey === null) return key;
  const other = restoredKey === resolvedKey ? '' : ` from ${restoredKey}`;
  const what = [
    restoredKey !== null && `restored${other} (${formatBytes(restoredBytes ?? 0)})`,
    restoredKey === null && problem === null && 'not found',
    isSaved && 'saved',
    problem,
  ];
  return `${resolvedKey}: ${what.filter(Boolean).join(', ')}`;
}

/** The settings that the job was created with. */
export function JobSettings({ job }: { job: JobData }) {
  const gpu = job.gpu === 'NONE' ? 'None' : `${job.gpuCount} × ${job.gpu.replaceAll('_', ' ')}`;
  const [owner = '', repository = ''] = job.repo?.split('/') ?? [];
  return (
    <section aria-labelledby="facts" className="card p-4">
      <h2 id="facts" className="mb-3 text-base">
        Settings
      </h2>
      <div className="mb-4">
        <div className="flex items-center justify-between">
          <span className="text-sm text-dim">Command</span>
          <CopyButton text={job.command} label="Copy the command" />
        </div>
        <CommandText command={job.command} />
      </div>
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {job.repo && (
          <Setting name="Repository">
            <Link
              to="/$namespace/$repository"
              params={{ namespace: owner, repository }}
              className="link"
            >
              {job.repo}
            </Link>
            {job.branch && ` @ ${job.branch}`}
            {job.snapshot && ' (working directory)'}
          </Setting>
        )}
        {job.repo && job.commitSha && (
          <Setting name="Commit">
            <Link
              to="/$namespace/$repository/commit/$sha"
              params={{ namespace: owner, repository, sha: job.commitSha }}
              className="link font-mono"
            >
              {shortSha(job.commitSha)}
            </Link>
          </Setting>
        )}
        <RunSetting job={job} />
        {job.matrixValues.length > 0 && (
          <Setting name="Matrix">
            <code className="text-[13px] break-all">{describeValues(job.matrixValues)}</code>
          </Setting>
        )}
        {job.image && (
          <Setting name="Image">
            <code className="break-all">{job.image}</code>
          </Setting>
        )}
        <Setting name="GPU">{gpu}</Setting>
        <Setting name="vCPUs">{job.cpu}</Setting>
        <Setting name="Memory">{job.memoryGb} GB</Setting>
        <Setting name="Disk">{job.diskGb} GB</Setting>
        <Setting name="Region">{job.region.toLowerCase().replaceAll('_', '-')}</Setting>
        <Setting name="Timeout">
          {job.timeoutMinutes % 60 === 0
            ? `${job.timeoutMinutes / 60} h`
            : `${job.timeoutMinutes} min`}{' '}
          per attempt
        </Setting>
        {job.maxCost !== null && <Setting name="Maximum cost">{formatMoney(job.maxCost)}</Setting>}
        {job.idleTimeoutMinutes !== null && (
          <Setting name="Idle timeout">{job.idleTimeoutMinutes} min without GPU load</Setting>
        )}
        {job.holdOnFailureMinutes > 0 && (
          <Setting name="Hold">
            {job.holdOnFailureMinutes} min after a failure
            {job.hold && !job.hold.isActive && `, held for ${formatDuration(job.hold.seconds)}`}
          </Setting>
        )}
        {job.shellAccess === 'NONE' && <Setting name="Shells">None</Setting>}
        <Setting name="Retries">
          {job.retries === 0 ? 'None' : `${job.retryCount} of ${job.retries}`}
        </Setting>
        {job.outputPath && (
          <Setting name="Output">
            <code className="break-all">{job.outputPath}</code>
          </Setting>
        )}
        {job.testReports.length > 0 && (
          <Setting name="Test reports">
            <code className="break-all">{job.testReports.join(' ')}</code>
          </Setting>
        )}
        <Dependencies job={job} />
        {job.inputs.length + job.repositoryInputs.length > 0 && (
          <Setting name="Inputs">
            <ul className="space-y-1">
              {job.inputs.map((input) => (
                <li key={`${input.jobName} ${input.path} ${input.to}`}>
                  <InputArtifacts namespace={job.namespace} {...input} />
                </li>
              ))}
              {job.repositoryInputs.map((input) => (
                <li key={`${input.repo} ${input.path} ${input.to}`}>
                  <InputRepository {...input} />
                </li>
              ))}
            </ul>
          </Setting>
        )}
        {job.outputs.length > 0 && (
          <Setting name="Outputs">
            <ul
              // biome-ignore lint/a11y/noNoninteractiveTabindex: scrolled by keyboard
              tabIndex={0}
              className="max-h-60 space-y-1 overflow-auto"
            >
              {job.outputs.map(({ name, value }) => (
                <li key={name}>
                  <code className="break-all">
                    {name}={value}
                  </code>
                </li>
              ))}
            </ul>
          </Setting>
        )}
        {job.caches.length > 0 && (
          <Setting name="Caches">
            <ul className="space-y-1">
              {job.caches.map((cache) => (
                <li key={cache.path}>
                  <code className="break-all">{cache.path}</code>
                  <div className="wrap-anywhere">{describeCache(cache)}</div>
                </li>
              ))}
            </ul>
          </Setting>
        )}
        {job.volumes.length > 0 && (
          <Setting name="Volumes">
            <ul className="space-y-1">
              {job.volumes.map(({ name, to, readOnly }) => (
                <li key={to}>
                  {name} at <code className="break-all">{to}</code>
                  {readOnly && ', read only'}
                </li>
              ))}
            </ul>
          </Setting>
        )}
        {job.checkpointPath && (
          <Setting name="Checkpoints">
            <code className="break-all">{job.checkpointPath}</code>
            {job.checkpointMinutes ? `, every ${job.checkpointMinutes} min` : ''}
            <div>
              {job.checkpoint ? (
                <StoredCheckpoint {...job.checkpoint} />
              ) : isFinished(job.status) ? (
                'Removed at the end of the job'
              ) : (
                'None stored'
              )}
            </div>
          </Setting>
        )}
        <NameSetting
          name="Environment"
          names={[...job.environmentNames, ...job.storedVariableNames]}
        />
        <NameSetting name="Secrets" names={[...job.secretNames, ...job.storedSecretNames]} />
        {job.permissions && (
          <Setting name="Permissions">
            {Object.entries({ Repository: job.permissions.repo, Jobs: job.permissions.jobs })
              .flatMap(([what, access]) => (access ? `${what}: ${access.toLowerCase()}` : []))
              .join(', ')}
          </Setting>
        )}
        {job.idTokens.length > 0 && (
          <Setting name="Identity tokens">
            {job.idTokens.map(({ variable, audience }) => (
              <div key={variable}>
                <code>{variable}</code> for {audience}
              </div>
            ))}
          </Setting>
        )}
        {job.labels.length > 0 && (
          <Setting name="Labels">
            {job.labels.map(({ key, value }) => (value ? `${key}=${value}` : key)).join(', ')}
          </Setting>
        )}
        {job.rerunOf && (
          <Setting name="Rerun of">
            <Link
              to="/$namespace/-/jobs/$job"
              params={{ namespace: job.rerunOf.namespace, job: job.rerunOf.name }}
              className="link"
            >
              {job.rerunOf.name}
            </Link>
          </Setting>
        )}
        <Setting name="ID">
          <code className="text-[11px] break-all">{job.id}</code>
        </Setting>
      </dl>
    </section>
  );
}

/** The run of an automation that created the job. */
export function RunSetting({ job: { run, runJob } }: { job: Pick<JobData, 'run' | 'runJob'> }) {
  if (!run) return null;
  const { namespace, name: repository } = run.repository;
  return (
    <Setting name="Run">
      <Link
        to="/$namespace/$repository/runs/$number"
        params={{ namespace, repository, number: `${run.number}` }}
        className="link"
      >
        #{run.number}
      </Link>{' '}
      · {runJob}
    </Setting>
  );
}

/** Artifacts of another job, and where they are in the working directory. */
function InputArtifacts({
  namespace,
  jobName,
  path,
  to,
  job,
  array,
}: JobData['inputs'][number] & { namespace: string }) {
  return (
    <>
      {job ? (
        <Link to="/$namespace/-/jobs/$job" params={{ namespace, job: job.name }} className="link">
          {jobName}
        </Link>
      ) : array ? (
        <ArrayLink namespace={namespace} array={{ id: array.id, name: jobName }} />
      ) : (
        jobName
      )}
      <InputPaths path={path} to={to} />
    </>
  );
}

/** Files of a repository, and where they are in the working directory. */
function InputRepository({
  repo,
  ref,
  commitSha,
  path,
  to,
  readOnly,
  repository,
}: JobData['repositoryInputs'][number]) {
  return (
    <>
      {repository ? (
        <Link
          to="/$namespace/$repository/commit/$sha"
          params={{
            namespace: repository.namespace,
            repository: repository.name,
            sha: commitSha,
          }}
          className="link"
        >
          {repo}
        </Link>
      ) : (
        repo
      )}
      {ref !== commitSha && ` @ ${ref}`} <code>{shortSha(commitSha)}</code>
      <InputPaths path={path} to={to} />
      {readOnly && ', read only'}
    </>
  );
}

function InputPaths({ path, to }: { path: string; to: string }) {
  return (
    <>
      {path && (
        <>
          {': '}
          <code className="break-all">{path}</code>
        </>
      )}
      {to && (
        <>
          {' → '}
          <code className="break-all">{to}</code>
        </>
      )}
    </>
  );
}

function NameSetting({ name, names }: { name: string; names: readonly string[] }) {
  if (names.length === 0) return null;
  return (
    <Setting name={name}>
      <code className="text-[13px]">{names.join(' ')}</code>
    </Setting>
  );
}
