/** `loam summary`, `loam tests` */
import type { Program } from '../command.ts';
import type { TestCase } from '../sdk/jobs.ts';
import { isTerminal, note, print, printJson, safeText } from '../terminal.ts';
import { openJob } from './job-name.ts';

export function addReportCommands(program: Program): void {
  program
    .command('summary')
    .description('Print the summary that a job has written to the file JOB_SUMMARY')
    .argument('<job>', 'name or namespace/name of a job')
    .action(async (name) => {
      const text = await (await openJob(program, name)).summary();
      if (text === null)
        return note('The job has no summary. It writes one with: echo "# Done" >> "$JOB_SUMMARY"');
      for (const line of text.replace(/\r?\n$/, '').split(/\r?\n/))
        print(isTerminal ? safeText(line) : line);
    });
  program
    .command('tests')
    .description('Print the failed tests of a job')
    .argument('<job>', 'name or namespace/name of a job')
    .option('--all', 'print all tests')
    .option('--json', 'print JSON')
    .action(async (name, { all = false, json = false }) => {
      const found = await openJob(program, name);
      const tests = await found.tests(all ? {} : { status: 'FAILED' });
      if (json) return printJson(tests ?? []);
      if (tests === null)
        return note(
          'The job has no test reports. Name its JUnit files with: loam run --test-reports PATH',
        );
      const report = (await found.info()).testReport;
      for (const test of tests) printTest(test);
      if (report)
        note(`${report.failed} failed, ${report.passed} passed, ${report.skipped} skipped`);
    });
}

function printTest({ status, suite, className, name, message, details, output }: TestCase): void {
  print(safeText(`${status} ${[className || suite, name].filter(Boolean).join(' > ')}`));
  if (message) print(indent(message));
  if (details && details !== message) print(indent(details));
  if (output) print(indent(output));
}

function indent(text: string): string {
  return text
    .split(/\r?\n/)
    .map((line) => `    ${safeText(line)}`)
    .join('\n');
}
