import { Link, useSearch } from '@tanstack/react-router';
import { Check, X } from 'lucide-react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Empty } from '../../ui/empty.tsx';
import { describeValues, formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { RefPicker } from './ref-picker.tsx';

/** The tests of a branch that failed lately, and which of them are flaky. */
export default function RepositoryTests() {
  return (
    <RepositoryFrame tab="Tests" within="Jobs">
      {(repository) =>
        repository.branchCount === 0 ? (
          <Empty title="No tests yet">
            <NoReports />
          </Empty>
        ) : (
          <History repository={repository} />
        )
      }
    </RepositoryFrame>
  );
}

const HistoryQuery = graphql(`
  query TestHistory($namespace: String!, $name: String!, $branch: String) {
    repository(namespace: $namespace, name: $name) {
      id
      testHistory(branch: $branch) {
        branch
        reports
        tests {
          name className suite runJob matrixValues { key value } isFlaky
          results { status namespace job attempt commitSha }
        }
      }
    }
  }
`);

function History({ repository: { namespace, name } }: { repository: RepositoryData }) {
  const { ref } = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({
    query: HistoryQuery,
    variables: { namespace, name, branch: ref ?? null },
  });
  return (
    <section aria-labelledby="tests" className="space-y-3">
      <div className="flex flex-wrap items-center gap-3">
        <h2 id="tests" className="flex-1">
          Failed tests
        </h2>
        <RefPicker namespace={namespace} name={name} onlyBranches />
      </div>
      <Load asked={asked} of={(data) => data.repository?.testHistory} what="tests">
        {({ branch, reports, tests }) =>
          tests.length === 0 ? (
            <Empty
              title={reports > 0 ? `No failed tests on ${branch}` : `No test reports on ${branch}`}
              level={3}
            >
              {reports > 0 ? (
                <p>No test failed in the last {formatCount(reports, 'report')}.</p>
              ) : (
                <NoReports />
              )}
            </Empty>
          ) : (
            <>
              <p className="text-sm text-dim">
                In the last {formatCount(reports, 'report')} of {branch}, newest first
              </p>
              <ul className="rows text-sm">
                {tests.map((test) => (
                  <li key={keyOf(test)} className="flex flex-wrap items-center gap-x-4 gap-y-1">
                    <div className="min-w-0 flex-1 basis-56 break-words">
                      <strong>{test.name}</strong>{' '}
                      {test.isFlaky && <span className="text-warn">Flaky</span>}
                      <span className="block text-dim">
                        {[
                          test.runJob,
                          describeValues(test.matrixValues),
                          test.className || test.suite,
                        ]
                          .filter(Boolean)
                          .join(', ')}
                      </span>
                    </div>
                    <span className="flex flex-wrap gap-1">
                      {test.results.map((result) => (
                        <Result
                          key={`${result.namespace}/${result.job}/${result.attempt}`}
                          result={result}
                        />
                      ))}
                    </span>
                  </li>
                ))}
              </ul>
            </>
          )
        }
      </Load>
    </section>
  );
}

function NoReports() {
  return (
    <p>
      Tests appear here after a job with <code>test_reports</code> has written JUnit files:{' '}
      <a href="/docs/reports" className="link">
        Test reports
      </a>
    </p>
  );
}

type Test = NonNullable<
  NonNullable<ResultOf<typeof HistoryQuery>['repository']>['testHistory']
>['tests'][number];

function keyOf({ runJob, matrixValues, suite, className, name }: Test): string {
  return JSON.stringify([runJob, matrixValues, suite, className, name]);
}

type ResultData = { status: string; namespace: string; job: string; attempt: number };

function Result({ result: { status, namespace, job, attempt } }: { result: ResultData }) {
  const text = status === 'FAILED' ? 'failed' : 'passed';
  return (
    <Link
      to="/$namespace/-/jobs/$job"
      params={{ namespace, job }}
      title={`${text} in ${job}, attempt ${attempt}`}
      aria-label={`${text} in ${job}, attempt ${attempt}`}
      className={`inline-flex size-6 items-center justify-center rounded hover:bg-hover ${status === 'FAILED' ? 'bg-bad-soft text-bad' : 'text-dim'}`}
    >
      {status === 'FAILED' ? <X size={15} aria-hidden /> : <Check size={15} aria-hidden />}
    </Link>
  );
}
