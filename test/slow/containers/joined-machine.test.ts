/** Attempts in containers on a joined machine, with its real program. */
import { existsSync } from 'node:fs';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { BUSYBOX, DOCKER } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { execContract } from '../../support/exec.contract.ts';
import { joinedMachine, sharedMachine } from '../../support/joined-machine.ts';
import { needs } from '../../support/needs.ts';
import { attemptSpec, filesContract, runnerContract } from '../../support/runner.contract.ts';

describe('joined machine with an engine', () => {
  const machine = sharedMachine({
    env: { LOAM_RUNNER: 'docker', LOAM_DEFAULT_IMAGE: BUSYBOX, DOCKER_HOST: DOCKER.host },
  });
  afterAll(() => machine[Symbol.asyncDispose]());
  runnerContract(machine.open, 'docker');
  filesContract(machine.open, 'docker');
  execContract(machine.open);
});

test('an attempt with an image waits for the container engine of its machine', async (ctx) => {
  needs(ctx, 'docker');
  const dir = await mkdtemp(join(tmpdir(), 'loam-engine-'));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const socket = join(dir, 'docker.sock');
  const env = { LOAM_RUNNER: 'auto', DOCKER_HOST: `unix://${socket}` };
  const made = cleanup.use(await joinedMachine({ env }));
  const [machine] = made.runner.machines;
  expect(machine).toMatchObject({ withImage: true, withoutImage: true });
  const never = new AbortController().signal;
  const spec = { ...attemptSpec('exit 3'), image: BUSYBOX };
  const handle = await made.runner.prepare(spec, never);
  const starting = made.runner.start(handle);
  await eventually(() => expect(made.polled?.attempts).toMatchObject([{ id: spec.id }]));
  await symlink(new URL(DOCKER.host).pathname, socket);
  expect(await starting).toBe(true);
  expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 3 });
});

test('a container that was killed at the end of its lease is lost', async (ctx) => {
  needs(ctx, 'docker');
  const env = { LOAM_RUNNER: 'docker', LOAM_DEFAULT_IMAGE: BUSYBOX, DOCKER_HOST: DOCKER.host };
  await using made = await joinedMachine({ leaseMs: 10_000, env });
  const never = new AbortController().signal;
  const handle = await made.runner.prepare(attemptSpec('echo up; sleep 600'), never);
  await made.runner.start(handle);
  for await (const _ of made.runner.logs(handle, null, never)) break;
  await made.machine.end('SIGKILL');
  const exit = join(made.dir, 'runner/containers', String(handle.attempt), 'exit');
  await eventually(() => expect(existsSync(exit)).toBe(true));
  made.machine.start();
  expect(await made.runner.wait(handle, never)).toEqual({ kind: 'lost' });
});
