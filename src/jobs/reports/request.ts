/** Where a job leaves the files of its tests, in the form of JUnit. */
import { invalid } from '../../base/errors.ts';

export const TEST_REPORT_RULES = {
  maxEntries: 10,
  pathBytes: 500,
  wildcards: 8,
  /** Of the files of one attempt. */
  files: 100,
  bytes: 16 * 2 ** 20,
  /** Of one file: the parser holds the thread while it joins a text as long as the file. */
  fileBytes: 4 * 2 ** 20,
  tests: 20_000,
} as const;

/** @throws AppError 400 naming the field `testReports` */
export function checkTestReports(patterns: readonly string[]): string[] {
  const { maxEntries } = TEST_REPORT_RULES;
  if (patterns.length > maxEntries)
    throw invalid('testReports', `must not have more than ${maxEntries} entries`);
  return patterns.map((pattern, index) => {
    const problem = findTestReportProblem(pattern);
    if (problem !== null) throw invalid('testReports', `[${index}] ${problem}`);
    return pattern;
  });
}

function findTestReportProblem(pattern: string): string | null {
  const { pathBytes, wildcards } = TEST_REPORT_RULES;
  if (pattern === '') return 'must not be empty';
  if (!pattern.isWellFormed() || /\p{Cc}/u.test(pattern))
    return 'must be well-formed Unicode without control characters';
  if (Buffer.byteLength(pattern) > pathBytes) return `must not be longer than ${pathBytes} bytes`;
  if (pattern.startsWith('/')) return 'must be relative to the working directory';
  if (pattern.split('/').includes('..')) return 'must not contain ".."';
  const count = pattern.match(/\*+|\?/g)?.length ?? 0;
  return count > wildcards ? `must not have more than ${wildcards} wildcards *, ** or ?` : null;
}

/** The folder, or file, of a pattern, and the pattern of the files in it; null: all XML files, or the file itself. */
export function splitPattern(text: string): { path: string; pattern: string | null } {
  const normal = text.replace(/^(?:\.\/+)+/, '').replace(/\/{2,}/g, '/');
  const parts = normal.split('/');
  const first = parts.findIndex((part) => /[*?]/.test(part));
  if (first < 0) return { path: normal || '.', pattern: null };
  return { path: parts.slice(0, first).join('/') || '.', pattern: parts.slice(first).join('/') };
}
