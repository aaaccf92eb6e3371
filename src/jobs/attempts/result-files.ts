/** Reads the files in which a job has left results (`RESULT_FILES` of the runners), after its command has ended. */
import { posix } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { AppError } from '../../base/errors.ts';
import { Pattern } from '../../base/pattern.ts';
import { isDiskFull } from '../../platform/database/outage.ts';
import {
  ArtifactsLost,
  ArtifactsNotKept,
  type Handle,
  RESULT_FILES,
  RESULTS_DIR,
} from '../../runners/runner.ts';
import { readTar } from '../artifacts/store.ts';
import { untilAborted } from '../checkpoints/store.ts';
import type { Mask } from '../logs/mask.ts';
import { splitPattern, TEST_REPORT_RULES } from '../reports/request.ts';
import { type ReportFile, SUMMARY_BYTES, storeSummary, storeTestReport } from '../reports/store.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { isStoredLater } from './retry.ts';

/** `unreadable`: it is larger than its limit, or not a file of the job, such as a link or a FIFO. Null: there is none. */
type ResultFile = Buffer | 'unreadable' | null;

/**
 * Reads a file that the ended command has left in the folder of result files.
 * @param wanted.name of `RESULT_FILES`
 * @throws the errors of `Runner.artifacts`; the reason of `signal` if it aborts
 */
export async function readResultFile(
  { runner }: Pick<Deps, 'runner'>,
  handle: Handle,
  { name: wanted, maxBytes }: { name: string; maxBytes: number },
  signal: AbortSignal,
): Promise<ResultFile> {
  const options = { wanted: { pattern: wanted, maxFileBytes: maxBytes } };
  const tar = await untilAborted(runner.artifacts(handle, RESULTS_DIR, options), signal);
  if (!tar) return null;
  for await (const { name, header, contents } of readTar([tar], signal)) {
    if (name !== wanted) continue;
    // An agent of an earlier version, or a hostile one, sends files of any size.
    const isFile = header.type === 'file' && (header.size ?? 0) <= maxBytes;
    return isFile ? await buffer(contents) : 'unreadable';
  }
  return null;
}

/** Stores the summary that the attempt has written. @returns why it was not stored, as a line for the log */
export async function storeSummaryFile(
  deps: Deps,
  attempt: Attempt,
  { handle, mask, signal }: { handle: Handle; mask: Mask; signal: AbortSignal },
): Promise<string | null> {
  const wanted = { name: RESULT_FILES.JOB_SUMMARY, maxBytes: SUMMARY_BYTES };
  return explain(deps, attempt, 'summary', async () => {
    const file = await readResultFile(deps, handle, wanted, signal).catch((error) => {
      // They were lost with their machine, and need not have had a summary.
      if (error instanceof ArtifactsLost) return null;
      throw error;
    });
    if (file === 'unreadable')
      throw new ArtifactsNotKept('JOB_SUMMARY must be a file of at most 1 MiB, and no link.');
    return file !== null && (await storeSummary(deps, attempt, file, mask));
  });
}

/** Stores the results of tests that the job names. @returns why they were not stored, as a line for the log */
export async function storeTests(
  deps: Deps,
  attempt: Attempt,
  { handle, mask, signal }: { handle: Handle; mask: Mask; signal: AbortSignal },
): Promise<string | null> {
  return explain(deps, attempt, 'tests', () => {
    const files = readReportFiles(deps, handle, attempt.job.testReports, signal);
    return storeTestReport(deps, attempt, files, mask);
  });
}

const NOT_STORED = {
  summary: 'The summary was not stored',
  tests: 'The test reports were not stored',
};

/**
 * @param store returns whether there was anything to store
 * @returns a line for the log; null: it was stored @throws transient errors
 */
async function explain(
  deps: Deps,
  { job }: Attempt,
  kind: keyof typeof NOT_STORED,
  store: () => Promise<boolean>,
): Promise<string | null> {
  try {
    if (await store()) deps.metrics.jobResult(kind, 'stored');
    return null;
  } catch (error) {
    if (isStoredLater(error) || isAbort(error)) throw error;
    deps.metrics.jobResult(kind, 'failed');
    const isExpected = error instanceof AppError || error instanceof ArtifactsNotKept;
    if (!isExpected) deps.log.error({ err: error, job: job.id }, NOT_STORED[kind]);
    const reason = isExpected
      ? error.message
      : isDiskFull(error)
        ? 'the disk of the server is full'
        : 'the server had an error';
    return `${NOT_STORED[kind]}: ${reason}`;
  }
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === 'AbortError';
}

/** A job may have a million files in the folders of a pattern. */
const MAX_SEARCHED = 1_000_000;

/** Reads the files of the patterns, each file once, up to the limits of a report. */
async function* readReportFiles(
  { runner }: Pick<Deps, 'runner'>,
  handle: Handle,
  patterns: readonly string[],
  signal: AbortSignal,
): AsyncGenerator<ReportFile> {
  const { files: maxFiles, bytes: maxBytes, fileBytes } = TEST_REPORT_RULES;
  const seen = new Set<string>();
  let bytesLeft: number = maxBytes;
  for (const text of patterns) {
    const { path: folder, pattern } = splitPattern(text);
    const wanted = {
      maxFileBytes: Math.min(bytesLeft, fileBytes),
      ...(pattern !== null && { pattern }),
    };
    const options = { maxEntries: MAX_SEARCHED, wanted };
    const tar = await untilAborted(runner.artifacts(handle, folder, options), signal);
    if (!tar) {
      yield { path: text, problem: 'nothing exists at this path' };
      continue;
    }
    const glob = pattern === null ? null : new Pattern(pattern);
    const isWanted = (name: string) =>
      glob?.matches(name) ?? (/\.xml$/i.test(name) || name === posix.basename(folder));
    let found = 0;
    for await (const { name: latin1, header, contents } of readTar([tar], signal)) {
      const name = latin1 === null ? '' : Buffer.from(latin1, 'latin1').toString();
      // Agents of earlier versions send all files.
      if (!isWanted(name) || header.type === 'directory') continue;
      const isItself = pattern === null && name === posix.basename(folder);
      const path = isItself ? folder : posix.join(folder, name);
      found++;
      if (seen.has(path)) continue;
      seen.add(path);
      if (seen.size > maxFiles) {
        yield { path, problem: `only the first ${maxFiles} files are read` };
        return;
      }
      const size = header.size ?? 0;
      if (header.type !== 'file')
        yield { path, problem: 'it is no file of the job, or larger than 4 MiB' };
      else if (size > Math.min(bytesLeft, fileBytes)) {
        yield { path, problem: 'a file may have 4 MiB, and all of a report 16 MiB together' };
        return;
      } else {
        bytesLeft -= size;
        yield { path, bytes: await buffer(contents) };
      }
    }
    if (found === 0) yield { path: text, problem: 'no file has this name' };
  }
}
