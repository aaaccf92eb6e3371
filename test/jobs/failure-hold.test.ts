/** The sandbox of a failed job is held (`holdOnFailureMinutes`) until its time is over, or something ends it sooner. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { beforeEach, describe, expect, test } from 'vitest';
import { endLostAttempt } from '../../src/jobs/attempts/finish.ts';
import { holdOnFailure, parseHoldMark } from '../../src/jobs/record/failure-hold.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { cancel, lines, submit, submitRaw, until } from '../support/submit.ts';

describe.each([
  ['dash', ['dash']],
  ['bash', ['bash', '--posix']],
  ['busybox', ['busybox', 'sh']],
] as const)('the shell around the command, with %s', (_, [shell, ...before]) => {
  beforeEach((ctx) => {
    if (shell === 'busybox') needs(ctx, 'busybox');
  });

  /** Runs in a process group of its own, as jobs do. */
  function start(command: string, seconds: number): ChildProcess {
    const args = [...before, '-c', holdOnFailure(command, seconds)];
    return spawn(shell, args, { detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
  }
  async function finish(child: ChildProcess) {
    const { stdout, stderr } = child;
    if (!stdout || !stderr) throw new Error('no pipes');
    const [out, err, [code]] = await Promise.all([text(stdout), text(stderr), once(child, 'exit')]);
    return { out, err, code };
  }
  const run = (command: string, seconds: number) => finish(start(command, seconds));
  /** Starts the command, and sends SIGTERM to the group when it has printed something. */
  async function terminate(command: string) {
    const child = start(command, 3_600);
    let out = '';
    child.stdout?.on('data', (data) => {
      out += data;
    });
    await eventually(() => expect(out).not.toBe(''));
    process.kill(-(child.pid ?? 0), 'SIGTERM');
    const [code] = await once(child, 'exit');
    return { out, code };
  }

  test('passes on output, and the code of a success at once', async () => {
    const quoted = `echo "it's" '$x' "$0"; echo err >&2`;
    expect(await run(quoted, 3_600)).toEqual({ out: "it's $x /bin/sh\n", err: 'err\n', code: 0 });
  });

  test('waits after a failure, and ends with its code', async () => {
    const before = performance.now();
    expect(await run('printf end; exit 7', 1)).toEqual({
      out: 'end\n::loam-held::7\n',
      err: '',
      code: 7,
    });
    expect(performance.now() - before).toBeGreaterThan(500);
    expect((await run('kill -KILL $$', 0)).out).toBe('\n::loam-held::137\n');
  });

  test('ends at SIGTERM while it waits, with the code of the command', async () => {
    expect(await terminate('exit 7')).toEqual({ out: '\n::loam-held::7\n', code: 7 });
  });

  test('does not wait after SIGTERM', async () => {
    expect(await terminate('echo up; sleep 600')).toEqual({ out: 'up\n', code: 143 });
    const trapped = 'trap "exit 5" TERM; echo up; while :; do sleep 1; done';
    expect(await terminate(trapped)).toEqual({ out: 'up\n', code: 5 });
  });
});

test('only the line of the shell is a mark', () => {
  expect(parseHoldMark('::loam-held::137')).toBe(137);
  for (const line of ['::loam-held::0', '::loam-held::1 ', ' ::loam-held::1', '::loam-held::1000'])
    expect(parseHoldMark(line), line).toBeNull();
});

const HOLD = 'holdOnFailureMinutes hold { isActive exitCode since until seconds }';
async function readHold(client: Client, name: string) {
  const query = `{ job(namespace: "ada", name: "${name}") { status exitCode progress ${HOLD} } }`;
  return (await client.gql(query)).job;
}
const held = (client: Client, name: string) =>
  eventually(async () => {
    const job = await readHold(client, name);
    expect(job, job.progress).toMatchObject({ status: 'RUNNING', hold: { isActive: true } });
    return job;
  });
const release = (client: Client, name: string) =>
  client.graphql(
    `mutation { releaseJob(input: { namespace: "ada", name: "${name}" }) { job { name progress } } }`,
  );
const run = (client: Client, name: string, command: string, more: object = {}) =>
  submit(client, {
    namespace: 'ada',
    repo: 'ada/code',
    name,
    command,
    holdOnFailureMinutes: 30,
    ...more,
  });

async function withAda(app: TestApp): Promise<Client> {
  const ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  return ada;
}

test('a failed job stays with its files until it is released, also through a restart of the server', async () => {
  await using app = await startApp({ config: { runner: 'process' } });
  const ada = await withAda(app);
  const command =
    'echo ::progress::epoch 1; mkdir out; echo broken > out/model; (while :; do sleep 1; echo ::progress::late; done) & exit 3';
  await run(ada, 'mend', command, { outputPath: 'out' });
  const job = await held(ada, 'mend');
  expect(job).toMatchObject({ exitCode: null, holdOnFailureMinutes: 30, hold: { exitCode: 3 } });
  expect(Date.parse(job.hold.until) - Date.parse(job.hold.since)).toBe(30 * 60_000);
  expect(job.progress).toMatch(
    /^failed with exit code 3: held until \d{4}-\d\d-\d\d \d\d:\d\d UTC, loam shell ada\/mend$/,
  );
  const line =
    'Failed with exit code 3. The sandbox is held for 30 minutes: "loam shell ada/mend" opens it, "loam release ada/mend" ends it.';
  await eventually(async () => expect(await lines(ada, 'ada', 'mend')).toEqual(['', line]));
  // REST shows an exit code of finished jobs only.
  const { body } = await ada.get('/ada/job/mend');
  expect(body).toMatchObject({ status: 'running', progress: job.progress });
  expect(body).not.toHaveProperty('exit_code');

  await app.restart();
  const { id } = await app.app.services.db.jobAttempt.findFirstOrThrow();
  const model = join(app.config.dataDir, 'attempts', id, 'work/out/model');
  expect(await readFile(model, 'utf8')).toBe('broken\n');
  await writeFile(model, 'mended\n');
  expect(await readHold(ada, 'mend')).toMatchObject({
    progress: job.progress,
    hold: { isActive: true },
  });
  const { data } = await release(ada, 'mend');
  expect(data.releaseJob.job.progress).toBe('failed with exit code 3: released');
  const ended = await until(ada, 'ada', 'mend', 'FAILED');
  expect(ended).toMatchObject({
    exitCode: 3,
    retryCount: 0,
    progress: 'failed with exit code 3',
    artifacts: { fileCount: 1 },
    attempts: { nodes: [{ number: 1, outcome: 'EXITED', exitCode: 3 }] },
  });
  const { hold } = await readHold(ada, 'mend');
  expect(hold).toMatchObject({ isActive: false, exitCode: 3 });
  expect(Date.parse(hold.until)).toBeLessThan(Date.now());
  expect(hold.seconds).toBeLessThanOrEqual(ended.runtimeSeconds);
  const { files } = (
    await ada.gql(
      '{ job(namespace: "ada", name: "mend") { artifacts { files { nodes { downloadUrl } } } } }',
    )
  ).job.artifacts;
  expect(await (await fetch(files.nodes[0].downloadUrl)).text()).toBe('mended\n');
  const { rows } = await app.pool.query(
    `select actor, name from audit_entries where action = 'job.release'`,
  );
  expect(rows).toEqual([{ actor: 'ada', name: 'mend' }]);
  expect((await release(ada, 'mend')).errors?.[0]).toMatchObject({
    message: 'The job is not held: its status is failed',
    extensions: { code: 'CONFLICT' },
  });
});

test('a release while no worker runs is carried out by the next', async () => {
  await using app = await startApp({ config: { runner: 'process' } });
  const ada = await withAda(app);
  await run(ada, 'later', 'exit 4');
  await held(ada, 'later');
  await app.app.services.db.job.updateMany({
    where: { name: 'later' },
    data: { heldUntil: new Date() },
  });
  expect((await readHold(ada, 'later')).hold.isActive).toBe(false);
  await app.restart();
  expect(await until(ada, 'ada', 'later', 'FAILED')).toMatchObject({ exitCode: 4 });
});

test('only the last attempt is held, and neither a success nor a cancelled job', async () => {
  await using app = await startApp({ config: { runner: 'process' } });
  const ada = await withAda(app);
  await run(ada, 'retried', 'echo $JOB_ATTEMPT; exit 2', { retries: 1 });
  await run(ada, 'good', 'true');
  await run(ada, 'stopped', 'trap "exit 9" TERM; echo up; while :; do sleep 0.1; done');
  await until(ada, 'ada', 'good', 'SUCCEEDED');
  await eventually(async () => expect(await lines(ada, 'ada', 'stopped')).toEqual(['up']));
  await cancel(ada, 'ada', 'stopped');
  await eventually(async () =>
    expect(await readHold(ada, 'stopped')).toMatchObject({ exitCode: 9, hold: null }),
  );
  await held(ada, 'retried');
  expect((await lines(ada, 'ada', 'retried')).slice(0, 2)).toEqual(['1', '2']);

  // A held job that is cancelled keeps the exit code of its command.
  expect((await cancel(ada, 'ada', 'retried')).data.cancelJob.job.status).toBe('CANCELLED');
  await eventually(async () =>
    expect(await readHold(ada, 'retried')).toMatchObject({
      status: 'CANCELLED',
      exitCode: 2,
      hold: { isActive: false, exitCode: 2 },
    }),
  );
});

test('the maximum cost ends the hold, and the job has failed', async () => {
  await using app = await startApp({ config: { runner: 'process' } });
  const ada = await withAda(app);
  await run(ada, 'costly', 'exit 6', { cpu: 96, memoryGb: 512, maxCost: '0.01' });
  const ended = await until(ada, 'ada', 'costly', 'FAILED');
  expect(ended).toMatchObject({ exitCode: 6, progress: 'failed with exit code 6' });
  expect(await lines(ada, 'ada', 'costly')).toEqual([
    '',
    expect.stringMatching(/^Failed with exit code 6/),
    'The hold ended at the maximum cost of the job.',
  ]);
});

test('a held job whose machine is lost has failed, and does not run again', async () => {
  await using app = await startApp({ config: { runner: 'process' } });
  const ada = await withAda(app);
  await run(ada, 'lost', 'exit 8');
  await held(ada, 'lost');
  const { db } = app.app.services;
  const { id: attemptId, jobId } = await db.jobAttempt.findFirstOrThrow();
  const deps = { db } as Parameters<typeof endLostAttempt>[0];
  expect(await endLostAttempt(deps, { attemptId, jobId })).toBe(true);
  expect(await until(ada, 'ada', 'lost', 'FAILED')).toMatchObject({
    exitCode: 8,
    progress: 'failed with exit code 8',
    attempts: { nodes: [{ number: 1, outcome: 'LOST' }] },
  });
});

test('the time of the hold is checked, and a re-run keeps it', async () => {
  await using app = await startApp();
  const ada = await withAda(app);
  const base = { namespace: 'ada', repo: 'ada/code', name: 'bad', command: 'true' };
  for (const holdOnFailureMinutes of [-1, 1_441]) {
    const { errors } = await submitRaw(ada, { ...base, holdOnFailureMinutes });
    expect(errors?.[0]).toMatchObject({
      message: expect.stringContaining('holdOnFailureMinutes: must be from 0 to 1440'),
      extensions: { code: 'INVALID_REQUEST', field: 'holdOnFailureMinutes' },
    });
  }
  await run(ada, 'first', 'exit 0', { holdOnFailureMinutes: 1_440 });
  const again = await ada.gql(
    'mutation { rerunJob(input: { namespace: "ada", name: "first" }) { job { holdOnFailureMinutes hold { seconds } } } }',
  );
  expect(again.rerunJob.job).toEqual({ holdOnFailureMinutes: 1_440, hold: null });
  const reader = await app.user('bob', 'unlimited');
  const { errors } = await release(reader, 'first');
  expect(errors?.[0]?.extensions).toMatchObject({ code: 'PERMISSION_DENIED' });
});
