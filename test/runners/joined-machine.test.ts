/** Attempts on a joined machine, with its real program. */
import { afterAll, describe } from 'vitest';
import { sharedMachine } from '../support/joined-machine.ts';
import { filesContract, runnerContract } from '../support/runner.contract.ts';

describe('joined machine', () => {
  const machine = sharedMachine();
  afterAll(() => machine[Symbol.asyncDispose]());
  runnerContract(machine.open);
  filesContract(machine.open);
});
