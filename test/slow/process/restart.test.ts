import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openDockerRunner } from '../../../src/runners/docker/runner.ts';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import type { Runner } from '../../../src/runners/runner.ts';
import { BUSYBOX, DOCKER } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { followStream, type StreamEvent } from '../../support/sse.ts';
import { job, lines, submit, until } from '../../support/submit.ts';

/** The second kind of runner needs fewer kills, because both use the same server code. */
const KILLS = { process: 10, docker: 4 };
type Kind = keyof typeof KILLS;
const TOKEN = 'a-token-for-the-restarts';

/** Prints numbers until a file appears in its folder, and then their count. */
const COUNT =
  'i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep 0.02; done; echo ::progress::done; echo total $i';

test.for(['process', 'docker'] as const)(
  'a %s job, its log and a client survive kills of the server',
  async (kind, ctx) => {
    const { onTestFinished, signal } = ctx;
    if (kind === 'docker') needs(ctx, 'docker');
    // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
    const cleanup = new AsyncDisposableStack();
    onTestFinished(() => cleanup.disposeAsync());
    const database = await cloneDatabase();
    cleanup.defer(() => database.drop());
    const dataDir = await mkdtemp(join(tmpdir(), 'loam-restart-'));
    cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
    const attempts = join(dataDir, kind === 'docker' ? 'containers' : 'attempts');
    cleanup.defer(async () => {
      await using runner = await runnerOn(attempts, kind);
      await runner.sweep(new Set());
    });
    let server: ServerProcess | undefined;
    let starting: Promise<ServerProcess> | undefined;
    cleanup.defer(async () => {
      await (await starting?.catch(() => undefined))?.stop('SIGKILL');
    });

    const start = async () => {
      signal.throwIfAborted();
      starting = serverOn(database.url, dataDir, kind);
      server = await starting;
      return new Client(server.base, `Bearer ${TOKEN}`);
    };
    let client = await start();
    await client.repository('admin/code');
    await submit(client, { namespace: 'admin', name: 'count', repo: 'admin/code', command: COUNT });
    await until(client, 'admin', 'count', 'RUNNING');

    const seen: StreamEvent[] = [];
    const numbers = () => seen.filter((e) => e.event === 'log').map((e) => e.data.message);
    const keep = (event: StreamEvent) => void seen.push(event);
    const follow = () =>
      followStream(client, '/admin/job/count/logs?stream=true&tail=10000', seen.at(-1)?.id);
    for (let kill = 0; kill < KILLS[kind]; kill++) {
      const before = seen.length;
      const stream = follow();
      const cutOff = expect(stream.each(keep)).rejects.toThrow();
      // Kills at different times: while lines arrive, or before the client has its first line.
      if (kill % 3 > 0) await eventually(() => expect(seen.length).toBeGreaterThan(before + 5));
      await server?.stop('SIGKILL');
      await cutOff;
      client = await start();
    }

    const [attempt] = attemptsIn(attempts);
    await writeFile(join(attempts, attempt ?? '', 'work/stop'), '');
    await follow().each(keep);
    expect(seen.at(-1)).toMatchObject({
      event: 'end',
      data: { status: 'succeeded', exit_code: 0 },
    });

    const told = numbers();
    const total = told.length - 1;
    expect(told).toEqual([
      ...Array.from({ length: total }, (_, i) => String(i + 1)),
      `total ${total}`,
    ]);
    expect(await lines(client, 'admin', 'count')).toEqual(told.slice(-10_000));
    expect(await job(client, 'admin', 'count')).toMatchObject({
      progress: 'done',
      retryCount: 0,
      attempts: { nodes: [{ number: 1, outcome: 'EXITED', exitCode: 0 }] },
    });
    await eventually(() => expect(attemptsIn(attempts)).toEqual([]));
    // The attempt's files are being removed.
    await eventually(() => expect(processesOf(dataDir)).toHaveLength(1));
    await server?.stop('SIGTERM');
    expect(processesOf(dataDir)).toEqual([]);
  },
);

test('a job whose server is killed while its artifacts are stored keeps its outcome, and they are stored once', async ({
  onTestFinished,
}) => {
  const FILES = 10_000;
  const cleanup = new AsyncDisposableStack();
  onTestFinished(() => cleanup.disposeAsync());
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-restart-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  let server: ServerProcess | undefined;
  cleanup.defer(async () => {
    await server?.stop('SIGKILL');
    await using runner = await runnerOn(join(dataDir, 'attempts'), 'process');
    await runner.sweep(new Set());
  });
  const start = async () => {
    server = await serverOn(database.url, dataDir, 'process');
    return new Client(server.base, `Bearer ${TOKEN}`);
  };
  let client = await start();
  await client.repository('admin/code');
  const command = `mkdir out; i=0; while [ $i -lt ${FILES} ]; do i=$((i+1)); echo $i > out/$i; done; echo printed`;
  await submit(client, {
    namespace: 'admin',
    name: 'stored',
    repo: 'admin/code',
    command,
    outputPath: 'out',
  });
  const ends: unknown[] = [];
  for (let kill = 0; kill < 2; kill++) {
    await eventually(async () => {
      const found = await job(client, 'admin', 'stored');
      expect(found).toMatchObject({ status: 'RUNNING', progress: 'storing artifacts' });
      ends.push([found.runtimeSeconds, found.attempts.nodes[0]?.exitCode]);
    });
    await server?.stop('SIGKILL');
    client = await start();
  }
  await until(client, 'admin', 'stored', 'SUCCEEDED');
  const stored = await job(client, 'admin', 'stored');
  expect(stored).toMatchObject({
    exitCode: 0,
    retryCount: 0,
    artifacts: { fileCount: FILES },
    attempts: { nodes: [{ number: 1, outcome: 'EXITED', exitCode: 0 }] },
  });
  expect(ends).toEqual([
    [stored.runtimeSeconds, 0],
    [stored.runtimeSeconds, 0],
  ]);
  expect(await lines(client, 'admin', 'stored')).toEqual(['printed']);
});

test.for(['process', 'docker'] as const)(
  'the sandbox of a failed %s job is held through a kill of the server, and the hold ends without it',
  { timeout: 240_000 },
  async (kind, ctx) => {
    if (kind === 'docker') needs(ctx, 'docker');
    const cleanup = new AsyncDisposableStack();
    ctx.onTestFinished(() => cleanup.disposeAsync());
    const database = await cloneDatabase();
    cleanup.defer(() => database.drop());
    const dataDir = await mkdtemp(join(tmpdir(), 'loam-restart-'));
    cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
    const attempts = join(dataDir, kind === 'docker' ? 'containers' : 'attempts');
    cleanup.defer(async () => {
      await using runner = await runnerOn(attempts, kind);
      await runner.sweep(new Set());
    });
    let server: ServerProcess | undefined;
    cleanup.defer(async () => void (await server?.stop('SIGKILL')));
    const start = async () => {
      server = await serverOn(database.url, dataDir, kind);
      return new Client(server.base, `Bearer ${TOKEN}`);
    };
    let client = await start();
    await client.repository('admin/code');
    const read = async () =>
      (
        await client.gql(
          '{ job(namespace: "admin", name: "held") { status hold { isActive exitCode since seconds } } }',
        )
      ).job;
    await submit(client, {
      namespace: 'admin',
      name: 'held',
      repo: 'admin/code',
      command: 'mkdir out; echo broken > out/model; exit 6',
      outputPath: 'out',
      holdOnFailureMinutes: 1,
    });
    const isHeld = { status: 'RUNNING', hold: { isActive: true, exitCode: 6 } };
    await eventually(async () => expect(await read()).toMatchObject(isHeld));
    const before = await read();
    await server?.stop('SIGKILL');
    client = await start();
    expect(await read()).toMatchObject({ ...isHeld, hold: { since: before.hold.since } });
    await server?.stop('SIGKILL');
    const [attempt = ''] = attemptsIn(attempts);
    await writeFile(join(attempts, attempt, 'work/out/model'), 'mended');
    // The job ends while no server runs.
    await eventually(() => expect(readdirSync(join(attempts, attempt))).toContain('exit'), 120_000);
    client = await start();
    expect(await until(client, 'admin', 'held', 'FAILED')).toMatchObject({
      exitCode: 6,
      artifacts: { fileCount: 1 },
      attempts: { nodes: [{ number: 1, outcome: 'EXITED', exitCode: 6 }] },
    });
    const { files } = (
      await client.gql(
        '{ job(namespace: "admin", name: "held") { artifacts { files { nodes { downloadUrl } } } } }',
      )
    ).job.artifacts;
    expect(await (await fetch(files.nodes[0].downloadUrl)).text()).toBe('mended');
    const { hold } = await read();
    expect(hold.isActive).toBe(false);
    expect(hold.seconds).toBeGreaterThanOrEqual(59);
    expect(hold.seconds).toBeLessThanOrEqual(60);
  },
);

const SETTINGS: Record<Kind, Record<string, string>> = {
  process: { LOAM_RUNNER: 'process' },
  docker: { LOAM_DEFAULT_IMAGE: BUSYBOX, DOCKER_HOST: DOCKER.host },
};

function serverOn(url: string, dataDir: string, kind: Kind): Promise<ServerProcess> {
  return startServer({
    DATABASE_URL: url,
    LOAM_DATA_DIR: dataDir,
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    ...SETTINGS[kind],
  });
}

function runnerOn(dir: string, kind: Kind): Promise<Runner & AsyncDisposable> {
  return kind === 'docker'
    ? openDockerRunner({
        dir,
        docker: DOCKER,
        images: { allowed: null, fallback: BUSYBOX, configFolder: dir },
      })
    : openProcessRunner({ dir });
}

function attemptsIn(folder: string): string[] {
  return readdirSync(folder).filter((name) => name.startsWith('att_'));
}

/** Processes that have the data folder as an argument or in their environment. */
function processesOf(dataDir: string): string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return ['cmdline', 'environ'].some((file) =>
        readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(dataDir),
      );
    } catch {
      return false;
    }
  });
}
