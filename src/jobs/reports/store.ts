/** Stores the summaries and test reports of jobs. They are written again unchanged when a restarted server reads them again. */
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { requireQuota } from '../../platform/limits/quotas.ts';
import { type Allowance, takeAllBytes } from '../../platform/limits/reads.ts';
import type { Mask } from '../logs/mask.ts';
import { NotJUnit, parseJUnit, type TestCase } from './junit.ts';
import { encodePages, keyOf, orderTests, packKeys } from './pages.ts';
import { TEST_REPORT_RULES } from './request.ts';

export const SUMMARY_BYTES = 2 ** 20;
/** Characters of messages, details and output that a report keeps. */
const REPORT_CHARS = 8 * 2 ** 20;
const MAX_PROBLEMS = 20;

type Deps = { db: Db; config: Config };

type ReportingAttempt = {
  id: string;
  number: number;
  job: {
    id: string;
    namespaceId: string;
    namespace: { plan: Plan };
    repositoryId: string | null;
    branch: string | null;
    runJob: string | null;
    matrixValues: unknown;
  };
};

/** @returns whether there was any text @throws AppError 403 if the namespace has no room for it */
export async function storeSummary(
  deps: Deps,
  { job, number }: ReportingAttempt,
  bytes: Uint8Array,
  mask: Mask,
): Promise<boolean> {
  const decoded = new TextDecoder().decode(bytes);
  const text = await mask.inSteps(decoded.replaceAll('\0', '\uFFFD'));
  if (text.trim() === '') return false;
  const size = Buffer.byteLength(text);
  await requireQuota(deps, { id: job.namespaceId, plan: job.namespace.plan }, 'storageBytes', size);
  // Nothing is stored if the job was deleted meanwhile, and an attempt that was taken for lost replaces nothing of a later one.
  await deps.db.$executeRaw`
    insert into job_summaries (job_id, namespace_id, attempt, text, size_bytes)
    select id, namespace_id, ${number}, ${text}, ${size} from jobs where id = ${job.id} for key share
    on conflict (job_id) do update
      set attempt = excluded.attempt, text = excluded.text, size_bytes = excluded.size_bytes
      where job_summaries.attempt <= excluded.attempt`;
  return true;
}

/** @throws AppError 400 if the response has no room for it, 503 */
export async function readSummary(
  { db }: { db: Db },
  jobId: string,
  allowance: Allowance,
): Promise<string | null> {
  const stored = await db.jobSummary.findUnique({
    where: { jobId },
    select: { sizeBytes: true },
  });
  if (!stored) return null;
  await takeAllBytes(allowance, Number(stored.sizeBytes));
  return (await db.jobSummary.findUnique({ where: { jobId } }))?.text ?? null;
}

/** A file of test results; `problem`: why it is not read, to complete the sentence "reports/a.xml cannot be read: …". */
export type ReportFile = { path: string; bytes: Uint8Array } | { path: string; problem: string };

/** @returns whether there were any files @throws AppError 403 if the namespace has no room for it */
export async function storeTestReport(
  deps: Deps,
  { id: attemptId, number, job }: ReportingAttempt,
  files: AsyncIterable<ReportFile>,
  mask: Mask,
): Promise<boolean> {
  const { tests: found, read, problems } = await readTests(files, mask);
  if (read === 0 && problems.length === 0) return false;
  const tests = orderTests(found);
  const count = (status: TestCase['status']) =>
    tests.reduce((sum, test) => sum + (test.status === status ? 1 : 0), 0);
  const passedKeys: bigint[] = [];
  for (const [index, test] of tests.entries()) {
    if (test.status === 'passed') passedKeys.push(keyOf(job, test));
    if (index % 1_000 === 999) await yieldToEventLoop();
  }
  const packed = packKeys(passedKeys);
  const pages = await Array.fromAsync(encodePages(tests));
  const sizeBytes = pages.reduce((sum, { data }) => sum + data.length, packed.length);
  await requireQuota(
    deps,
    { id: job.namespaceId, plan: job.namespace.plan },
    'storageBytes',
    sizeBytes,
  );
  await inTransaction(deps.db, async (tx) => {
    const exists = await tx.$executeRaw`select from jobs where id = ${job.id} for key share`;
    if (exists === 0) return;
    await tx.testReport.deleteMany({ where: { attemptId } });
    await tx.testReport.create({
      data: {
        attemptId,
        jobId: job.id,
        namespaceId: job.namespaceId,
        repositoryId: job.repositoryId,
        branch: job.branch,
        attempt: number,
        passed: count('passed'),
        failed: count('failed'),
        skipped: count('skipped'),
        files: read,
        durationMs: BigInt(tests.reduce((sum, { durationMs }) => sum + (durationMs ?? 0), 0)),
        problems,
        passedKeys: packed,
        sizeBytes: BigInt(sizeBytes),
      },
    });
    await tx.testPage.createMany({ data: pages.map((page) => ({ attemptId, ...page })) });
  });
  return true;
}

type ReadTests = { tests: TestCase[]; read: number; problems: string[] };

async function readTests(files: AsyncIterable<ReportFile>, mask: Mask): Promise<ReadTests> {
  const tests: TestCase[] = [];
  const problems: string[] = [];
  let read = 0;
  let charsLeft = REPORT_CHARS;
  let isFull = false;
  const addProblem = (text: string) => {
    if (problems.length < MAX_PROBLEMS) problems.push(toLine(mask(text)));
  };
  const add = (test: TestCase) => {
    if (tests.length === TEST_REPORT_RULES.tests) {
      isFull = true;
      return false;
    }
    tests.push(charsLeft > 0 ? test : { ...test, message: null, details: null, output: null });
    charsLeft -= countChars(test);
    return true;
  };
  for await (const file of files) {
    if ('problem' in file) {
      addProblem(`${file.path} was not read: ${file.problem}`);
      continue;
    }
    try {
      await parseJUnit(file.bytes, mask, add);
      read++;
    } catch (error) {
      if (!(error instanceof NotJUnit)) throw error;
      addProblem(`${file.path} cannot be read: ${error.message}`);
    }
    if (isFull) break;
  }
  if (isFull) addProblem(`Only the first ${TEST_REPORT_RULES.tests} tests are shown`);
  if (charsLeft <= 0) addProblem('Messages and output of further failed tests are left out');
  return { tests, read, problems };
}

function countChars({ message, details, output }: TestCase): number {
  return (message?.length ?? 0) + (details?.length ?? 0) + (output?.length ?? 0);
}

function toLine(text: string): string {
  return text
    .replace(/\p{Cc}/gu, '\uFFFD')
    .slice(0, 500)
    .toWellFormed();
}
