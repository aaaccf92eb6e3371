/** The shell around the command in a pod, run here as the first process of a pid namespace. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, openSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { SHARED } from '../../src/runners/container/shared-folder.ts';
import { buildWrapper } from '../../src/runners/container/wrapper.ts';
import { eventually } from '../support/eventually.ts';
import { needs } from '../support/needs.ts';

const FLAGS = ['--user', '--map-root-user', '--mount', '--pid', '--fork', '--kill-child'];

/** Starts the shell before its FIFOs exist, as the kubelet does. */
async function wrap(shell: readonly string[]) {
  const dir = await mkdtemp(join(tmpdir(), 'loam-wrapper-'));
  const child = spawn('unshare', [...FLAGS, '--mount-proc', ...shell, '-c', buildWrapper(dir)], {
    stdio: 'ignore',
    cwd: dir,
    env: { PATH: '/job/bin:/usr/bin:/bin', ONLY: 'here' },
  });
  const exited = once(child, 'exit').then(([code]) => code as number | null);
  const fileOf = (name: string) => join(dir, name);
  execFileSync('mkfifo', ['-m', '600', ...[...SHARED.outputs, SHARED.control].map(fileOf)]);
  const lines = { out: [] as string[], err: [] as string[], end: [] as string[] };
  const names = ['out', 'err', 'end'] as const;
  const open = names.map((name) => {
    const reader = openSync(fileOf(name), constants.O_RDONLY | constants.O_NONBLOCK);
    // Without a writer, a FIFO that nobody has opened yet would be at its end.
    const writer = openSync(fileOf(name), constants.O_WRONLY);
    const socket = new Socket({ fd: reader, readable: true, writable: false });
    createInterface(socket).on('line', (line) => lines[name].push(line));
    return { writer, closed: once(socket, 'close') };
  });
  const control = openSync(fileOf(SHARED.control), constants.O_RDWR | constants.O_NONBLOCK);
  await eventually(() => expect(lines.end).toContain('ready'));
  for (const { writer } of open) closeSync(writer);
  const closed = Promise.all(open.map((fifo) => fifo.closed));
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await Promise.all([exited, closed]);
    closeSync(control);
    await rm(dir, { recursive: true });
  });
  return {
    child,
    lines,
    fileOf,
    start(script: string) {
      writeFileSync(fileOf('start.new'), script, { mode: 0o600 });
      renameSync(fileOf('start.new'), fileOf(SHARED.start));
    },
    control: (word: string) => writeFileSync(control, `${word}\n`),
    /** Settles at the end of the container and of its FIFOs. */
    async end() {
      const code = await exited;
      await closed;
      return { code, reports: lines.end.filter((line) => line !== '' && !/^usage /.test(line)) };
    },
  };
}

describe.each([
  ['dash', ['dash'] as const],
  ['busybox', ['busybox', 'sh'] as const],
])('in %s', (_, shell) => {
  beforeEach((ctx) => needs(ctx, 'unshare', 'busybox'));

  const exit = (code: number) => expect.stringMatching(new RegExp(`^exit ${code}( \\d+)?$`));

  test('the command has its output, its environment and its exit code', async () => {
    const { lines, start, end } = await wrap(shell);
    start('export FROM=agent; echo "$FROM $ONLY $PATH"; echo error >&2; exit 7');
    expect(await end()).toEqual({ code: 7, reports: ['ready', 'begun', exit(7)] });
    expect(lines.out).toEqual(['agent here /job/bin:/usr/bin:/bin']);
    expect(lines.err).toEqual(['error']);
  });

  test('TERM and KILL reach every process of the job, and end it', async () => {
    const polite = await wrap(shell);
    polite.start(`trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.1; done`);
    await eventually(() => expect(polite.lines.out).toContain('up'));
    polite.control('TERM');
    expect(await polite.end()).toEqual({ code: 9, reports: ['ready', 'begun', exit(9)] });
    expect(polite.lines.out).toEqual(['up', 'told']);

    const stubborn = await wrap(shell);
    stubborn.start(`trap '' TERM; echo up; (setsid sleep 600 &); while :; do sleep 0.1; done`);
    await eventually(() => expect(stubborn.lines.out).toContain('up'));
    stubborn.control('TERM');
    stubborn.control('KILL');
    expect(await stubborn.end()).toEqual({ code: 137, reports: ['ready', 'begun', exit(137)] });
  });

  test.each([
    ['TERM', 143],
    ['KILL', 137],
  ])('a command does not begin after %s', async (word, code) => {
    const { lines, start, control, end } = await wrap(shell);
    control(word);
    start('echo ran; sleep 600');
    const { code: exitCode, reports } = await end();
    expect(exitCode).toBe(code);
    // In the moment of its begin, the command may be ended by the signal.
    if (!reports.includes('begun')) expect(lines.out).toEqual([]);
  });

  test('SIGTERM of the kubelet waits for the command, which has the usual signals', async () => {
    const { child, lines, start, end, fileOf } = await wrap(shell);
    start(
      `trap 'echo interrupted' INT; kill -INT $$; until [ -e "$0.go" ]; do sleep 0.05; done; exit 4`,
    );
    await eventually(() => expect(lines.out).toEqual(['interrupted']));
    const [init = ''] = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').split(
      ' ',
    );
    process.kill(Number(init), 'SIGTERM');
    writeFileSync(`${fileOf(SHARED.start)}.go`, '');
    expect((await end()).code).toBe(4);
  });

  test('the FIFOs end with the container, whatever the job does with its output', async () => {
    const { lines, start, end, control } = await wrap(shell);
    start('echo closing; exec >&- 2>&-; while :; do sleep 0.1; done');
    await eventually(() => expect(lines.out).toEqual(['closing']));
    control('KILL');
    expect((await end()).code).toBe(137);
  });

  test('daemons of the job end with its command', async () => {
    const { lines, start, end } = await wrap(shell);
    start('(setsid sh -c "echo left; sleep 600" &) ; sleep 0.2; echo done; exit 0');
    // Otherwise the FIFOs would stay open.
    expect((await end()).code).toBe(0);
    expect(lines.out).toEqual(['left', 'done']);
  });

  test('a job cannot hide the report of its end by an unfinished line', async () => {
    const { start, end } = await wrap(shell);
    start(`printf 'exit 0' >&5 2>/dev/null || printf 'exit 0' >"$(dirname "$0")/end"; exit 3`);
    const { code, reports } = await end();
    expect(code).toBe(3);
    expect(reports.at(-1)).toEqual(exit(3));
  });

  test('a script beside the command has the usual signals and the PATH of the image, and ends with the container', async () => {
    const { lines, start, control, end, fileOf } = await wrap(shell);
    start('until [ -e "$0.go" ]; do sleep 0.05; done; exit 5');
    await eventually(() => expect(lines.end).toContain('begun'));
    const traps = ['INT', 'QUIT', 'HUP', 'TERM'].map(
      (name) => `trap 'echo ${name}' ${name}; kill -${name} $$`,
    );
    writeFileSync(
      fileOf('script'),
      `exec >${fileOf('out')}; echo "$PATH"; ${traps.join('; ')}; while :; do sleep 0.1; done`,
    );
    control('RUN missing');
    control('RUN script');
    const expected = ['/job/bin:/usr/bin:/bin', 'INT', 'QUIT', 'HUP', 'TERM'];
    await eventually(() => expect(lines.out).toEqual(expected));
    writeFileSync(`${fileOf(SHARED.start)}.go`, '');
    expect((await end()).code).toBe(5);
  });

  test('the usage of the container is reported', async () => {
    const { lines, start } = await wrap(shell);
    start('while :; do sleep 1; done');
    await eventually(() =>
      expect(lines.end).toContainEqual(expect.stringMatching(/^usage \d+\.\d\d \d+$/)),
    );
  });
});
