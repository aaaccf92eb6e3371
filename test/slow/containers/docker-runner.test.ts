/** The runner contract with containers, and behaviour that only containers have. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { RESULT_FILES } from '../../../src/runners/runner.ts';
import { BUSYBOX, changedImage, docker, dockerRunner } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { needs } from '../../support/needs.ts';
import {
  allLines,
  attemptSpec,
  filesContract,
  runnerContract,
  runToEnd,
} from '../../support/runner.contract.ts';
import { smallDisk } from '../../support/small-disk.ts';
import { volumesContract } from '../../support/volumes.contract.ts';

const never = new AbortController().signal;

describe('docker', () => {
  runnerContract(() => dockerRunner(), 'docker');
  filesContract(() => dockerRunner(), 'docker');
  volumesContract(
    { open: ({ local }) => dockerRunner({ volumes: local }), mounts: true },
    'docker',
    'root',
  );
});

test('lines that arrive while earlier ones are stored form one batch', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner();
  const { runner } = made;
  const command = 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo $i; done';
  const handle = await runner.prepare(attemptSpec(command), never);
  await runner.start(handle);
  let [lines, batches] = [0, 0];
  for await (const batch of runner.logs(handle, null, never)) {
    lines += batch.lines.length;
    batches++;
    // Stands for the transaction that stores a batch.
    await delay(5);
  }
  expect(lines).toBe(5_000);
  expect(batches).toBeLessThan(1_000);
});

test('a container whose log fills the disk is ended with the reason', async (ctx) => {
  needs(ctx, 'docker', 'root');
  await using disk = await smallDisk(8);
  await using made = await dockerRunner({ dir: disk.dir, network: { mode: 'none' } });
  const flood = `yes "$(head -c 4000 /dev/zero | tr '\\0' x)"`;
  const { outcome } = await runToEnd(made.runner, attemptSpec(flood));
  expect(outcome).toMatchObject({
    kind: 'exited',
    exitCode: 137,
    note: 'The job was ended: the disk of the server is full.',
  });
});

test('an end that the shim has recorded counts, whatever the engine says of the container', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner({ network: { mode: 'none' } });
  const { runner, dir } = made;
  const start = async (command: string) => {
    const spec = attemptSpec(command);
    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    await eventually(() => expect(existsSync(join(dir, spec.id, 'exit'))).toBe(true));
    return { handle, container: `loam-${spec.id}` };
  };
  const removed = await start('exit 3');
  await docker('rm', '--force', removed.container);
  const again = await made.again();
  expect(await again.attach(removed.handle)).toBe('started');
  expect(await again.wait(removed.handle, never)).toMatchObject({ kind: 'exited', exitCode: 3 });
  const repeated = await start('[ ! -e ran ] || sleep 600; touch ran; exit 4');
  await docker('start', repeated.container);
  expect(await again.wait(repeated.handle, never)).toMatchObject({ kind: 'exited', exitCode: 4 });
  const running = () => docker('ps', '--quiet', '--filter', `name=${repeated.container}`);
  await eventually(async () => expect(await running()).toBe(''));
});

test('a command without a shim begins although its server was killed just before', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner({ network: { mode: 'none' } });
  const { runner, dir } = made;
  const spec = attemptSpec('echo begun; exit 3');
  const handle = await runner.prepare(spec, never);
  await docker('start', `loam-${spec.id}`);
  const opening = JSON.stringify({ at: Date.now(), hasShim: false });
  await writeFile(join(dir, spec.id, 'opening.json'), opening);
  expect(await runner.attach(handle)).toBe('started');
  expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 3 });
  expect(await allLines(runner, handle)).toEqual(['begun']);
});

test('the timeout of a container holds while no server supervises it', async (ctx) => {
  needs(ctx, 'docker');
  await using patient = await dockerRunner();
  await using strict = await dockerRunner({ graceMs: 300 });
  const start = async (
    { runner }: typeof strict,
    command: string,
    more: Parameters<typeof attemptSpec>[1] = {},
  ) => {
    const handle = await runner.prepare(attemptSpec(command, { timeoutMs: 1_000, ...more }), never);
    await runner.start(handle);
    return handle;
  };
  const loop = 'while :; do sleep 0.1; done';
  const polite = await start(patient, `trap 'echo told; exit 9' TERM; ${loop}`);
  const stubborn = await start(strict, `trap '' TERM; ${loop}`);
  const elsewhere = { image: 'loam-test/debian', env: { PATH: '/nope' } };
  const pathless = await start(patient, 'exec /bin/sleep 60', elsewhere);
  const running = () => docker('ps', '--quiet', '--filter', `name=loam-att_${process.pid}`);
  await eventually(async () => expect(await running()).toBe(''));
  for (const [handle, exitCode, said] of [
    [polite, 9, ['told']],
    [stubborn, 137, []],
    [pathless, 143, []],
  ] as const) {
    const again = await (handle === stubborn ? strict : patient).again();
    const outcome = await again.wait(handle, never);
    expect(outcome).toMatchObject({ kind: 'exited', exitCode, timedOut: true });
    const lines = (await allLines(again, handle)).filter((line) => line !== 'Terminated');
    expect(lines).toEqual(said);
  }
});

test.for([
  ['whose programs are not in the PATH of the job', 'true'],
  ['without sleep', 'rm /usr/bin/sleep'],
] as const)('a command runs with its own PATH in an image %s', async ([, change], ctx) => {
  needs(ctx, 'docker');
  await using image = await changedImage('loam-test/debian', '/bin/sh', '-c', change);
  await using made = await dockerRunner();
  const run = (command: string, env = {}) =>
    runToEnd(made.runner, attemptSpec(command, { image: image.name, env }));
  const command = 'echo hi; /usr/bin/env | /usr/bin/sort; exit 3';
  const { lines, outcome } = await run(command, { PATH: '/nope', NAME: 'of the job' });
  expect(outcome).toMatchObject({ kind: 'exited', exitCode: 3 });
  expect(lines).toContain('PATH=/nope');
  const own = [
    'HOME',
    'HOSTNAME',
    'NAME',
    'PATH',
    'PWD',
    'TMPDIR',
    'USER',
    ...Object.keys(RESULT_FILES),
  ];
  const gpus = ['CUDA_VISIBLE_DEVICES', 'NVIDIA_VISIBLE_DEVICES'];
  const names = lines.slice(1).map((line) => line.replace(/=.*/, ''));
  expect([lines[0], ...names.sort()]).toEqual(['hi', ...[...own, ...gpus].sort()]);
  const usual = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
  expect((await run('echo "$PATH"')).lines).toEqual([usual]);
});

test('a job is unstartable when /bin/sh of its image exits before running the command', async (ctx) => {
  needs(ctx, 'docker');
  const shell = `printf '#!/bin/busybox ash\\necho none; exit 3\\n' >/sh; chmod 755 /sh; mv /sh /bin/sh`;
  await using image = await changedImage(BUSYBOX, '/bin/busybox', 'ash', '-c', shell);
  await using made = await dockerRunner();
  // Repeated: the container may still have been running when it was checked.
  await eventually(async () => {
    const spec = attemptSpec('true', { image: image.name });
    const { lines, outcome } = await runToEnd(made.runner, spec);
    expect(lines).toEqual(['none']);
    const reason =
      'The command could not begin: /bin/sh of the image exited before running it, with exit code 3';
    expect(outcome).toEqual({ kind: 'unstartable', reason });
  });
});

test('a container gets one SIGTERM at its timeout', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner({ graceMs: 30_000 });
  const { runner } = made;
  const command = `n=0; trap 'n=$((n + 1)); echo told $n' TERM; i=0; while [ $i -lt 60 ]; do i=$((i+1)); sleep 0.1; done; exit 7`;
  const { outcome, lines } = await runToEnd(runner, attemptSpec(command, { timeoutMs: 1_000 }));
  expect(outcome).toMatchObject({ exitCode: 7, timedOut: true });
  expect(lines.filter((line) => line !== 'Terminated')).toEqual(['told 1']);
});

test('containers in which an earlier server process read a file of an image are removed', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner();
  const image = `loam-test/named-${process.pid}`;
  const worker = createHash('sha256').update(made.dir).digest('hex').slice(0, 16);
  const since = String(Math.floor(Date.now() / 1000) - 1);
  const base = await docker('create', BUSYBOX, 'true');
  await docker('commit', '--change', 'USER somebody', base, image);
  try {
    // The user is looked up in the image, which does not have it.
    await expect(made.runner.prepare(attemptSpec('true', { image }), never)).rejects.toThrow(
      'The image names a user that it does not have: "somebody"',
    );
    const filter = ['--filter', `label=loam.worker=${worker}`, '--filter', 'event=create'];
    const until = ['--since', since, '--until', String(Math.ceil(Date.now() / 1000) + 1)];
    const format = ['--format', '{{index .Actor.Attributes "loam.reader"}}'];
    const reader = await docker('events', ...until, ...filter, ...format);
    expect(reader).toMatch(/^[0-9a-f-]{36}$/);

    const labels = (by: string) =>
      ['--label', `loam.worker=${worker}`].concat('--label', `loam.reader=${by}`);
    const own = await docker('create', ...labels(reader), BUSYBOX, 'true');
    const left = await docker('create', ...labels('earlier'), BUSYBOX, 'true');
    await made.runner.sweep(new Set());
    const all = await docker('ps', '--all', '--quiet', '--no-trunc');
    expect(all).toContain(own);
    expect(all).not.toContain(left);
    await docker('rm', own);
  } finally {
    await docker('rm', base);
    await docker('rmi', image);
  }
});

test('volumes of an image are removed with the container, or later if the engine was killed', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await dockerRunner();
  const { runner } = made;
  const image = `loam-test/volumes-${process.pid}`;
  const worker = createHash('sha256').update(made.dir).digest('hex').slice(0, 16);
  const base = await docker('create', BUSYBOX, 'true');
  // /work is a folder of the job, and gets no volume.
  const volumes = ['/data', '/data/', '/work'].flatMap((path) => ['--change', `VOLUME ${path}`]);
  await docker('commit', ...volumes, base, image);
  const label = `label=loam.worker=${worker}`;
  const left = async () =>
    (await docker('volume', 'ls', '--quiet', '--filter', label)).split('\n').filter(Boolean);
  const create = (attempt: string) =>
    docker('volume', 'create', `--label=loam.worker=${worker}`, `--label=loam.attempt=${attempt}`);
  try {
    const spec = attemptSpec("grep -c ' /data ' /proc/mounts", { image });
    const handle = await runner.prepare(spec, never);
    expect(await left()).toHaveLength(1);
    const [one, other] = [await create('att_over'), await create('att_kept')];
    // The volume of the existing container stays.
    await runner.sweep(new Set(['att_kept', spec.id]));
    expect(await left()).not.toContain(one);
    await runner.start(handle);
    expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 0 });
    expect(await allLines(runner, handle)).toEqual(['1']);
    await runner.remove(handle);
    expect(await left()).toEqual([other]);
    await runner.sweep(new Set());
    expect(await left()).toEqual([]);
  } finally {
    await docker('rm', base);
    await docker('rmi', image);
  }
});

test('all containers share the memory for jobs, and have a lower CPU weight than the server', async (ctx) => {
  needs(ctx, 'docker', 'root');
  const group = (dir: string, controller = 'memory') =>
    `/sys/fs/cgroup/${controller}/loam-${createHash('sha256').update(dir).digest('hex').slice(0, 16)}`;
  let dir = '';
  {
    await using made = await dockerRunner({ limits: { allJobsMemoryBytes: 64 * 2 ** 20 } });
    ({ dir } = made);
    // Far below the limit of each container alone.
    const command = 'head -c 200m /dev/zero | tail -c 200m | wc -c';
    const { lines } = await runToEnd(made.runner, attemptSpec(`${command}; echo after`));
    expect(lines).not.toContain(String(200 * 2 ** 20));
    // The engine reports the kill for every container that was running.
    const besides = await made.runner.prepare(
      attemptSpec('until [ -e go ]; do sleep 0.1; done'),
      never,
    );
    await made.runner.start(besides);
    const { outcome } = await runToEnd(made.runner, attemptSpec(`${command}; true`));
    expect(outcome).toMatchObject({ exitCode: 0, outOfMemory: true });
    await writeFile(join(dir, String(besides.attempt), 'work/go'), '');
    const unharmed = await made.runner.wait(besides, never);
    expect(unharmed).toMatchObject({ kind: 'exited', exitCode: 0 });
    expect(unharmed).not.toHaveProperty('outOfMemory');
    expect(unharmed).not.toHaveProperty('note');
    expect(readFileSync(join(group(dir, 'cpu'), 'cpu.shares'), 'utf8')).toBe('512\n');
  }
  expect(existsSync(group(dir))).toBe(false);
  expect(existsSync(group(dir, 'cpu'))).toBe(false);
});
