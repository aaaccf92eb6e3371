/** The contract of runners on a real Kubernetes cluster. */
import { afterAll, beforeAll, describe } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import { openKubernetesEngine } from '../../../src/runners/kubernetes/engine.ts';
import { agentRunner } from '../../support/agent-runner.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has } from '../../support/needs.ts';
import { filesContract, runnerContract } from '../../support/runner.contract.ts';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

function kubernetesRunner() {
  const worker = newId('srv');
  const { config, hostAddress: host } = cluster;
  const log = createLog('silent');
  const agentUrl = `http://${host}:3000`;
  return agentRunner(() => openKubernetesEngine({ config, worker, agentUrl, log }), { host });
}

describe('kubernetes', () => {
  runnerContract(kubernetesRunner, 'kubernetes');
  filesContract(kubernetesRunner, 'kubernetes');
});
