/** Jobs that try to use GPUs of others. The GPUs are faked: a listing and device files without a driver. */
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { type Config, readConfig } from '../../../src/base/config/config.ts';
import { createLog } from '../../../src/base/log.ts';
import { openDockerRunner } from '../../../src/runners/docker/runner.ts';
import { buildGpuVariables } from '../../../src/runners/gpus/gpus.ts';
import { openGpuLedger } from '../../../src/runners/gpus/ledger.ts';
import { openRunner } from '../../../src/runners/open.ts';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import type { Handle } from '../../../src/runners/runner.ts';
import { BUSYBOX, DOCKER, dockerRunner } from '../../support/docker.ts';
import { engineProxy } from '../../support/engine-proxy.ts';
import { openConfinedRunner } from '../../support/hostile/user.ts';
import { needs } from '../../support/needs.ts';
import { attemptSpec } from '../../support/runner.contract.ts';

const never = new AbortController().signal;

/** The output of nvidia-smi 535 on a machine with three GPUs. */
const LISTING = `0, NVIDIA A100-SXM4-40GB, GPU-aaaa, 00000000:07:00.0, 40960, Disabled
1, NVIDIA A100-SXM4-40GB, GPU-bbbb, 00000000:0F:00.0, 40960, Disabled
2, NVIDIA GeForce GTX 1080, GPU-cccc, 00000000:47:00.0, 8192, [N/A]
`;

async function folder(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'loam-gpus-'));
  await chmod(path, 0o755);
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true }) };
}

test.for(['bubblewrap', 'unshare'] as const)(
  'with %s, a job sees the devices of its own GPUs alone, whatever its environment says',
  async (sandbox, ctx) => {
    needs(ctx, 'root', sandbox);
    await using tools = await folder();
    const smi = join(tools.path, 'nvidia-smi');
    await writeFile(smi, `#!/bin/sh\ncat <<'LISTING'\n${LISTING}LISTING\n`, { mode: 0o755 });
    // A folder of devices that only the server sees.
    const dev = join(tools.path, 'dev');
    const before = [
      `mkdir ${dev} && mount -t tmpfs tmpfs ${dev} && cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fd ${dev}`,
      `for n in 0 1 2 ctl -uvm; do mknod -m 666 ${dev}/nvidia$n c 1 3; done`,
      `mkdir ${dev}/pts ${dev}/shm && mount --bind ${dev} /dev && exec "$@"`,
    ].join('\n');
    const path = `${tools.path}:${process.env.PATH}`;
    await using server = await openConfinedRunner(
      'root',
      { sandbox, network: 'host' },
      { wrapper: ['unshare', '--mount', '--', '/bin/sh', '-c', before, 'sh'], path },
    );
    const env = { CUDA_VISIBLE_DEVICES: '0,1,2', NVIDIA_VISIBLE_DEVICES: 'all' };
    const command =
      'cd /dev; echo nvidia*; for f in nvidia*; do : > $f || exit 1; done; env | grep VISIBLE | sort';
    const first = await server.run({ command, env, gpu: 'A100-40GB' });
    expect(first.lines).toEqual([
      'nvidia-uvm nvidia0 nvidiactl',
      'CUDA_VISIBLE_DEVICES=GPU-aaaa',
      'NVIDIA_VISIBLE_DEVICES=GPU-aaaa',
    ]);
    const none = await server.run({ command: 'ls /dev | grep nvidia; env | grep VISIBLE', env });
    expect(none.lines.sort()).toEqual(['CUDA_VISIBLE_DEVICES=', 'NVIDIA_VISIBLE_DEVICES=void']);
  },
);

test('a container gets the GPUs that the operator has named by their numbers, and counts from 0 inside', async () => {
  const ledger = await openGpuLedger({ configured: { 'H100-80GB': 2, T4: 2 } });
  expect(ledger.models).toEqual({ 'H100-80GB': 2, T4: 2 });
  const [first] = ledger.take('a', { gpu: 'T4', gpuCount: 1 });
  expect(first).toMatchObject({ index: 2, uuid: '2' });
  expect(buildGpuVariables(['2', '3'])).toEqual({
    NVIDIA_VISIBLE_DEVICES: '2,3',
    CUDA_VISIBLE_DEVICES: '0,1',
  });
  expect(() => ledger.take('b', { gpu: 'T4', gpuCount: 2 })).toThrow('are not free');
  // They may be on another machine, where nothing measures them.
  expect(await ledger.percentOf('a')).toBeNull();
  expect(await ledger.percentOf('b')).toBe(0);
});

/** Makes the runners of this process see the GPUs of the listing. */
async function withListing(): Promise<void> {
  const tools = await folder();
  const smi = `#!/bin/sh\ncat <<'LISTING'\n${LISTING}LISTING\n`;
  await writeFile(join(tools.path, 'nvidia-smi'), smi, { mode: 0o755 });
  const before = process.env.PATH;
  process.env.PATH = `${tools.path}:${before}`;
  onTestFinished(async () => {
    process.env.PATH = before;
    await tools[Symbol.asyncDispose]();
  });
}

test('a container requests its assigned GPUs from the engine, and no other runner assigns them', async (ctx) => {
  needs(ctx, 'docker');
  await withListing();
  const gpus = await openGpuLedger();
  await using proxy = await engineProxy(DOCKER.host);
  await using containers = await dockerRunner({ docker: { ...DOCKER, host: proxy.host }, gpus });
  await using attempts = await folder();
  await using processes = await openProcessRunner({ dir: attempts.path, gpus, sandbox: 'none' });
  expect(containers.runner.machines).toMatchObject([{ gpus: { 'A100-40GB': 2 } }]);
  expect(processes.machines).toMatchObject([{ gpus: { 'A100-40GB': 2 } }]);

  const env = { NVIDIA_VISIBLE_DEVICES: 'all', CUDA_VISIBLE_DEVICES: '0,1' };
  const wish = (gpu: string) => {
    const spec = attemptSpec('true', { env });
    return { ...spec, hardware: { ...spec.hardware, gpu } };
  };
  const first = await processes.prepare(wish('A100-40GB'), never);
  const second = await containers.runner.prepare(wish('A100-40GB'), never);
  await containers.runner.prepare(wish('none'), never);
  const variables = ({ Env }: { Env: string[] }) => Env.filter((one) => /VISIBLE/.test(one)).sort();
  const created = proxy.created as unknown as {
    Env: string[];
    HostConfig: { DeviceRequests?: unknown };
  }[];
  // An engine that cannot limit the disk of a container gets the first request twice.
  const [withGpu, without] = [created[0], created.at(-1)];
  expect(withGpu?.HostConfig.DeviceRequests).toEqual([
    { Driver: 'nvidia', DeviceIDs: ['GPU-bbbb'], Capabilities: [['gpu', 'compute', 'utility']] },
  ]);
  expect(withGpu && variables(withGpu)).toEqual([
    'CUDA_VISIBLE_DEVICES=GPU-bbbb',
    'NVIDIA_VISIBLE_DEVICES=GPU-bbbb',
  ]);
  expect(without?.HostConfig.DeviceRequests).toBe(undefined);
  expect(without && variables(without)).toEqual([
    'CUDA_VISIBLE_DEVICES=',
    'NVIDIA_VISIBLE_DEVICES=void',
  ]);

  const third = wish('A100-40GB');
  await expect(processes.prepare(third, never)).rejects.toThrow('1 × A100-40GB are not free');
  // Both kinds of runner are told of each end, and only the one that has the attempt releases its GPU.
  await processes.remove(second);
  await expect(processes.prepare(third, never)).rejects.toThrow('are not free');
  // A restarted server reads the GPU from the folder of the attempt.
  const later = await openGpuLedger();
  const options = { docker: DOCKER, dir: containers.dir, gpus: later };
  await using again = await openDockerRunner({
    ...options,
    images: { allowed: null, fallback: BUSYBOX, configFolder: '/nonexistent' },
  });
  expect(later.assignedTo(String(second.attempt)).map(({ uuid }) => uuid)).toEqual(['GPU-bbbb']);

  // The engine of the tests has no GPU driver.
  await again.start(second);
  expect(await again.wait(second, never)).toMatchObject({
    kind: 'unstartable',
    reason: expect.stringMatching(/cannot give GPUs to containers/),
  });
  await containers.runner.remove(second);
  expect(gpus.assignedTo(String(second.attempt))).toEqual([]);
  await processes.remove(first);
  expect(gpus.take('another', { gpu: 'A100-40GB', gpuCount: 2 })).toHaveLength(2);
});

test('jobs that still run as processes keep their GPUs when all new jobs are containers', async (ctx) => {
  needs(ctx, 'docker');
  await withListing();
  await using data = await folder();
  const config: Config = {
    ...readConfig({ LOAM_DATA_DIR: data.path }),
    docker: DOCKER,
  };
  const open = (runner: Config['runner'], defaultImage?: string) =>
    openRunner({
      config: { ...config, runner, defaultImage },
      hidden: [],
      agents: { url: 'http://127.0.0.1:3000', worker: 'srv_test' },
      log: createLog('silent'),
    });
  const wish = (gpuCount: number) => {
    const spec = attemptSpec('sleep 600');
    return { ...spec, hardware: { ...spec.hardware, gpu: 'A100-40GB', gpuCount } };
  };
  let process: Handle;
  {
    await using before = await open('auto');
    process = await before.prepare(wish(1), never);
    await before.start(process);
  }
  await using runner = await open('docker', BUSYBOX);
  expect(await runner.attach(process)).toBe('started');
  await expect(runner.prepare(wish(2), never)).rejects.toThrow('2 × A100-40GB are not free');
  const container = await runner.prepare(wish(1), never);
  expect([process.runner, container.runner]).toEqual(['process', 'docker']);
  await runner.remove(process);
  await runner.remove(container);
  const both = await runner.prepare(wish(2), never);
  await runner.remove(both);
  await runner.sweep(new Set());
});
