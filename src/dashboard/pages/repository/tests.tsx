import { Link, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Empty } from '../../ui/empty.tsx';
import { formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';

/** The tests of a branch that failed lately, and which of them are flaky. */
export default function RepositoryTests() {
  return (
    <RepositoryFrame tab="Tests" within="Jobs">
      {(repository) => <History repository={repository} />}
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
          name className suite runJob isFlaky
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
      <h2 id="tests">Failed tests</h2>
      <Load asked={asked} of={(data) => data.repository?.testHistory} what="tests">
        {({ branch, reports, tests }) =>
          tests.length === 0 ? (
            <Empty title={`No failed tests on ${branch}`} level={3}>
              <p>
                {reports > 0 ? (
                  `All tests of the last ${formatCount(reports, 'report')} passed.`
                ) : (
                  <>
                    Jobs leave reports in JUnit files that their <code>test_reports</code> name.
                  </>
                )}
              </p>
            </Empty>
          ) : (
            <>
              <p className="text-sm text-dim">
                In the last {formatCount(reports, 'report')} of {branch}, newest first
              </p>
              <ul className="rows text-sm">
                {tests.map((test) => (
                  <li
                    key={[test.runJob, test.suite, test.className, test.name].join('\n')}
                    className="flex flex-wrap items-center gap-x-4 gap-y-1"
                  >
                    <div className="min-w-0 flex-1 basis-56 break-words">
                      <strong>{test.name}</strong>{' '}
                      {test.isFlaky && <span className="text-warn">Flaky</span>}
                      <span className="block text-dim">
                        {[test.runJob, test.className || test.suite].filter(Boolean).join(', ')}
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

type ResultData = { status: string; namespace: string; job: string; attempt: number };

function Result({ result: { status, namespace, job, attempt } }: { result: ResultData }) {
  const text = status === 'FAILED' ? 'failed' : 'passed';
  return (
    <Link
      to="/$namespace/-/jobs/$job"
      params={{ namespace, job }}
      title={`${text} in ${job}, attempt ${attempt}`}
      aria-label={`${text} in ${job}, attempt ${attempt}`}
      className={status === 'FAILED' ? 'text-bad' : 'text-dim'}
    >
      {status === 'FAILED' ? '✕' : '✓'}
    </Link>
  );
}
