/** Jobs on an engine of another machine, which is reached by TLS and sees no files of the server. */

import { hash, randomBytes } from 'node:crypto';
import { mkdir, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { extract } from 'tar-stream';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { App } from '../../../src/app.ts';
import { readConfig } from '../../../src/base/config/config.ts';
import { connect } from '../../../src/runners/docker/engine.ts';
import { BUSYBOX, DOCKER, dockerRunner } from '../../support/docker.ts';
import { engineProxy } from '../../support/engine-proxy.ts';
import { eventually } from '../../support/eventually.ts';
import { execContract } from '../../support/exec.contract.ts';
import { Workspace } from '../../support/git.ts';
import { type Client, startApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { type OwnEngine, startOwnEngine } from '../../support/own-engine.ts';
import {
  attemptSpec,
  filesContract,
  runnerContract,
  runToEnd,
} from '../../support/runner.contract.ts';
import { startServers } from '../../support/servers.ts';
import { cancel, job, lines, submit, until } from '../../support/submit.ts';

const never = new AbortController().signal;

let engine: OwnEngine;
beforeAll(async () => {
  if (has('docker') && has('root'))
    engine = await startOwnEngine({ liveRestore: true, remote: true });
});
afterAll(async () => {
  const left = await engine?.docker('ps', '--all', '--quiet');
  await engine?.[Symbol.asyncDispose]();
  expect(left ?? '', 'containers left').toBe('');
});
beforeEach((ctx) => needs(ctx, 'docker', 'root'));

const open = () => dockerRunner({ docker: engine.config, engine: 'far' });

describe('the contract', () => {
  runnerContract(open, 'docker', 'root');
  filesContract(async () => ({ ...(await open()), missesReplacedFiles: true }), 'docker', 'root');
  execContract(open);
});

test('whether an engine is local is probed, and not derived from its address', async () => {
  await using far = await open();
  expect(far.runner.machines).toMatchObject([{ id: 'far' }]);
  await using near = await dockerRunner({ docker: DOCKER, engine: 'near' });
  expect(near.runner.machines).toMatchObject([{ id: 'local' }]);
});

test("Docker's environment variables configure TLS, and the certificates are required", async () => {
  const { host, certPath = '' } = engine.config;
  const ask = (env: Record<string, string>) =>
    connect(readConfig({ DOCKER_HOST: host, ...env }).docker).call((docker) => docker.ping());
  const verify = { DOCKER_TLS_VERIFY: '1' };
  expect(String(await ask({ ...verify, DOCKER_CERT_PATH: certPath }))).toBe('OK');
  // Docker's own programs use this folder when DOCKER_CERT_PATH is unset.
  expect(String(await ask({ ...verify, DOCKER_CONFIG: certPath }))).toBe('OK');
  await expect(ask({ DOCKER_CERT_PATH: certPath })).rejects.toThrow(/HTTPS server/);
  const none = { ...verify, DOCKER_CONFIG: '/nonexistent' };
  await expect(async () => ask(none)).rejects.toThrow(
    /^The certificates for tcp:.* cannot be read: .*nonexistent/,
  );
});

test('a checkout is sent into the container, and artifacts are read from it', async () => {
  await using made = await open();
  const { runner } = made;
  const spec = attemptSpec(
    [
      'pwd; id -u; cat src/main.txt; readlink link; stat -c "%u %a" . src/main.txt /tmp /home/job; ls -d /.loam 2>&1',
      'mkdir out; echo made > out/file; ln -s /etc/passwd out/link; ln -s /etc out/etc; head -c 3000000 /dev/zero > out/big',
    ].join('\n'),
    {
      async checkout(dir) {
        await mkdir(join(dir, 'src'), { recursive: true });
        await writeFile(join(dir, 'src/main.txt'), 'hello\n', { mode: 0o640 });
        await symlink('src', join(dir, 'link'));
      },
    },
  );
  const { handle, outcome, lines } = await runToEnd(runner, spec);
  const uid = lines[1];
  expect(lines).toEqual([
    '/work',
    uid,
    'hello',
    'src',
    `${uid} 700`,
    `${uid} 640`,
    `${uid} 700`,
    `${uid} 700`,
    '/.loam',
  ]);
  expect(outcome).toMatchObject({ kind: 'exited', exitCode: 0 });
  expect(await runner.artifacts(handle, '/work/out/link')).toBeNull();
  const found: Record<string, number> = {};
  const tar = await runner.artifacts(handle, 'out');
  for await (const entry of tar?.pipe(extract()) ?? []) {
    const { name, type } = entry.header;
    found[`${name} ${type}`] = (await text(entry)).length;
  }
  expect(found).toEqual({
    'file file': 5,
    'big file': 3_000_000,
    'link symlink': 0,
    'etc symlink': 0,
  });
});

test('a checkout contains LFS files in place of their pointers', async () => {
  const engines = [{ ...engine.config, name: 'far' }];
  await using app = await startApp({ config: { runner: 'auto', engines } });
  await using workspace = await Workspace.open();
  const { admin } = app;
  const { body } = await admin.post('/auth/v1/repository/admin', { name: 'large' });
  const bytes = randomBytes(5_000_000);
  const object = { oid: hash('sha256', bytes), size: bytes.length };
  const { signal } = new AbortController();
  await app.app.services.largeFiles.put(body.id, object, Readable.from([bytes]), signal);
  await workspace.clone(admin, 'admin/large');
  const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${object.oid}\nsize ${object.size}\n`;
  await workspace.commit('large', { 'a/data.bin': pointer, 'small.txt': 'small' });
  await workspace.git('large', 'push', '-q', 'origin', 'HEAD');
  await submit(admin, {
    namespace: 'admin',
    repo: 'admin/large',
    image: BUSYBOX,
    name: 'sums',
    command: 'sha256sum a/data.bin; stat -c %s a/data.bin; cat small.txt',
  });
  await until(admin, 'admin', 'sums', 'SUCCEEDED');
  expect(await lines(admin, 'admin', 'sums')).toEqual([
    `${object.oid}  a/data.bin`,
    `${object.size}`,
    'small',
  ]);
  const { rows } = await app.pool.query('select machine, runner from job_attempts');
  expect(rows).toEqual([{ machine: 'far', runner: 'docker:far' }]);
});

test('a cancelled checkout fails the step, and its container is removed', async () => {
  await using made = await open();
  const { runner } = made;
  const abort = new AbortController();
  const spec = attemptSpec('true', {
    async checkout(dir) {
      await mkdir(dir);
      // This takes seconds to send.
      await writeFile(join(dir, 'large'), '');
      await truncate(join(dir, 'large'), 4 * 2 ** 30);
      setTimeout(() => abort.abort(new Error('cancelled')), 500);
    },
  });
  await expect(runner.prepare(spec, abort.signal)).rejects.toThrow('cancelled');
  await runner.remove({ attempt: spec.id });
  expect(await engine.docker('ps', '--all', '--quiet')).toBe('');
});

test('a job that exceeds its disk limit on another machine is ended', async () => {
  await using made = await dockerRunner({
    docker: engine.config,
    engine: 'far',
    limits: { diskBytes: 20 * 2 ** 20 },
  });
  const { outcome } = await runToEnd(
    made.runner,
    attemptSpec('head -c 40m /dev/zero > /tmp/large; sleep 600'),
  );
  expect(outcome).toMatchObject({
    exitCode: 137,
    note: expect.stringMatching(/keeps \d+ MB on disk/),
  });
});

describe('GPU utilization on another machine', () => {
  /** The output of nvidia-smi 535 on a terminal, in a container with two GPUs. */
  const ANSWER = 'printf "37\\r\\n90\\r\\n"';

  /** An image with its own `nvidia-smi`, in place of the one that NVIDIA's runtime puts into containers. */
  async function imageWith(answer: string): Promise<string> {
    const name = 'loam-test/gpus';
    const script = `printf '#!/bin/sh\\n%s\\n' '${answer}' > /bin/nvidia-smi && chmod 755 /bin/nvidia-smi`;
    const container = await engine.docker('create', BUSYBOX, 'sh', '-c', script);
    await engine.docker('start', '--attach', container);
    await engine.docker('commit', container, name);
    await engine.docker('rm', container);
    return name;
  }

  test.for([
    [
      'is read in the container, not with a program of that name in the PATH of the job',
      ANSWER,
      63.5,
    ],
    ['is unknown if the program does not behave like nvidia-smi', 'yes 100', null],
  ] as const)('%s', async ([, answer, percent]) => {
    const image = await imageWith(answer);
    await using proxy = await engineProxy(engine.socket, { hasGpus: true });
    const { certPath: _, ...plain } = engine.config;
    const docker = { ...plain, host: proxy.host, tlsVerify: false };
    await using made = await dockerRunner({
      docker,
      engine: 'far',
      remoteGpus: { T4: 2 },
      network: { mode: 'none' },
    });
    const { runner } = made;
    const spec = attemptSpec('until [ -e go ]; do sleep 0.1; done', {
      image,
      env: { PATH: '/work' },
    });
    const requested = { ...spec, hardware: { ...spec.hardware, gpu: 'T4', gpuCount: 2 } };
    const handle = await runner.prepare(requested, never);
    await runner.start(handle);
    expect(await runner.stats(handle)).toMatchObject({ gpuPercent: percent });
    await runner.signal(handle, 'KILL');
    await runner.wait(handle, never);
    await runner.remove(handle);
    expect(JSON.stringify(proxy.created.at(-1))).toContain('"DeviceRequests"');
  });
});

test('a worker drives several engines: an unavailable one keeps its jobs and gets no new ones', async () => {
  const engines = [
    { ...DOCKER, name: 'near' },
    { ...engine.config, name: 'far' },
  ];
  await using app = await startApp({ config: { runner: 'auto', engines } });
  const { admin } = app;
  const run = (name: string, command: string) =>
    submit(admin, { namespace: 'admin', image: BUSYBOX, name, command });
  const machineOf = async (name: string) => {
    const { rows } = await app.pool.query<{ machine: string; runner: string }>(
      'select a.machine, a.runner from job_attempts a join jobs j on j.id = a.job_id where j.name = $1',
      [name],
    );
    return rows.map(({ machine, runner }) => `${machine} ${runner}`);
  };
  // The machine with most free capacity gets the next job.
  const names = ['first', 'second'] as const;
  for (const name of names) {
    await run(name, "trap 'exit 4' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done");
    await until(admin, 'admin', name, 'RUNNING');
  }
  const placed = await Promise.all(names.map(machineOf));
  expect(placed.flat().sort()).toEqual(['far docker:far', 'local docker:near']);
  const far = names[placed.findIndex(([one]) => one?.startsWith('far'))] ?? 'none';

  await app.app[Symbol.asyncDispose]();
  await engine.kill('SIGKILL');
  await app.restart();
  for (const name of ['third', 'fourth']) {
    await run(name, 'echo here');
    await until(admin, 'admin', name, 'SUCCEEDED');
    expect(await machineOf(name)).toEqual(['local docker:near']);
  }
  expect((await job(admin, 'admin', far)).status).toBe('RUNNING');
  await engine.start();
  for (const name of names) {
    const seen = (await lines(admin, 'admin', name)).length;
    await eventually(async () =>
      expect((await lines(admin, 'admin', name)).length).toBeGreaterThan(seen),
    );
    await cancel(admin, 'admin', name);
    await eventually(async () => expect((await job(admin, 'admin', name)).exitCode).toBe(4));
    // Shells also print a message when a child is killed.
    const said = (await lines(admin, 'admin', name)).filter((line) => line !== 'Terminated');
    expect(said).toEqual(said.map((_, i) => String(i + 1)));
    expect(await machineOf(name)).toHaveLength(1);
  }
  // The engine that is available again is soon offered again.
  await eventually(async () => {
    const { rows } = await app.pool.query('select machines from workers');
    expect(rows[0].machines.map(({ id }: { id: string }) => id).sort()).toEqual(['far', 'local']);
  });
});

test('a worker without an engine leaves jobs with an image to one with an engine, even if that is unavailable', async () => {
  await using servers = await startServers(1, { config: { runner: 'process' } });
  const engines = [{ ...engine.config, name: 'far' }];
  await servers.work('containers', { config: { runner: 'auto', engines, jobSlots: 2 } });
  const [app, admin] = [servers.apps[0] as App, servers.clients[0] as Client];
  const { pool } = app.services;
  const put = (name: string) =>
    submit(admin, { namespace: 'admin', image: BUSYBOX, name, command: 'echo here' });
  const names = ['a', 'b', 'c', 'd', 'e', 'f'];
  for (const name of names) await put(name);
  for (const name of names) await until(admin, 'admin', name, 'SUCCEEDED');

  await engine.kill('SIGKILL');
  const isAway = async (away: boolean) => {
    const { rows } = await pool.query(`select machines from workers where runner = 'auto'`);
    const offered = rows.flatMap(({ machines }) => machines.map(({ id }: { id: string }) => id));
    expect(offered.sort()).toEqual(away ? ['away', 'local'] : ['far', 'local']);
  };
  await eventually(() => isAway(true));
  await put('waits');
  // This job was queued later and runs first, so both workers have skipped the other.
  await admin.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  const plain = { namespace: 'admin', repo: 'admin/code', name: 'plain', command: 'true' };
  await submit(admin, plain);
  await until(admin, 'admin', 'plain', 'SUCCEEDED');
  const { status, progress } = await job(admin, 'admin', 'waits');
  expect([status, progress]).toEqual([
    'QUEUED',
    'waiting for a server that runs container images: no container engine answers',
  ]);
  await engine.start();
  await eventually(async () => {
    expect(await job(admin, 'admin', 'waits')).toMatchObject({ status: 'SUCCEEDED' });
  });
  const { rows } = await pool.query(
    `select distinct a.runner from job_attempts a join jobs j on j.id = a.job_id where j.image is not null`,
  );
  expect(rows).toEqual([{ runner: 'docker:far' }]);
});
