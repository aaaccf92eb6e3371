/** The contract of runners where jobs run in the sandbox of util-linux, and in none. */
import { describe, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { processRunner } from '../../support/process-runner.ts';
import { processesNaming } from '../../support/processes.ts';
import { attemptSpec, runnerContract, runToEnd } from '../../support/runner.contract.ts';

describe('process, confined by util-linux', () => {
  runnerContract(() => processRunner('unshare'), 'unshare');
});

describe('process, unconfined', () => {
  runnerContract(() => processRunner('none'));

  test('a daemon that left the tree and holds stdout ends with the job', async () => {
    await using made = await processRunner('none');
    const tag = `300.${process.pid}`;
    // Its shell would say that the first sleep was killed.
    const command = `setsid sh -c 'sleep ${tag} & sleep ${tag}' 2>/dev/null & sleep 0.2; echo done`;
    const { outcome, lines } = await runToEnd(made.runner, attemptSpec(command));
    expect(outcome).toMatchObject({ exitCode: 0 });
    expect(lines).toEqual(['done']);
    await eventually(() => expect(processesNaming(`sleep ${tag}`)).toEqual([]));
  });
});
