/** The runner contract in the sandbox of util-linux, and without a sandbox. */
import { describe, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { processRunner } from '../../support/process-runner.ts';
import { listCommandLines } from '../../support/processes.ts';
import {
  attemptSpec,
  filesContract,
  runnerContract,
  runToEnd,
} from '../../support/runner.contract.ts';

describe('process, sandboxed by util-linux', () => {
  runnerContract(() => processRunner('unshare'), 'unshare');
  filesContract(() => processRunner('unshare'), 'unshare');
});

describe('process, without a sandbox', () => {
  runnerContract(() => processRunner('none'));
  filesContract(() => processRunner('none'));

  test('a daemon that left the process tree and holds stdout ends with the job', async () => {
    await using made = await processRunner('none');
    const tag = `300.${process.pid}`;
    // Its shell would report that the first sleep was killed.
    const command = `setsid sh -c 'sleep ${tag} & sleep ${tag}' 2>/dev/null & sleep 0.2; echo done`;
    const { outcome, lines } = await runToEnd(made.runner, attemptSpec(command));
    expect(outcome).toMatchObject({ exitCode: 0 });
    expect(lines).toEqual(['done']);
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });
});
