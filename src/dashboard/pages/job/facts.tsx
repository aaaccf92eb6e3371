import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import type { ResultOf } from '../../graphql/graphql.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { duration, money, shortSha } from '../../ui/format.ts';
import { isOver } from '../../ui/status.tsx';
import { useRuntime } from '../jobs/runtime.ts';
import type { JobFacts } from './queries.ts';

export type JobData = ResultOf<typeof JobFacts>;

/** How long it has run, and what that costs. */
export function Cost({ job }: { job: JobData }) {
  const seconds = useRuntime(job);
  const cost =
    job.status === 'RUNNING' ? (seconds * Number(job.costPerHour)) / 3_600 : job.totalCost;
  return (
    <>
      {job.startedAt && (
        <span className="tabular-nums" data-runtime>
          ran {duration(seconds)}
        </span>
      )}
      <span className="tabular-nums" data-cost>
        {money(cost)}
        {!isOver(job.status) && ` at ${money(job.costPerHour)} an hour`}
      </span>
    </>
  );
}

/** What it was created with. */
export function Facts({ job }: { job: JobData }) {
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
        <pre className="max-h-60 overflow-auto rounded bg-sunken p-2 text-[13px] break-words whitespace-pre-wrap">
          {job.command}
        </pre>
      </div>
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {job.repo && (
          <Fact name="Repository">
            <Link
              to="/$namespace/$repository"
              params={{ namespace: owner, repository }}
              className="link"
            >
              {job.repo}
            </Link>
            {job.branch && ` @ ${job.branch}`}
          </Fact>
        )}
        {job.repo && job.commitSha && (
          <Fact name="Commit">
            <Link
              to="/$namespace/$repository/commit/$sha"
              params={{ namespace: owner, repository, sha: job.commitSha }}
              className="link font-mono"
            >
              {shortSha(job.commitSha)}
            </Link>
          </Fact>
        )}
        {job.image && (
          <Fact name="Image">
            <code className="break-all">{job.image}</code>
          </Fact>
        )}
        <Fact name="GPU">{gpu}</Fact>
        <Fact name="vCPUs">{job.cpu}</Fact>
        <Fact name="Memory">{job.memoryGb} GB</Fact>
        <Fact name="Disk">{job.diskGb} GB</Fact>
        <Fact name="Region">{job.region.toLowerCase().replaceAll('_', '-')}</Fact>
        <Fact name="Timeout">
          {job.timeoutMinutes % 60 === 0
            ? `${job.timeoutMinutes / 60} h`
            : `${job.timeoutMinutes} min`}{' '}
          per attempt
        </Fact>
        <Fact name="Retries">
          {job.retries === 0 ? 'None' : `${job.retryCount} of ${job.retries}`}
        </Fact>
        {job.outputPath && (
          <Fact name="Output">
            <code className="break-all">{job.outputPath}</code>
          </Fact>
        )}
        <Names name="Environment" names={job.environmentNames} />
        <Names name="Secrets" names={job.secretNames} />
        {job.labels.length > 0 && (
          <Fact name="Labels">
            {job.labels.map(({ key, value }) => (value ? `${key}=${value}` : key)).join(', ')}
          </Fact>
        )}
        {job.rerunOf && (
          <Fact name="Rerun of">
            <Link
              to="/$namespace/-/jobs/$job"
              params={{ namespace: job.rerunOf.namespace, job: job.rerunOf.name }}
              className="link"
            >
              {job.rerunOf.name}
            </Link>
          </Fact>
        )}
        <Fact name="ID">
          <code className="text-[11px] break-all">{job.id}</code>
        </Fact>
      </dl>
    </section>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-dim">{name}</dt>
      <dd className="min-w-0 break-words">{children}</dd>
    </>
  );
}

function Names({ name, names }: { name: string; names: readonly string[] }) {
  if (names.length === 0) return null;
  return (
    <Fact name={name}>
      <code className="text-[13px]">{names.join(' ')}</code>
    </Fact>
  );
}
