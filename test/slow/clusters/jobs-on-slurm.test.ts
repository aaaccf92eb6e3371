import { afterAll, beforeAll, describe } from 'vitest';
import { clusterJobs } from '../../support/cluster-jobs.contract.ts';
import { has } from '../../support/needs.ts';
import { openSlurmCluster, type SlurmCluster } from '../../support/slurm/slurm.ts';

let cluster: SlurmCluster;

beforeAll(async () => {
  if (has('slurm')) cluster = await openSlurmCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

describe('jobs on Slurm', () => {
  clusterJobs(
    async () => ({
      config: {
        runner: 'none',
        clusters: [{ name: 'slurm', kind: 'slurm', options: cluster.config }],
      },
      job: {},
      inspect: /^scontrol show job \d+$/,
      async listLeftovers() {
        const jobs = await cluster.command('squeue', '-h', '-o', '%j');
        return jobs.trim().split('\n').filter(Boolean);
      },
    }),
    'slurm',
  );
});
