/** GraphQL types of the summaries of jobs and the results of their tests. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { invalid } from '../../base/errors.ts';
import { builder } from '../../platform/schema/builder.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import {
  readTestHistory,
  type TestHistory,
  type TestResult,
  type TrackedTest,
} from '../reports/history.ts';
import type { TestCase } from '../reports/junit.ts';
import { readTests } from '../reports/pages.ts';
import { readSummary } from '../reports/store.ts';
import { JobMatrixValue } from './dependencies.ts';
import { Job } from './jobs.ts';

const TestStatus = builder.enumType('TestStatus', {
  description: 'How a test ended.',
  values: {
    FAILED: { value: 'failed', description: 'It failed, or ended with an error.' },
    SKIPPED: { value: 'skipped', description: 'It did not run.' },
    PASSED: { value: 'passed', description: 'It passed.' },
  } as const,
});

const TestCaseRef = builder.objectRef<TestCase>('TestCase').implement({
  description: 'A test of a report.',
  fields: (t) => ({
    status: t.expose('status', { type: TestStatus, description: 'How it ended.' }),
    name: t.exposeString('name', { description: 'The name.' }),
    className: t.exposeString('className', {
      description: 'The class or file that has it; empty if the report does not say.',
    }),
    suite: t.exposeString('suite', { description: 'The name of its suite; may be empty.' }),
    file: t.exposeString('file', {
      nullable: true,
      description: 'The file with its code, if the report says so.',
    }),
    durationMs: t.exposeInt('durationMs', {
      nullable: true,
      description: 'How long it took; null if the report does not say.',
    }),
    message: t.exposeString('message', {
      nullable: true,
      description: 'Why it failed or was skipped.',
    }),
    details: t.exposeString('details', {
      nullable: true,
      description: 'The text of the failure, such as a stack trace.',
    }),
    output: t.exposeString('output', {
      nullable: true,
      description: 'The end of what a failed test printed.',
    }),
  }),
});

const MAX_TESTS = 250;

const reportColumns = {
  attemptId: true,
  attempt: true,
  passed: true,
  failed: true,
  skipped: true,
  files: true,
  durationMs: true,
  problems: true,
} as const satisfies Prisma.TestReportSelect;
type Report = Prisma.TestReportGetPayload<{ select: typeof reportColumns }>;

const TestReport = builder.objectRef<Report>('TestReport').implement({
  description: 'The tests of a job, from the JUnit files that it names in `testReports`.',
  fields: (t) => ({
    attempt: t.exposeInt('attempt', { description: 'The number of the attempt, from 1.' }),
    total: t.int({
      description: 'The number of tests.',
      resolve: ({ passed, failed, skipped }) => passed + failed + skipped,
    }),
    passed: t.exposeInt('passed', { description: 'Tests that passed.' }),
    failed: t.exposeInt('failed', { description: 'Tests that failed or ended with an error.' }),
    skipped: t.exposeInt('skipped', { description: 'Tests that did not run.' }),
    files: t.exposeInt('files', { description: 'The number of files that were read.' }),
    durationMs: t.field({
      type: 'SafeInt',
      description: 'The sum of the times of the tests.',
      resolve: ({ durationMs }) => Number(durationMs),
    }),
    problems: t.exposeStringList('problems', {
      description: 'Sentences on files and tests that are missing in the report.',
    }),
    tests: t.field({
      type: [TestCaseRef],
      description: 'The tests: failed ones first, then skipped ones.',
      complexity: ({ first }) => ({ field: 1, multiplier: Math.max(1, first) }),
      args: {
        status: t.arg({ type: TestStatus, description: 'Only tests that ended like this.' }),
        first: t.arg.int({
          required: true,
          defaultValue: 50,
          description: `The number of tests, 1 to ${MAX_TESTS}.`,
        }),
        offset: t.arg.int({
          required: true,
          defaultValue: 0,
          description: 'The number of tests to leave out at the beginning.',
        }),
      },
      resolve: (report, { status, first, offset }, { services, allowance }, info) => {
        if (first < 1 || first > MAX_TESTS)
          throw invalid('first', `must be from 1 to ${MAX_TESTS}`);
        if (offset < 0) throw invalid('offset', 'must not be negative');
        const range = { status: status ?? null, first, offset };
        return readTests(services, report, range, allowance(info));
      },
    }),
  }),
});

builder.prismaObjectFields(Job, (t) => ({
  testReports: t.exposeStringList('testReports', {
    description: 'The paths and patterns of the JUnit files of its tests.',
  }),
  summary: t.string({
    nullable: true,
    description:
      'The Markdown text that the job has written to the file `JOB_SUMMARY`; null if it has written none.',
    select: { id: true },
    resolve: ({ id }, _args, { services, allowance }, info) =>
      readSummary(services, id, allowance(info)),
  }),
  hasSummary: t.boolean({
    description: 'Whether it has a summary.',
    select: { summary: { select: { attempt: true } } },
    resolve: ({ summary }) => summary !== null,
  }),
  testReport: t.field({
    type: TestReport,
    nullable: true,
    description: 'The tests of the last attempt that has left reports; null if there are none.',
    select: { reports: { select: reportColumns, orderBy: { attempt: 'desc' }, take: 1 } },
    resolve: ({ reports }) => reports[0] ?? null,
  }),
}));

/** It reads the failed tests of 30 reports. */
const HISTORY_COST = 2_000;

const TestResultRef = builder.objectRef<TestResult>('TestResult').implement({
  description: 'How a test ended in a job.',
  fields: (t) => ({
    status: t.expose('status', { type: TestStatus, description: 'How it ended.' }),
    namespace: t.string({
      description: 'The namespace of the job.',
      resolve: ({ job }) => job.namespaceName,
    }),
    job: t.string({ description: 'The name of the job.', resolve: ({ job }) => job.name }),
    attempt: t.exposeInt('attempt', { description: 'The number of the attempt, from 1.' }),
    commitSha: t.exposeString('commitSha', {
      nullable: true,
      description: 'The commit that the job ran.',
    }),
    at: t.expose('at', { type: 'DateTime', description: 'When the report was read.' }),
  }),
});

const TrackedTestRef = builder.objectRef<TrackedTest>('TrackedTest').implement({
  description: 'A test that failed in one of the last reports of a branch.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    className: t.exposeString('className', {
      description: 'The class or file that has it; may be empty.',
    }),
    suite: t.exposeString('suite', { description: 'The name of its suite; may be empty.' }),
    runJob: t.exposeString('runJob', {
      nullable: true,
      description: 'The name of its job in the file of the run; null outside a run.',
    }),
    matrixValues: t.expose('matrixValues', {
      type: [JobMatrixValue],
      description: 'The values of its job in a matrix; empty for other jobs.',
    }),
    isFlaky: t.exposeBoolean('isFlaky', {
      description: 'Whether it failed and passed on the same commit.',
    }),
    results: t.field({
      type: [TestResultRef],
      description: 'Its results in the last reports, the newest first: at most 30.',
      resolve: ({ results }) => results,
    }),
  }),
});

const TestHistoryRef = builder.objectRef<TestHistory>('TestHistory').implement({
  description: 'The tests of a branch that failed lately.',
  fields: (t) => ({
    branch: t.exposeString('branch', { description: 'The branch.' }),
    reports: t.exposeInt('reports', {
      description: 'The number of reports that were compared, at most the last 30.',
    }),
    tests: t.field({
      type: [TrackedTestRef],
      description: 'At most 100 tests, flaky ones first.',
      resolve: ({ tests }) => tests,
    }),
  }),
});

builder.prismaObjectFields(Repository, (t) => ({
  testHistory: t.field({
    type: TestHistoryRef,
    description:
      'The tests that failed in the last reports of jobs of a branch, and which are flaky.',
    complexity: { field: HISTORY_COST, multiplier: 20 },
    args: {
      branch: t.arg.string({ description: 'The branch; default: the default branch.' }),
    },
    select: { id: true, defaultBranch: true },
    resolve: ({ id: repositoryId, defaultBranch }, { branch }, { services, viewer }) =>
      readTestHistory(services, viewer, { repositoryId, branch: branch ?? defaultBranch }),
  }),
}));
