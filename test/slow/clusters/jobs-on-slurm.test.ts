import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Config } from '../../../src/base/config/config.ts';
import { clusterJobs } from '../../support/cluster-jobs.contract.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { shellClients } from '../../support/shell-clients.contract.ts';
import { openSlurmCluster, type SlurmCluster } from '../../support/slurm/slurm.ts';
import { lines } from '../../support/submit.ts';

let cluster: SlurmCluster;

beforeAll(async () => {
  if (has('slurm')) cluster = await openSlurmCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

const serverConfig = (): Partial<Config> => ({
  runner: 'none',
  clusters: [{ name: 'slurm', kind: 'slurm', options: cluster.config }],
});

describe('SSH clients in a job on Slurm', () => {
  shellClients(async () => ({ config: serverConfig(), job: {} }), 'slurm');
});

describe('jobs on Slurm', () => {
  clusterJobs(
    async () => ({
      config: serverConfig(),
      job: {},
      inspect: /^scontrol show job \d+$/,
      interrupt: async () => void (await cluster.command('scancel', '--state=RUNNING')),
      async listLeftovers() {
        const jobs = await cluster.command('squeue', '-h', '-o', '%j');
        return jobs.trim().split('\n').filter(Boolean);
      },
    }),
    'slurm',
  );

  test('a job sees its GPUs, and an image that no node can run is refused', async (ctx) => {
    needs(ctx, 'slurm');
    await using app = await startApp({ config: serverConfig() });
    const ada = await app.user('ada');
    await ada.post('/auth/v1/repository/ada', { name: 'code', gitignore_template: 'Node' });
    const size = { cpu: 4, memory_gb: 1, disk_gb: 1 };
    const command = 'echo "$CUDA_VISIBLE_DEVICES, $NVIDIA_VISIBLE_DEVICES"';
    const env = { CUDA_VISIBLE_DEVICES: '7' };
    const create = (fields: object) =>
      ada.post('/auth/v1/seed/ada/jobs', { ...size, command, env, ...fields });
    await create({ name: 'gpus', repo: 'ada/code', gpu: 'T4', gpu_count: 2 });
    await create({ name: 'plain', repo: 'ada/code', gpu: 'none' });
    await create({ name: 'image', image: 'debian:12', gpu: 'none' });
    const until = (name: string, status: string) =>
      eventually(async () =>
        expect((await ada.get(`/ada/job/${name}`)).body).toMatchObject({ status }),
      );
    await until('gpus', 'succeeded');
    await until('plain', 'succeeded');
    await until('image', 'failed');
    expect(await lines(ada, 'ada', 'gpus')).toEqual(['0,1, 0,1']);
    expect(await lines(ada, 'ada', 'plain')).toEqual([', void']);
    expect(await lines(ada, 'ada', 'image')).toEqual([
      expect.stringContaining('Slurm is not configured to run images here'),
    ]);
  });
});
