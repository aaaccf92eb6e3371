import { Link, useSearch } from '@tanstack/react-router';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { useCoalescedRefetch } from '../../live/refetch.ts';
import type { Search } from '../../root.tsx';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { formatDuration, shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RunStatusBadge } from '../../ui/status.tsx';
import { formatExactTime, RelativeTime } from '../../ui/time.tsx';
import { mayWrite, type RepositoryData, RepositoryFrame } from './frame.tsx';
import { EXAMPLE_JOB_FILE, JOB_FILE } from './job-file.ts';
import { StartForm } from './start-form.tsx';

const RunsQuery = graphql(`
  query Runs($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      runs(first: 20, after: $after) {
        nodes {
          id number status trigger ref sha title actor createdAt startedAt completedAt
        }
        pageInfo { hasNextPage endCursor }
      }
      schedules { id name cron timezone jobs nextTimes lastAt }
    }
  }
`);

type Repository = NonNullable<ResultOf<typeof RunsQuery>['repository']>;
type Run = NonNullable<Repository['runs']>['nodes'][number];
type Schedule = NonNullable<Repository['schedules']>[number];

const RunsChanged = graphql(`
  subscription RunsChanged($namespace: String!, $name: String!) {
    runChanges(namespace: $namespace, name: $name) { run { id } }
  }
`);

const DeleteSchedule = graphql(`
  mutation DeleteSchedule($input: DeleteScheduleInput!) {
    deleteSchedule(input: $input) { id }
  }
`);

export default function Runs() {
  return (
    <RepositoryFrame tab="Runs">
      {(repository) => <RunList repository={repository} />}
    </RepositoryFrame>
  );
}

/** Changes of this time cause one refetch. */
const COALESCE_MS = 500;

function RunList({ repository }: { repository: RepositoryData }) {
  const { namespace, name } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({ query: RunsQuery, variables: { namespace, name, after } });
  const refetch = useCoalescedRefetch(asked.again, COALESCE_MS);
  useLiveSubscription(RunsChanged, `${namespace}/${name}`, {
    variables: () => ({ namespace, name }),
    onData: refetch,
  });
  return (
    <Load asked={asked} of={(data) => data.repository} what="list of runs">
      {({ runs, schedules }) => (
        <div className="space-y-8">
          {mayWrite(repository) && <StartForm repository={repository} />}
          <section aria-label="Runs">
            {runs?.nodes.length ? (
              <>
                <ul className="rows text-sm">
                  {runs.nodes.map((run) => (
                    <RunRow key={run.id} run={run} repository={repository} />
                  ))}
                </ul>
                <CursorPagination pageInfo={runs.pageInfo} />
              </>
            ) : (
              <Empty title="No runs yet">
                <p>
                  Jobs in <code>.loam/jobs.yml</code> start when this repository is pushed to, at
                  given times, or by hand:
                </p>
                <pre className="overflow-auto rounded bg-sunken p-3 text-[13px]">
                  {EXAMPLE_JOB_FILE}
                </pre>
                {mayWrite(repository) && repository.branchCount > 0 && (
                  <ButtonLink
                    to="/$namespace/$repository/new-file"
                    params={{ namespace, repository: name }}
                    search={{ ref: repository.defaultBranch, path: JOB_FILE }}
                  >
                    Add {JOB_FILE}
                  </ButtonLink>
                )}
              </Empty>
            )}
          </section>
          <Schedules schedules={schedules ?? []} canDelete={mayWrite(repository)} />
        </div>
      )}
    </Load>
  );
}

const TRIGGERS: Record<Run['trigger'], string> = {
  PUSH: 'pushed by',
  TAG: 'tag by',
  SCHEDULE: 'scheduled by',
  MANUAL: 'started by',
};

/** What started the run, where, and when. */
export function RunSource({
  run: { trigger, ref, sha, actor, createdAt },
  params,
}: {
  run: Pick<Run, 'trigger' | 'ref' | 'sha' | 'actor' | 'createdAt'>;
  params: { namespace: string; repository: string };
}) {
  return (
    <>
      <bdi className="break-all">{ref.replace(/^refs\/(?:heads|tags)\//, '')}</bdi> ·{' '}
      <Link
        to="/$namespace/$repository/commit/$sha"
        params={{ ...params, sha }}
        className="hover:underline"
      >
        <code>{shortSha(sha)}</code>
      </Link>{' '}
      · {TRIGGERS[trigger]} <bdi>{actor}</bdi> <RelativeTime at={createdAt} />
    </>
  );
}

function RunRow({ run, repository }: { run: Run; repository: RepositoryData }) {
  const params = { namespace: repository.namespace, repository: repository.name };
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1" data-run={run.number}>
      <div className="min-w-0 flex-1 basis-64">
        <Link
          to="/$namespace/$repository/runs/$number"
          params={{ ...params, number: `${run.number}` }}
          className="inline-block py-0.5 font-medium break-words hover:underline"
        >
          <bdi>{run.title || 'Run'}</bdi> <span className="text-dim">#{run.number}</span>
        </Link>
        <p className="text-dim">
          <RunSource run={run} params={params} />
        </p>
      </div>
      <span className="text-dim tabular-nums">{durationOf(run)}</span>
      <RunStatusBadge status={run.status} />
    </li>
  );
}

/** How long a run took; empty until it is over. */
export function durationOf({
  startedAt,
  completedAt,
}: {
  startedAt: string | null;
  completedAt: string | null;
}): string {
  if (!startedAt || !completedAt) return '';
  return formatDuration(Math.round((Date.parse(completedAt) - Date.parse(startedAt)) / 1_000));
}

function Schedules({
  schedules,
  canDelete,
}: {
  schedules: readonly Schedule[];
  canDelete: boolean;
}) {
  const remove = useFormMutation(DeleteSchedule, { changes: ['Schedule'] });
  if (schedules.length === 0) return null;
  return (
    <section aria-labelledby="schedules" className="space-y-3">
      <h2 id="schedules">Schedules</h2>
      <ul className="rows text-sm">
        {schedules.map(({ id, name, cron, timezone, jobs, nextTimes, lastAt }) => (
          <li key={id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
            <div className="min-w-0 flex-1 basis-64">
              <p className="break-words">
                <span className="font-medium">{name ?? jobs.join(', ')}</span>{' '}
                <code className="ml-1">{cron}</code> <span className="text-dim">{timezone}</span>
              </p>
              <p className="text-dim">
                {name === null ? 'From .loam/jobs.yml on the default branch' : jobs.join(', ')}
                {' · '}
                {lastAt ? (
                  <>
                    last run <RelativeTime at={lastAt} />
                  </>
                ) : (
                  'has not run yet'
                )}
              </p>
              <details className="mt-1">
                <summary className="text-dim">
                  Next run <RelativeTime at={nextTimes[0]} />
                </summary>
                <ul className="mt-1 list-disc pl-5 text-dim">
                  {nextTimes.map((time) => (
                    <li key={time}>{formatExactTime(time)}</li>
                  ))}
                </ul>
              </details>
            </div>
            {canDelete && name !== null && (
              <Button
                look="danger"
                busy={remove.busy}
                aria-label={`Delete the schedule ${name}`}
                onClick={() => remove.run({ input: { id } })}
              >
                Delete
              </Button>
            )}
          </li>
        ))}
      </ul>
      {remove.problem && <ProblemBox problem={remove.problem} />}
    </section>
  );
}
