/** The file of LOAM_CLUSTERS. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';

async function read(yaml: string, env: Record<string, string> = {}) {
  const dir = await mkdtemp(join(tmpdir(), 'loam-clusters-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  const path = join(dir, 'clusters.yaml');
  await writeFile(path, yaml);
  return readConfig({ LOAM_CLUSTERS: path, ...env });
}

test('the file lists clusters and the machines of the worker, in the order of preference', async () => {
  const { runner, clusters, ownMachines } = await read(`
engines:
  - name: hpc
    kind: slurm
    regions: [eu-west-1]
    options: { partition: gpu, gpus: { T4: "gpu:t4:2" }, maxJobs: 7 }
  - kind: process
  - name: cloud
    kind: kubernetes
`);
  expect(runner).toBe('process');
  expect(ownMachines).toEqual({ runner: 'process', regions: undefined, position: 1 });
  expect(clusters).toMatchObject([
    {
      name: 'hpc',
      kind: 'slurm',
      regions: ['eu-west-1'],
      options: { partition: 'gpu', gpus: { T4: { gres: 'gpu:t4', max: 2 } }, maxJobs: 7 },
    },
    { name: 'cloud', kind: 'kubernetes', options: { maxJobs: 100 } },
  ]);
});

test('without process and docker only the clusters run jobs', async () => {
  const { runner, ownMachines } = await read('engines: [{ name: hpc, kind: slurm }]');
  expect([runner, ownMachines]).toEqual(['none', undefined]);
});

test.each([
  ['engines: []', /engines: Too small/],
  ['engines: [{ kind: nomad }]', /engines\[0\]\.kind/],
  ['engines: [{ kind: slurm }]', /engines\[0\]\.name/],
  ['engines: [{ name: local, kind: slurm }]', /engines\[0\]\.name: must not be local/],
  [
    'engines: [{ name: a, kind: slurm }, { name: a, kind: kubernetes }]',
    /engines\[1\]\.name: a is listed twice/,
  ],
  ['engines: [{ name: a, kind: slurm, regions: [mars] }]', /engines\[0\]\.regions\[0\]/],
  [
    'engines: [{ name: a, kind: slurm, options: { partitions: x } }]',
    /engines\[0\]\.options: Unrecognized key: "partitions"/,
  ],
  [
    'engines: [{ kind: process, regions: [us-east-1] }, { kind: docker }]',
    /engines\[1\]\.regions: must be the same/,
  ],
  ['engine: []', /engines: /],
  ['[', /LOAM_CLUSTERS: /],
])('%s is refused with the place in the file', async (yaml, message) => {
  await expect(read(yaml)).rejects.toThrow(message);
});

test('a missing file, and LOAM_RUNNER beside it, are refused', async () => {
  expect(() => readConfig({ LOAM_CLUSTERS: '/nowhere.yaml' })).toThrow(/LOAM_CLUSTERS: .*nowhere/);
  await expect(
    read('engines: [{ name: hpc, kind: slurm }]', { LOAM_RUNNER: 'process' }),
  ).rejects.toThrow(/LOAM_RUNNER: .*LOAM_CLUSTERS/);
});
