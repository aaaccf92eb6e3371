/** The contract of runners on a real Slurm cluster. */
import { afterAll, beforeAll, describe } from 'vitest';
import type { CurrentVolumes } from '../../../src/base/config/volumes-file.ts';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import { openSlurmEngine } from '../../../src/runners/slurm/engine.ts';
import { agentRunner } from '../../support/agent-runner.ts';
import { execContract } from '../../support/exec.contract.ts';
import { has } from '../../support/needs.ts';
import { filesContract, runnerContract } from '../../support/runner.contract.ts';
import { openSlurmCluster, type SlurmCluster } from '../../support/slurm/slurm.ts';
import { volumesContract } from '../../support/volumes.contract.ts';

let cluster: SlurmCluster;

beforeAll(async () => {
  if (has('slurm')) cluster = await openSlurmCluster({ killWait: 2 });
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

function slurmRunner(volumes?: CurrentVolumes) {
  const worker = newId('srv');
  const log = createLog('silent');
  return agentRunner(() => openSlurmEngine({ config: cluster.config, worker, volumes, log }));
}

describe('slurm', () => {
  runnerContract(() => slurmRunner(), 'slurm');
  filesContract(() => slurmRunner(), 'slurm');
  execContract(() => slurmRunner());
  volumesContract({ open: ({ declared }) => slurmRunner(declared), mounts: false }, 'slurm');
});
