import { afterAll, beforeAll, describe } from 'vitest';
import type { Config } from '../../../src/base/config/config.ts';
import { clusterJobs } from '../../support/cluster-jobs.contract.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has } from '../../support/needs.ts';
import { shellClients } from '../../support/shell-clients.contract.ts';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

const serverConfig = (): Partial<Config> => ({
  // The pods reach the server there.
  host: cluster.hostAddress,
  runner: 'none',
  clusters: [
    {
      name: 'kubernetes',
      kind: 'kubernetes',
      // Each of the two nodes has two CPUs, and room for one such job.
      options: { ...cluster.config, maxCpus: 1.5 },
    },
  ],
});

describe('SSH clients in a job on Kubernetes', () => {
  const job = { image: 'loam.test/shell:1' };
  shellClients(async () => ({ config: serverConfig(), job }), 'kubernetes');
});

describe('jobs on Kubernetes', () => {
  clusterJobs(
    async () => ({
      config: serverConfig(),
      job: { image: 'loam.test/busybox:1' },
      inspect: /^kubectl -n loam-jobs describe pod loam-att-\w+$/,
      async interrupt() {
        // A kubelet may overlook for a minute that a pod is deleted before it has reported its start.
        await cluster.kubectl('wait', '--for=condition=Ready', 'pods', '--all', '--timeout=60s');
        await cluster.kubectl('delete', 'pods', '--all');
      },
      async listLeftovers() {
        const names = await cluster.kubectl('get', 'pods,secrets', '-o', 'name');
        return names.split('\n').filter((name) => name.includes('/loam-att-'));
      },
    }),
    'kubernetes',
  );
});
