/** Attempts in containers on a joined machine, with its real program. */
import { afterAll, describe } from 'vitest';
import { BUSYBOX, DOCKER } from '../../support/docker.ts';
import { sharedMachine } from '../../support/joined-machine.ts';
import { filesContract, runnerContract } from '../../support/runner.contract.ts';

describe('joined machine with an engine', () => {
  const machine = sharedMachine({
    env: { LOAM_RUNNER: 'docker', LOAM_DEFAULT_IMAGE: BUSYBOX, DOCKER_HOST: DOCKER.host },
  });
  afterAll(() => machine[Symbol.asyncDispose]());
  runnerContract(machine.open, 'docker');
  filesContract(machine.open, 'docker');
});
