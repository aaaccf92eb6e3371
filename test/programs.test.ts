/** The small process that starts programs for the server. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { detach, type Program, run, runProgram } from '../src/processes/starter.ts';
import { eventually } from './harness.ts';

const program = (script: string): Program => ({
  file: '/bin/sh',
  args: ['-c', script],
  env: { PATH: process.env.PATH ?? '', WHO: 'we' },
  cwd: '/tmp',
});

test('a program has its input, folder and environment, and its output and end are told', async () => {
  const script = 'cat; echo "$WHO in $PWD"; echo no >&2; exit 3';
  const { stdout, ...ending } = await runProgram(program(script), { input: 'in\n' });
  expect(Buffer.from(stdout).toString()).toBe('in\nwe in /tmp\n');
  expect(ending).toEqual({ code: 3, signal: null, stderr: 'no\n', tooMuch: false });
  await expect(run('sh', ['-c', 'echo why >&2; exit 1'])).rejects.toMatchObject({
    message: 'why',
    stderr: 'why\n',
  });
  const missing = { ...program(''), file: 'no-such-program' };
  await expect(runProgram(missing)).rejects.toMatchObject({ code: 'ENOENT' });
});

test('it is ended when it says too much, takes too long, or is not wanted any more', async () => {
  const flood = await runProgram(program('exec yes'), { maxBytes: 1_000 });
  expect(flood).toMatchObject({ tooMuch: true, signal: 'SIGTERM' });
  expect(await runProgram(program('exec sleep 60'), { timeoutMs: 50 })).toMatchObject({
    signal: 'SIGTERM',
  });
  const stop = new AbortController();
  const running = runProgram(program('exec sleep 60'), { signal: stop.signal });
  stop.abort();
  expect(await running).toMatchObject({ signal: 'SIGTERM' });
});

test('when what starts programs is killed, what it ran has failed, what it detached goes on, and another takes over', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-programs-'));
  const [out, pid] = [join(dir, 'out'), join(dir, 'pid')];
  const script = `read -r line; echo "$line"; until [ -e ${pid} ]; do sleep 0.02; done; sleep 0.2`;
  const said = Promise.withResolvers<string>();
  const whole = program(`${script}; echo "$line" > ${out}`);
  const detached = detach(whole, join(dir, 'errors'), said.resolve);
  detached.say('line\n', true);
  expect(await said.promise).toBe('line');
  const starter = Number(Buffer.from((await run('sh', ['-c', 'echo $PPID'])).stdout).toString());
  const running = runProgram(program(`echo $$ > ${pid}.new; mv ${pid}.new ${pid}; exec sleep 60`));
  const failed = expect(running).rejects.toMatchObject({ code: 'EAGAIN' });
  const sleeping = await eventually(async () => Number(await readFile(pid, 'utf8')));
  process.kill(starter, 'SIGKILL');
  await failed;
  const next = Number(Buffer.from((await run('sh', ['-c', 'echo $PPID'])).stdout).toString());
  expect(next).not.toBe(starter);
  await eventually(async () => expect(await readFile(out, 'utf8')).toBe('line\n'));
  process.kill(sleeping);
  await rm(dir, { recursive: true });
});
