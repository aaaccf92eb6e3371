/** The starter, a small process that starts programs for the server. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex, Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { expect, test } from 'vitest';
import {
  type Program,
  run,
  runProgram,
  startDetached,
  startProgram,
} from '../../src/platform/processes/starter.ts';
import { eventually } from '../support/eventually.ts';

const program = (script: string): Program => ({
  file: '/bin/sh',
  args: ['-c', script],
  env: { PATH: process.env.PATH ?? '', WHO: 'we' },
  cwd: '/tmp',
});

test('a program gets its input, folder and environment, and its output and exit code are returned', async () => {
  const script = 'cat; echo "$WHO in $PWD"; echo no >&2; exit 3';
  const { stdout, ...ending } = await runProgram(program(script), { input: 'in\n' });
  expect(Buffer.from(stdout).toString()).toBe('in\nwe in /tmp\n');
  expect(ending).toEqual({ code: 3, signal: null, stderr: 'no\n', exceededLimit: false });
  await expect(run('sh', ['-c', 'echo why >&2; exit 1'])).rejects.toMatchObject({
    message: 'why',
    stderr: 'why\n',
  });
  const missing = { ...program(''), file: 'no-such-program' };
  await expect(runProgram(missing)).rejects.toMatchObject({ code: 'ENOENT' });
});

test('a program inherits none of the descriptors that the server has inherited', async () => {
  const script = `import { run } from ${JSON.stringify(import.meta.resolve('../../src/platform/processes/starter.ts'))};
    process.stdout.write((await run('ls', ['/proc/self/fd'])).stdout);
    process.exit();`;
  const words = [process.execPath, '--input-type=module', '-e', script];
  const server = spawn('bash', ['-c', 'exec 200</dev/null; exec "$@"', 'bash', ...words]);
  // The last one is of the folder.
  expect((await text(server.stdout)).trim().split('\n')).toEqual(['0', '1', '2', '3']);
});

test('a program is ended if it writes too much, takes too long, or is aborted', async () => {
  const flood = await runProgram(program('exec yes'), { maxBytes: 1_000 });
  expect(flood).toMatchObject({ exceededLimit: true, signal: 'SIGTERM' });
  expect(await runProgram(program('exec sleep 60'), { timeoutMs: 50 })).toMatchObject({
    signal: 'SIGTERM',
  });
  const stop = new AbortController();
  const running = runProgram(program('exec sleep 60'), { signal: stop.signal });
  stop.abort();
  expect(await running).toMatchObject({ signal: 'SIGTERM' });
});

test('if the starter is killed, its programs fail, detached programs continue, and a new starter takes over', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-programs-'));
  const [out, pid] = [join(dir, 'out'), join(dir, 'pid')];
  const script = `read -r line; echo "$line"; until [ -e ${pid} ]; do sleep 0.02; done; sleep 0.2`;
  const said = Promise.withResolvers<string>();
  const whole = program(`${script}; echo "$line" > ${out}`);
  const detached = startDetached(whole, join(dir, 'errors'), said.resolve);
  detached.write('line\n', true);
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

test('streams are handed over completely, from many concurrent programs and from programs that end immediately', async () => {
  const outputs = await Promise.all(
    Array.from({ length: 60 }, async (_, i) => {
      const started = await startProgram(
        program(`echo ${i} no >&2; head -c ${i * 5_000} /dev/zero`),
      );
      const [output, ending] = await Promise.all([
        buffer(started.stdout as Readable),
        started.ended,
      ]);
      expect(ending).toMatchObject({ code: 0, stderr: `${i} no\n` });
      return output.length;
    }),
  );
  expect(outputs).toEqual(Array.from({ length: 60 }, (_, i) => i * 5_000));
  const missing = { ...program(''), file: 'no-such-program' };
  await expect(startProgram(missing)).rejects.toMatchObject({ code: 'ENOENT' });
  const talking = await startProgram(program('cat; read -r line <&4; echo "$line" >&3'), {
    pipes: 2,
  });
  const [said, heard] = talking.pipes as [Duplex, Duplex];
  talking.stdin.end('in');
  heard.end('answer\n');
  expect(await Promise.all([text(talking.stdout as Readable), text(said)])).toEqual([
    'in',
    'answer\n',
  ]);
});

test('a writer to a program that has ended gets an error, even if nothing is left to write', async () => {
  const started = await startProgram(program('head -c 100000 > /dev/null'));
  async function* input() {
    yield Buffer.alloc(100_000);
    await started.ended;
    // By then, the end of the program's input has been read.
    await eventually(() => expect(started.stdin.destroyed).toBe(true));
  }
  await Promise.allSettled([pipeline(input, started.stdin)]);
  // A program that closes its input and continues.
  const going = await startProgram(
    program('head -c 1000 > /dev/null; exec < /dev/null; exec sleep 60'),
  );
  const closed = new Promise((resolve) => going.stdin.once('end', resolve));
  async function* all() {
    yield Buffer.alloc(1_000);
    await closed;
  }
  await pipeline(all, going.stdin);
  going.kill('SIGKILL');
  expect(await going.ended).toMatchObject({ signal: 'SIGKILL' });
});

test('a program and its streams survive the death of the starter', async () => {
  const started = await startProgram(program('read -r line; sleep 0.2; echo "$line"'));
  const ended = expect(started.ended).rejects.toMatchObject({ code: 'EAGAIN' });
  const starter = Number(Buffer.from((await run('sh', ['-c', 'echo $PPID'])).stdout).toString());
  process.kill(starter, 'SIGKILL');
  await ended;
  started.stdin.end('still here\n');
  expect(await text(started.stdout as Readable)).toBe('still here\n');
  const next = await startProgram(program('echo again'));
  expect(await text(next.stdout as Readable)).toBe('again\n');
});

test('programs end with the process that started them, even while their streams are being handed over', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-programs-'));
  const starter = join(import.meta.dirname, '../../src/platform/processes/starter.ts');
  // The process is stopped right after its request, so that it never receives the streams.
  const script = `
    import { startProgram } from ${JSON.stringify(starter)};
    const env = { PATH: process.env.PATH };
    const started = await startProgram({ file: 'sh', args: ['-c', 'exec sleep 60'], env, cwd: '/' });
    console.log(started.pid);
    for (const name of ['one', 'two'])
      startProgram({ file: 'sh', args: ['-c', 'echo $$ > ' + name + '; exec cat'], env, cwd: ${JSON.stringify(dir)} });
    setImmediate(() => process.kill(process.pid, 'SIGSTOP'));`;
  const asking = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [first] = (await once(asking.stdout, 'data')) as [Buffer];
  // The other program waits until the first handover is complete.
  const waiting = await eventually(async () => Number(await readFile(join(dir, 'one'), 'utf8')));
  asking.kill('SIGKILL');
  const isThere = (pid: number) => existsSync(`/proc/${pid}`);
  await eventually(() => expect([Number(first), waiting].filter(isThere)).toEqual([]));
  await rm(dir, { recursive: true });
});
