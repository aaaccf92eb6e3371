/** Says at the very end what was skipped and why, what passed at a second try only and why not at the first, and the counts. */
import type { Reporter, TestModule } from 'vitest/node';

export default class Skips implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const counts = { passed: 0, failed: 0, skipped: 0 };
    const reasons = new Map<string, number>();
    const retried: string[] = [];
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const result = test.result();
        if (result.state === 'pending') continue;
        counts[result.state]++;
        if (test.diagnostic()?.flaky) {
          const errors = 'errors' in result ? (result.errors ?? []) : [];
          const said = errors.flatMap(({ stack, message }) => (stack ?? message).split('\n'));
          const name = `${module.relativeModuleId} > ${test.fullName}`;
          retried.push([name, ...said.filter((line) => !line.includes('node_modules'))].join('\n'));
        }
        if (result.state !== 'skipped') continue;
        const why = result.note ?? 'no reason given: skipped in its file, or not selected by -t';
        reasons.set(why, (reasons.get(why) ?? 0) + 1);
      }
    }
    for (const [why, times] of reasons) console.log(`SKIPPED ${times} × ${why}`);
    if (reasons.size === 0) console.log('Nothing was skipped.');
    for (const name of retried) console.log(`PASSED AT A SECOND TRY: ${name}`);
    console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
  }
}
