/** The shell in the network of a shim that forks the first processes of jobs (`forking-shell.ts`). */
import { mkdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Cgroup } from '../../src/jobs/runners/process/cgroup.ts';
import type { FirstProcess } from '../../src/jobs/runners/process/first-process.ts';
import {
  type ForkingShell,
  openForkingShell,
} from '../../src/jobs/runners/process/forking-shell.ts';
import { environmentOf } from '../../src/jobs/runners/process/launch.ts';
import { statOf } from '../../src/jobs/runners/process/proc.ts';
import { eventually } from '../support/eventually.ts';

let dir: string;
let shell: ForkingShell;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-forking-'));
  shell = openForkingShell([], groupOf('none'), environmentOf());
});
afterEach(async () => {
  shell.close();
  await rm(dir, { recursive: true });
});

/** Folders that stand for those of two controllers. */
function groupOf(name: string): Cgroup {
  return { folders: ['cpu', 'memory'].map((parent) => join(dir, `${parent} of jobs`, name)) };
}

async function forked(name: string): Promise<FirstProcess> {
  const group = groupOf(name);
  for (const folder of group.folders) mkdirSync(join(folder, 'job'), { recursive: true });
  return await eventually(() => {
    const first = shell.fork(group);
    if (!first) throw new Error('the shell does not wait yet');
    return first;
  });
}

function becoming(argv: string[]) {
  const [out, err] = [join(dir, 'out'), join(dir, 'err')];
  const own = { argv, orders: [], env: { NAME: "it's" }, cwd: dir, dir, out, err };
  return { ...own, setup: 'setup', input: { text: 'input', reader: null } };
}

const said = () => readFileSync(join(dir, 'out'), 'utf8');
const isGone = (pid = 0) => eventually(() => expect(statOf(pid)).toBeUndefined());

test('it forks one process after the other, each in its group and with its descriptors, and tells how each ended', async () => {
  for (const [name, code] of [
    ['one', 7],
    ['two', 0],
  ] as const) {
    const first = await forked(name);
    const script = `echo "$NAME $(pwd) $(cat <&4) $(cat <&5)"; echo said >&3; exit ${code}`;
    expect(await first.become(becoming(['/bin/sh', '-c', script]))).toBe(true);
    expect(await first.exited).toEqual({ code, signal: null });
    expect(await first.reported).toBe('\nsaid\n');
    expect(first.isWaiting).toBe(false);
    for (const folder of groupOf(name).folders)
      expect(readFileSync(join(folder, 'job/cgroup.procs'), 'utf8')).toBe('0\n');
  }
  expect(said()).toBe(`it's ${dir} setup input\n`.repeat(2));
});

test('it has one at a time, and none in a group elsewhere', async () => {
  const first = await forked('one');
  expect(shell.fork(groupOf('two'))).toBeNull();
  await first.end();
  expect(await first.exited).toEqual({ code: 0, signal: null });
  expect(shell.fork({ folders: [join(dir, 'elsewhere/three')] })).toBeNull();
  await (await forked('two')).end();
});

test('one that was killed has ended as a shell says it, and the next is forked', async () => {
  const first = await forked('one');
  await first.become(becoming(['/bin/sleep', '60']));
  await eventually(() => expect(first.pid).toBeGreaterThan(0));
  process.kill(first.pid as number, 'SIGKILL');
  expect(await first.exited).toEqual({ code: 137, signal: null });
  await (await forked('two')).end();
});

test('one that was killed while it waits leaves no line to what is forked next', async () => {
  const first = await forked('one');
  await eventually(() => expect(first.pid).toBeGreaterThan(0));
  process.kill(first.pid as number, 'SIGKILL');
  // Before anybody has heard of it.
  await Promise.all([first.end(), first.exited]);
  const next = await forked('two');
  expect(await next.become(becoming(['/bin/echo', 'ran']))).toBe(true);
  expect(await next.exited).toEqual({ code: 0, signal: null });
  expect(said()).toBe('ran\n');
});

test('a group that cannot be joined stops the command before it runs', async () => {
  const first = await forked('one');
  await first.end();
  await rm(join(dir, 'memory of jobs'), { recursive: true });
  const next = shell.fork(groupOf('one')) as FirstProcess;
  expect(await next.become(becoming(['/bin/echo', 'ran']))).toBe(false);
  expect(await next.exited).toEqual({ code: 125, signal: null });
  expect(said()).toBe('');
  expect(readFileSync(join(dir, 'err'), 'utf8')).toMatch(
    /^The control group cannot be joined: .*one/,
  );
});

test('when it is killed, what waits ends', async () => {
  const first = await forked('one');
  await eventually(() => expect(first.pid).toBeGreaterThan(0));
  process.kill(Number(statOf(first.pid as number)?.parent), 'SIGKILL');
  expect(await first.exited).toMatchObject({ signal: 'SIGKILL' });
  await isGone(first.pid);
});

test('when it is killed, what it has forked is over, and it forks no more', async () => {
  const first = await forked('one');
  await first.become(becoming(['setpriv', '--pdeathsig', 'KILL', '/bin/sleep', '60']));
  await eventually(() => expect(readFileSync(`/proc/${first.pid}/comm`, 'utf8')).toBe('sleep\n'));
  const { pid } = first;
  process.kill(Number(statOf(pid as number)?.parent), 'SIGKILL');
  expect(await first.exited).toEqual({ code: null, signal: 'SIGKILL' });
  await isGone(pid);
  expect(shell.fork(groupOf('one'))).toBeNull();
});

test('closing it ends what waits', async () => {
  const first = await forked('one');
  await eventually(() => expect(first.pid).toBeGreaterThan(0));
  shell.close();
  expect(await first.exited).toMatchObject({ signal: 'SIGKILL' });
  expect(first.isWaiting).toBe(false);
  await isGone(first.pid);
});

test('one that cannot be started forks none', async () => {
  const missing = openForkingShell([join(dir, 'missing')], groupOf('none'), environmentOf());
  await new Promise(setImmediate);
  expect(missing.fork(groupOf('none'))).toBeNull();
  missing.close();
});
