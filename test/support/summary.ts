/**
 * Prints the last lines of a run: failed tests, counts, skipped tests with the command that installs their requirement, and
 * how to run the other tests.
 */
import { stripVTControlCharacters } from 'node:util';
import type { Reporter, TestModule, TestResultFailed } from 'vitest/node';

/** Characters of the cause of each error. A CI service may show only the end of its output, so all causes must fit there. */
const LONGEST_CAUSE = 600;

export default class Summary implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    const counts = { passed: 0, failed: 0, skipped: 0 };
    const skipped = new Map<string, number>();
    for (const module of modules) {
      if (module.errors().length > 0) console.log(`FAILED ${module.relativeModuleId}`);
      for (const test of module.children.allTests()) {
        const result = test.result();
        if (result.state === 'pending') continue;
        counts[result.state]++;
        if (result.state === 'failed')
          console.log(`FAILED ${module.relativeModuleId} > ${test.fullName}\n${causesOf(result)}`);
        if (result.state !== 'skipped') continue;
        const reason = result.note ?? 'because they were not selected, or their suite failed';
        skipped.set(reason, (skipped.get(reason) ?? 0) + 1);
      }
    }
    if (unhandledErrors.length > 0)
      console.log(`FAILED ${unhandledErrors.length} unhandled errors`);
    console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
    const lines = [...skipped].sort(([, a], [, b]) => b - a);
    for (const [reason, count] of lines) console.log(`${count} skipped ${reason}`);
    if (modules.every(({ relativeModuleId }) => !relativeModuleId.startsWith('test/slow/')))
      console.log('The rest, some 20 minutes: npm run test:all');
  }
}

/** The messages of the errors, with the lines in which the values differ. */
function causesOf({ errors }: TestResultFailed): string {
  const causes = errors.map(({ message, diff = '' }) => {
    const differing = stripVTControlCharacters(diff).match(/^[+-] .*$/gm) ?? [];
    return [stripVTControlCharacters(message), ...differing].join('\n').slice(0, LONGEST_CAUSE);
  });
  return causes.join('\n').replace(/^/gm, '    ');
}
