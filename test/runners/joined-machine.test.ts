/** Attempts on a joined machine, with its real program. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { readLease } from '../../src/runners/supervisor/lease.ts';
import { eventually } from '../support/eventually.ts';
import { execContract } from '../support/exec.contract.ts';
import { joinedMachine, sharedMachine } from '../support/joined-machine.ts';
import { attemptSpec, filesContract, runnerContract } from '../support/runner.contract.ts';
import { volumesContract } from '../support/volumes.contract.ts';

const never = new AbortController().signal;

describe('joined machine', () => {
  const machine = sharedMachine();
  afterAll(() => machine[Symbol.asyncDispose]());
  runnerContract(machine.open);
  filesContract(machine.open);
  execContract(machine.open);
});

describe('joined machine, volumes', () => {
  volumesContract(
    {
      open: async ({ file }) => {
        const made = await joinedMachine({ env: { LOAM_VOLUMES: file } });
        return Object.assign(made, { again: () => made.reopen() });
      },
      mounts: true,
    },
    'bubblewrap',
  );
});

test('the lease counts from the answer that lets the work begin', async () => {
  await using made = await joinedMachine();
  const handle = await made.runner.prepare(attemptSpec('echo up; sleep 600'), never);
  await made.runner.start(handle);
  for await (const _ of made.runner.logs(handle, null, never)) break;
  const dir = join(made.dir, 'runner/attempts', String(handle.attempt));
  expect(readLease(dir)).toBeDefined();
});

test('an attempt that was lost does not bind the machine to its worker', async () => {
  await using made = await joinedMachine();
  const handle = await made.runner.prepare(attemptSpec('echo up; sleep 600'), never);
  await made.runner.start(handle);
  const id = String(handle.attempt);
  await eventually(() => expect(made.polled).toMatchObject({ count: 1, attempts: [{ id }] }));
  // As when the worker that has the attempt is dead, and another server answers.
  (await made.runner.findSession(id))?.close();
  await eventually(() =>
    expect(made.polled).toMatchObject({ count: 0, attempts: [{ id, lost: expect.any(String) }] }),
  );
});

test('work that was killed at the end of its lease is lost', async () => {
  await using made = await joinedMachine({ leaseMs: 10_000 });
  const handle = await made.runner.prepare(attemptSpec('echo up; sleep 600'), never);
  await made.runner.start(handle);
  for await (const _ of made.runner.logs(handle, null, never)) break;
  await made.machine.end('SIGKILL');
  const exit = join(made.dir, 'runner/attempts', String(handle.attempt), 'exit');
  await eventually(() => expect(existsSync(exit)).toBe(true));
  made.machine.start();
  expect(await made.runner.wait(handle, never)).toEqual({ kind: 'lost' });
});
