import { useState } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Select } from '../../ui/field.tsx';
import { formatCount, formatDuration } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import type { JobData } from './facts.tsx';

/** Few, because the log follows the tests. */
const PAGE = 20;

const TestsQuery = graphql(`
  query JobTests($namespace: String!, $name: String!, $status: TestStatus, $first: Int!, $offset: Int!) {
    job(namespace: $namespace, name: $name) {
      id
      testReport {
        attempt
        total
        passed
        failed
        skipped
        problems
        tests(status: $status, first: $first, offset: $offset) {
          status name className suite durationMs message details output
        }
      }
    }
  }
`);

type Report = NonNullable<NonNullable<ResultOf<typeof TestsQuery>['job']>['testReport']>;
type Test = Report['tests'][number];
type Status = Test['status'];

/** The tests of the job, failed ones first. */
export function Tests({ job }: { job: JobData }) {
  const counts = job.testReport;
  const [status, setStatus] = useState<Status | ''>('');
  const [offset, setOffset] = useState(0);
  const asked = useRetryingQuery({
    query: TestsQuery,
    variables: {
      namespace: job.namespace,
      name: job.name,
      status: status || null,
      first: PAGE,
      offset,
    },
    pause: !counts,
  });
  if (!counts) return null;
  const all = { FAILED: counts.failed, SKIPPED: counts.skipped, PASSED: counts.passed };
  const total = status ? all[status] : counts.total;
  return (
    <section aria-labelledby="tests" data-tests>
      <h2 id="tests" className="mb-2">
        Tests
      </h2>
      <div className="mb-2 flex flex-wrap items-center gap-x-4 gap-y-2">
        <p className="flex-1 text-sm">{describeTests(counts)}</p>
        {counts.total > 0 && (
          <Select
            aria-label="Result"
            className="w-auto py-1 text-sm"
            value={status}
            onChange={({ target }) => {
              setStatus(target.value as Status | '');
              setOffset(0);
            }}
          >
            <option value="">All</option>
            <option value="FAILED">Failed</option>
            <option value="SKIPPED">Skipped</option>
            <option value="PASSED">Passed</option>
          </Select>
        )}
      </div>
      <Load asked={asked} of={(data) => data.job?.testReport} what="tests">
        {({ tests, problems }) => (
          <>
            {problems.length > 0 && (
              <ul className="mb-2 list-disc pl-5 text-sm break-words text-dim">
                {problems.map((problem) => (
                  <li key={problem}>{problem}</li>
                ))}
              </ul>
            )}
            {tests.length > 0 && (
              <ul className="rows text-sm">
                {tests.map((test, index) => (
                  // biome-ignore lint/suspicious/noArrayIndexKey: tests of one name may occur several times.
                  <TestRow key={`${offset + index}`} test={test} />
                ))}
              </ul>
            )}
            {status && total === 0 && (
              <p className="text-sm text-dim">No {LOOKS[status].text} tests</p>
            )}
            {total > PAGE && (
              <div className="mt-2 flex items-center gap-2 text-sm">
                <Button disabled={offset === 0} onClick={() => setOffset(offset - PAGE)}>
                  Previous
                </Button>
                <span className="tabular-nums">
                  {offset + 1} to {Math.min(total, offset + PAGE)} of {total}
                </span>
                <Button disabled={offset + PAGE >= total} onClick={() => setOffset(offset + PAGE)}>
                  Next
                </Button>
              </div>
            )}
          </>
        )}
      </Load>
    </section>
  );
}

/** The counts of a report. */
export function describeTests({
  total,
  failed,
  skipped,
}: {
  total: number;
  failed: number;
  skipped: number;
}): string {
  const others = skipped > 0 ? `, ${skipped} skipped` : '';
  return `${formatCount(total, 'test')}: ${failed} failed${others}`;
}

function formatMs(ms: number): string {
  if (ms < 1_000) return `${ms} ms`;
  return ms < 60_000 ? `${(ms / 1_000).toFixed(1)} s` : formatDuration(Math.round(ms / 1_000));
}

const LOOKS: Record<Status, { text: string; look: string }> = {
  FAILED: { text: 'failed', look: 'text-bad' },
  SKIPPED: { text: 'skipped', look: 'text-dim' },
  PASSED: { text: 'passed', look: 'text-dim' },
};

function TestRow({ test }: { test: Test }) {
  const { status, name, className, suite, durationMs, message, details, output } = test;
  const { text, look } = LOOKS[status];
  const hasMore = details || output;
  return (
    <li className="block">
      <div className="flex flex-wrap items-baseline gap-x-3">
        <span className={`w-14 ${look}`}>{text}</span>
        <span className="min-w-0 flex-1 break-words">
          <strong>{name}</strong> <span className="text-dim">{className || suite}</span>
        </span>
        {durationMs !== null && (
          <span className="text-dim tabular-nums">{formatMs(durationMs)}</span>
        )}
      </div>
      {message && <p className="mt-1 break-words whitespace-pre-wrap sm:pl-17">{message}</p>}
      {hasMore && (
        <details className="mt-1 sm:pl-17" open={status === 'FAILED' && !message}>
          <summary>Details</summary>
          {Object.entries({ details, output }).map(
            ([name, part]) =>
              part && (
                <pre
                  key={name}
                  // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
                  tabIndex={0}
                  className="mt-1 max-h-96 overflow-auto rounded-md bg-sunken p-3 text-[12.5px] leading-5"
                >
                  {part}
                </pre>
              ),
          )}
        </details>
      )}
    </li>
  );
}
