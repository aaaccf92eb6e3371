/** Commands beside those of jobs in containers: the contract, and behaviour that only containers have. */
import { text } from 'node:stream/consumers';
import { beforeEach, describe, expect, test } from 'vitest';
import type { DockerRunner } from '../../../src/runners/docker/runner.ts';
import { type Handle, NotExecutable } from '../../../src/runners/runner.ts';
import { BUSYBOX, docker, dockerRunner } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { execContract } from '../../support/exec.contract.ts';
import { needs } from '../../support/needs.ts';
import { attemptSpec } from '../../support/runner.contract.ts';

const never = new AbortController().signal;

beforeEach((ctx) => needs(ctx, 'docker'));

describe.for([BUSYBOX, 'loam-test/debian'])('in the image %s', (fallback) => {
  execContract(() => dockerRunner({ fallback }));
});

const exec = (runner: DockerRunner, handle: Handle, command: string, env = {}) =>
  runner.exec(handle, { command, env, terminal: null });

async function running(runner: DockerRunner, env = {}) {
  const spec = attemptSpec('sleep 600 & wait', { env });
  const handle = await runner.prepare(spec, never);
  await runner.start(handle);
  return { handle, container: `loam-${spec.id}` };
}

test('output that is read late is complete', async () => {
  await using made = await dockerRunner();
  const { handle, container } = await running(made.runner);
  // The engine and the connection hold about 1.3 MiB; some of these leave a rest in the pipe of the command.
  const sizes = [1300, 1350, 1400, 1450, 1500, 1550, 1600].map((kib) => kib * 1024);
  const sessions = await Promise.all(
    sizes.map((size) => exec(made.runner, handle, `head -c ${size} /dev/zero`)),
  );
  // The engine has closed the streams of those that could end.
  const listRunning = () => docker('inspect', '--format', '{{.ExecIDs}}', container);
  await eventually(async () => expect(await listRunning()).not.toMatch(/(\w{64}.*){4}/));
  const read = await Promise.all(sessions.map(async ({ stdout }) => (await text(stdout)).length));
  expect(read).toEqual(sizes);
  expect(await Promise.all(sessions.map(({ exited }) => exited))).toEqual(sizes.map(() => 0));
});

test('no command runs beside a job that has not started', async () => {
  await using made = await dockerRunner();
  const handle = await made.runner.prepare(attemptSpec('true'), never);
  await expect(exec(made.runner, handle, 'true')).rejects.toThrow(NotExecutable);
});

test('a job that prints only errors instead of a shell is refused', async () => {
  await using made = await dockerRunner();
  const { handle, container } = await running(made.runner);
  const replace = `printf '#!/bin/ash\\nwhile :; do echo $(seq 30) >&2; done' > /bin/new
    chmod 755 /bin/new; mv /bin/new /bin/sh`;
  await docker('exec', '-u', '0', container, 'sh', '-c', replace);
  await expect(exec(made.runner, handle, 'true')).rejects.toThrow(/could not begin/);
});

test('no secret of a session is in what the engine shows', async () => {
  await using made = await dockerRunner();
  const { handle, container } = await running(made.runner, { SECRET: 'secret of the job' });
  const session = await exec(made.runner, handle, ': secret of the command; cat', {
    MORE: 'secret of the session',
  });
  session.stdin.write('begun\n');
  expect(String((await session.stdout[Symbol.asyncIterator]().next()).value)).toBe('begun\n');
  expect(await docker('inspect', container)).not.toContain('secret of');
  expect(await docker('top', container, '-e', '-o', 'pid,args')).not.toContain('secret of the s');
  session.close();
  expect(await session.exited).toBe(143);
});

test('a restarted server ends the sessions of the previous process only', async () => {
  await using made = await dockerRunner();
  const { handle } = await running(made.runner);
  const left = await exec(made.runner, handle, 'sleep 611');
  const again = await made.again();
  const abort = new AbortController();
  const waiting = again.wait(handle, abort.signal).catch(() => {});
  expect(await left.exited).toBe(137);
  const own = await exec(again, handle, 'sleep 612');
  const repeated = again.wait(handle, abort.signal).catch(() => {});
  expect(await text((await exec(again, handle, 'echo here')).stdout)).toBe('here\n');
  own.close();
  expect(await own.exited).toBe(143);
  abort.abort();
  await Promise.all([waiting, repeated]);
});
