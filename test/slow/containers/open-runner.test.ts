/** Which runners a server opens, by its configuration and the engines that answer, and the messages at its start. */
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import { type Config, readConfig } from '../../../src/base/config/config.ts';
import { openRunner } from '../../../src/runners/open.ts';
import { LOCAL_MACHINE, listAttemptKinds } from '../../../src/runners/runner.ts';
import { BUSYBOX, DOCKER } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { job, lines, submit, until } from '../../support/submit.ts';

async function folder(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'loam-open-'));
  onTestFinished(() => rm(path, { recursive: true, maxRetries: 5 }));
  return path;
}

/** An engine that is not configured and does not answer; its socket may be created later. */
async function silent() {
  const socket = join(await folder(), 'engine.sock');
  return { socket, docker: { ...DOCKER, host: `unix://${socket}`, named: false } };
}

/** @returns the runner, and the log messages about it */
async function opened(changes: Partial<Config>) {
  const said: string[] = [];
  const config = { ...readConfig({ LOAM_DATA_DIR: await folder() }), ...changes };
  const log = pino({}, { write: (line: string) => void said.push(JSON.parse(line).msg) });
  const runner = await openRunner({
    config,
    hidden: [],
    agents: { url: 'http://127.0.0.1:3000', worker: 'srv_test' },
    log,
  });
  return {
    runner,
    said: said.filter((text) =>
      /^(Jobs (run|with)|All jobs|A container engine)| answers at /.test(text),
    ),
    [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose](),
  };
}

const here = (withImage: boolean, withoutImage: boolean) => [
  expect.objectContaining({ id: LOCAL_MACHINE, withImage, withoutImage }),
];
const answers = expect.stringMatching(/^Docker .* answers at .*, on this machine$/);

test('without an engine, jobs run as processes and jobs with an image are refused', async () => {
  const { docker } = await silent();
  await using made = await opened({ runner: 'auto', docker });
  const { runner, said } = made;
  expect(said).toEqual([
    `Jobs run as processes, and jobs with an image are refused: no container engine answers at ${docker.host}. Install Docker or Podman, or set DOCKER_HOST, and start again.`,
  ]);
  expect(listAttemptKinds(runner)).toEqual(['auto', 'process', 'joined']);
  expect(runner.machines).toEqual([
    expect.objectContaining({ id: LOCAL_MACHINE, withImage: false }),
  ]);
  expect(runner.hasUnavailableEngine ?? false).toBe(false);
});

test('while a configured engine does not answer, jobs with an image wait', async () => {
  const { docker } = await silent();
  await using made = await opened({ runner: 'auto', docker: { ...docker, named: true } });
  const { runner, said } = made;
  expect(said).toEqual([
    'Jobs with an image run in containers. The others run as processes of this machine.',
    expect.stringContaining(
      `A container engine does not answer yet; jobs that need it wait: ${docker.host} (`,
    ),
  ]);
  expect(listAttemptKinds(runner)).toEqual(['auto', 'process', 'docker', 'joined']);
  expect(runner.hasUnavailableEngine).toBe(true);
});

test('with an engine, jobs with an image run in containers and others as processes', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await opened({ runner: 'auto', docker: DOCKER });
  const { runner, said } = made;
  expect(said).toEqual([
    answers,
    'Jobs with an image run in containers. The others run as processes of this machine.',
  ]);
  expect(runner.machines).toEqual(here(true, true));
  expect(runner.hasUnavailableEngine).toBe(false);
});

test('with an engine and a default image, all jobs run in containers', async (ctx) => {
  needs(ctx, 'docker');
  await using made = await opened({ runner: 'auto', docker: DOCKER, defaultImage: BUSYBOX });
  const others = `The others run in ${BUSYBOX} (LOAM_DEFAULT_IMAGE).`;
  expect(made.said).toEqual([answers, `Jobs with an image run in containers. ${others}`]);
});

test('with LOAM_RUNNER=docker all jobs run in containers, and an engine must answer at the start', async (ctx) => {
  const { docker } = await silent();
  await expect(opened({ runner: 'docker', docker })).rejects.toMatchObject({
    name: 'ConfigError',
    message: expect.stringMatching(
      /^LOAM_RUNNER: docker requires a container engine, and none answers: unix:.*engine.sock \(/,
    ),
  });
  needs(ctx, 'docker');
  await using made = await opened({ runner: 'docker', docker: DOCKER });
  expect(made.said).toEqual([answers, 'All jobs run in containers']);
  expect(listAttemptKinds(made.runner)).toEqual(['docker', 'joined']);
  expect(made.runner.machines).toEqual(here(true, true));
});

test('with LOAM_RUNNER=process all jobs run as processes, and no engine is contacted', async () => {
  const { docker } = await silent();
  await using made = await opened({ runner: 'process', docker, defaultImage: BUSYBOX });
  expect(made.said).toEqual([]);
  expect(listAttemptKinds(made.runner)).toEqual(['process', 'joined']);
});

test('with a default image and no engine, jobs wait, and none runs as a process', async (ctx) => {
  needs(ctx, 'docker');
  const { docker, socket } = await silent();
  const config = { runner: 'auto', docker, defaultImage: BUSYBOX } as const;
  {
    await using made = await opened(config);
    expect(made.said).toEqual([
      `Jobs with an image run in containers. The others run in ${BUSYBOX} (LOAM_DEFAULT_IMAGE).`,
      expect.stringContaining(
        `A container engine does not answer yet; jobs that need it wait: unix://`,
      ),
    ]);
  }
  await using app = await startApp({ config });
  const { admin } = app;
  await admin.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  const command = 'test -e /.loam && echo container || echo process';
  await submit(admin, { namespace: 'admin', repo: 'admin/code', name: 'bare', command });
  await eventually(async () =>
    expect((await job(admin, 'admin', 'bare')).progress).toMatch(/container engine/),
  );
  await symlink(DOCKER.host.replace('unix://', ''), socket);
  await until(admin, 'admin', 'bare', 'SUCCEEDED');
  expect(await lines(admin, 'admin', 'bare')).toEqual(['container']);
});

test('with LOAM_RUNNER=docker running processes finish in their slots, and no new ones start', async (ctx) => {
  needs(ctx, 'docker');
  await using app = await startApp({ config: { runner: 'auto', docker: DOCKER, jobSlots: 1 } });
  const { admin } = app;
  await admin.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  const run = (name: string, command: string) =>
    submit(admin, { namespace: 'admin', repo: 'admin/code', name, command });
  await run('old', 'for i in $(seq 400); do echo $i; test -e go && exit 3; sleep 0.1; done');
  await eventually(async () => expect(await lines(admin, 'admin', 'old')).not.toEqual([]));
  const { rows } = await app.pool.query('select id from job_attempts');
  const go = join(app.config.dataDir, 'attempts', rows[0].id, 'work/go');

  Object.assign(app.config, { runner: 'docker', defaultImage: BUSYBOX });
  await app.restart();
  await run('new', 'test -e /.loam && echo container || echo process');
  const seen = (await lines(admin, 'admin', 'old')).length;
  await eventually(async () =>
    expect((await lines(admin, 'admin', 'old')).length).toBeGreaterThan(seen + 3),
  );
  expect((await job(admin, 'admin', 'new')).progress).toMatch(/1st in line/);
  await writeFile(go, '');
  expect(await until(admin, 'admin', 'old', 'FAILED')).toMatchObject({
    exitCode: 3,
    attempts: { nodes: [{ outcome: 'EXITED', exitCode: 3 }] },
  });
  await until(admin, 'admin', 'new', 'SUCCEEDED');
  expect(await lines(admin, 'admin', 'new')).toEqual(['container']);
});
