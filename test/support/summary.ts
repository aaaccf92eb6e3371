/**
 * Prints each failure with its cause when it happens, because a run may be ended early, and the last lines of a run: failed
 * tests again, counts, skipped tests with the command that installs their requirement, and how to run the other tests.
 */
import { stripVTControlCharacters } from 'node:util';
import type { Reporter, SerializedError, TestCase, TestModule, TestSuite } from 'vitest/node';
import type { Cpu } from './cpu.ts';

/** Characters of the cause of each error. A CI service may show only the end of its output, so all causes must fit there. */
const LONGEST_CAUSE = 600;

export default class Summary implements Reporter {
  onTestCaseResult(test: TestCase): void {
    print(failuresOf(test));
  }

  onTestSuiteResult(suite: TestSuite): void {
    print(describe(`${suite.module.relativeModuleId} > ${suite.fullName}`, suite.errors()));
  }

  onTestModuleEnd(module: TestModule): void {
    print(describe(module.relativeModuleId, module.errors()));
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    const counts = { passed: 0, failed: 0, skipped: 0 };
    const skipped = new Map<string, number>();
    for (const module of modules) {
      print(describe(module.relativeModuleId, module.errors()));
      for (const suite of module.children.allSuites())
        print(describe(`${module.relativeModuleId} > ${suite.fullName}`, suite.errors()));
      for (const test of module.children.allTests()) {
        const result = test.result();
        if (result.state === 'pending') continue;
        counts[result.state]++;
        print(failuresOf(test));
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
    printCostliest(modules);
    if (modules.every(({ relativeModuleId }) => !relativeModuleId.startsWith('test/slow/')))
      console.log('The rest, an hour on two cores: npm run test:all');
  }
}

/** Prints the costliest files, as many as `LOAM_TEST_CPU` says. PostgreSQL serves all workers: run with `--maxWorkers=1`. */
function printCostliest(modules: readonly TestModule[]): void {
  const costs = modules.flatMap((module) => {
    const { cpu } = module.meta();
    return cpu ? [{ file: module.relativeModuleId, ...cpu }] : [];
  });
  if (costs.length === 0) return;
  const sum = (key: keyof Cpu) => costs.reduce((total, cost) => total + cost[key], 0);
  const costliest = costs
    .sort((a, b) => b.worker + b.postgres - a.worker - a.postgres)
    .slice(0, Number(process.env.LOAM_TEST_CPU));
  console.log('CPU seconds of the worker and its programs, of PostgreSQL:');
  for (const { file, worker, postgres } of [
    ...costliest,
    { file: `all ${costs.length} files`, worker: sum('worker'), postgres: sum('postgres') },
  ])
    console.log(`${worker.toFixed(2).padStart(8)}${postgres.toFixed(2).padStart(8)}  ${file}`);
}

function failuresOf(test: TestCase): string | null {
  const { state, errors = [] } = test.result();
  const name = `${test.module.relativeModuleId} > ${test.fullName}`;
  return state === 'failed' ? describe(name, errors) : null;
}

/** The messages of the errors, with the lines in which the values differ; null without errors. */
function describe(name: string, errors: readonly SerializedError[]): string | null {
  if (errors.length === 0) return null;
  const causes = errors.map(({ message, diff }) => {
    const differing = stripVTControlCharacters(String(diff ?? '')).match(/^[+-] .*$/gm) ?? [];
    return [stripVTControlCharacters(message), ...differing].join('\n').slice(0, LONGEST_CAUSE);
  });
  return `FAILED ${name}\n${causes.join('\n').replace(/^/gm, '    ')}`;
}

function print(text: string | null): void {
  if (text !== null) console.log(text);
}
