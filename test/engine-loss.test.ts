/** An engine that is killed and started again: with its containers kept running, and without. */
import { beforeEach, expect, test } from 'vitest';
import { BUSYBOX, dockerRunner } from './docker.ts';
import { eventually, startApp } from './harness.ts';
import { needs } from './needs.ts';
import { startOwnEngine } from './own-engine.ts';
import { allLines, attemptSpec } from './runner.contract.ts';
import { job, lines, submit, until } from './submit.ts';

const never = new AbortController().signal;

beforeEach((ctx) => needs(ctx, 'docker', 'root'));

test('no line and no exit code is lost with an engine that keeps its containers running', {
  timeout: 90_000,
}, async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  await using made = await dockerRunner({ docker: engine.config });
  const { runner } = made;
  const command = 'for i in $(seq 60); do echo $i; echo err $i >&2; sleep 0.1; done; exit 5';
  const handle = await runner.prepare(attemptSpec(command), never);
  await runner.start(handle);
  const ended = runner.wait(handle, never);
  const seen: string[] = [];
  const following = (async () => {
    for await (const batch of runner.logs(handle, null, never))
      seen.push(...batch.lines.map(({ message }) => message));
  })();
  for (const count of [10, 40]) {
    await eventually(() => expect(seen.length).toBeGreaterThan(count));
    await engine.kill('SIGKILL');
    await engine.start();
  }
  expect(await ended).toMatchObject({ kind: 'exited', exitCode: 5 });
  await following;
  const numbers = Array.from({ length: 60 }, (_, i) => String(i + 1));
  expect(seen.filter((line) => !line.startsWith('err'))).toEqual(numbers);
  expect(seen.filter((line) => line.startsWith('err'))).toEqual(numbers.map((n) => `err ${n}`));
  expect((await allLines(runner, handle)).sort()).toEqual(seen.sort());
});

test('a job whose container ended with its engine was lost, and runs again; others wait for it', {
  timeout: 90_000,
}, async () => {
  await using engine = await startOwnEngine({ liveRestore: false });
  await using app = await startApp({ config: { runner: 'auto', docker: engine.config } });
  const { admin } = app;
  const run = (name: string, command: string) =>
    submit(admin, { namespace: 'admin', image: BUSYBOX, name, command });
  await run('again', 'echo attempt $JOB_ATTEMPT; [ $JOB_ATTEMPT = 2 ] || sleep 600');
  await run('own', 'echo up; kill -TERM $$');
  await until(admin, 'admin', 'own', 'FAILED');
  await eventually(async () => expect(await lines(admin, 'admin', 'again')).toHaveLength(1));

  await engine.kill('SIGKILL');
  await run('later', 'echo later');
  await eventually(async () =>
    expect((await job(admin, 'admin', 'later')).progress).toMatch(/container engine/),
  );
  await engine.start();
  expect(await until(admin, 'admin', 'again', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED', exitCode: 0 }] },
  });
  expect(await lines(admin, 'admin', 'again')).toEqual(['attempt 1', 'attempt 2']);
  expect(await until(admin, 'admin', 'later', 'SUCCEEDED')).toMatchObject({ retryCount: 0 });
  // What ended by itself, while the engine was there, has failed.
  expect(await job(admin, 'admin', 'own')).toMatchObject({
    exitCode: 143,
    attempts: { nodes: [{ outcome: 'EXITED', exitCode: 143 }] },
  });

  // Asked for while no server was there: only the engine can tell what happened.
  await run('unseen', '[ $JOB_ATTEMPT = 2 ] || sleep 600');
  await until(admin, 'admin', 'unseen', 'RUNNING');
  await app.app[Symbol.asyncDispose]();
  await engine.kill('SIGTERM');
  await engine.start();
  await app.restart();
  expect(await until(admin, 'admin', 'unseen', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
});
