/** The contract of runners on a real Kubernetes cluster. */
import { afterAll, beforeAll, describe } from 'vitest';
import type { KubernetesConfig } from '../../../src/base/config/kubernetes.ts';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import { openKubernetesEngine } from '../../../src/runners/kubernetes/engine.ts';
import { agentRunner } from '../../support/agent-runner.ts';
import { execContract } from '../../support/exec.contract.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has } from '../../support/needs.ts';
import { filesContract, runnerContract } from '../../support/runner.contract.ts';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

/** @param changes of the configuration */
function kubernetesRunner(changes: Partial<KubernetesConfig> = {}) {
  const worker = newId('srv');
  const { hostAddress: host } = cluster;
  const config = { ...cluster.config, ...changes };
  const log = createLog('silent');
  const agentUrl = `http://${host}:3000`;
  return agentRunner(() => openKubernetesEngine({ config, worker, agentUrl, log }), { host });
}

describe('kubernetes', () => {
  runnerContract(() => kubernetesRunner(), 'kubernetes');
  filesContract(() => kubernetesRunner(), 'kubernetes');
  execContract(() => kubernetesRunner({ defaultImage: 'loam.test/shell:1' }));
});
