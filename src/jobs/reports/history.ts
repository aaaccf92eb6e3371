/**
 * Which tests of a branch failed lately, and which are flaky. It is computed from the reports of its last jobs, so it changes when
 * a job is deleted, and nothing else has to be kept.
 */
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { type MatrixValue, readMatrixValues } from '../record/matrix-values.ts';
import { visibleTo } from '../record/visibility.ts';
import type { TestCase, TestStatus } from './junit.ts';
import { hasKey, keyOf, readTests } from './pages.ts';

/** Reports that are compared. */
const MAX_REPORTS = 30;
/** Failed tests of one report, and tests that are shown. A report with more is one of a broken build. */
const MAX_FAILED = 200;
const MAX_TESTS = 100;

/** A result of a test, and the job that ran it. */
export type TestResult = {
  status: Exclude<TestStatus, 'skipped'>;
  attempt: number;
  commitSha: string | null;
  at: Date;
  job: { id: string; name: string; namespaceName: string };
};

/** `isFlaky`: it failed and passed on the same commit. `results`: the newest first. */
export type TrackedTest = Pick<TestCase, 'name' | 'className' | 'suite'> & {
  runJob: string | null;
  matrixValues: MatrixValue[];
  isFlaky: boolean;
  results: TestResult[];
};

export type TestHistory = { branch: string; reports: number; tests: TrackedTest[] };

/** The tests that failed in one of the last reports of a branch, flaky ones first. */
export async function readTestHistory(
  { db }: { db: Db },
  viewer: Viewer,
  { repositoryId, branch }: { repositoryId: string; branch: string },
): Promise<TestHistory> {
  const reports = await db.testReport.findMany({
    where: { repositoryId, branch, job: visibleTo(viewer) },
    orderBy: [{ createdAt: 'desc' }, { attemptId: 'desc' }],
    take: MAX_REPORTS,
    omit: { problems: true },
    include: {
      job: {
        select: {
          id: true,
          name: true,
          namespace: { select: { name: true } },
          commitSha: true,
          runJob: true,
          matrixValues: true,
        },
      },
    },
  });
  const found = new Map<bigint, TrackedTest>();
  const failedKeys: Set<bigint>[] = [];
  for (const report of reports) {
    const range = { status: 'failed', first: MAX_FAILED, offset: 0 } as const;
    const failed = report.failed > 0 ? await readTests({ db }, report, range, null) : [];
    const keys = new Set<bigint>();
    for (const { name, className, suite } of failed) {
      const { runJob } = report.job;
      const matrixValues = readMatrixValues(report.job);
      const key = keyOf(report.job, { name, className, suite });
      keys.add(key);
      if (found.size < MAX_FAILED && !found.has(key))
        found.set(key, {
          name,
          className,
          suite,
          runJob,
          matrixValues,
          isFlaky: false,
          results: [],
        });
    }
    failedKeys.push(keys);
  }
  for (const [key, test] of found) {
    for (const [index, { job, passedKeys, attempt, createdAt: at }] of reports.entries()) {
      const hasFailed = failedKeys[index]?.has(key);
      if (!hasFailed && !hasKey(passedKeys, key)) continue;
      const { id, name, namespace, commitSha } = job;
      const status = hasFailed ? 'failed' : 'passed';
      test.results.push({
        status,
        attempt,
        commitSha,
        at,
        job: { id, name, namespaceName: namespace.name },
      });
    }
    test.isFlaky = hasBothOnOneCommit(test.results);
    await yieldToEventLoop();
  }
  const tests = [...found.values()]
    .sort((a, b) => Number(b.isFlaky) - Number(a.isFlaky) || countFailed(b) - countFailed(a))
    .slice(0, MAX_TESTS);
  return { branch, reports: reports.length, tests };
}

function hasBothOnOneCommit(results: readonly TestResult[]): boolean {
  const failedOn = new Set(
    results.filter(({ status }) => status === 'failed').map(({ commitSha }) => commitSha),
  );
  return results.some(
    ({ status, commitSha }) => status === 'passed' && commitSha !== null && failedOn.has(commitSha),
  );
}

function countFailed({ results }: TrackedTest): number {
  return results.filter(({ status }) => status === 'failed').length;
}
