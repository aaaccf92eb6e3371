import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { link, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { composeRunners } from '../../src/runners/open.ts';
import { keyringGuardPrefix } from '../../src/runners/process/keyrings.ts';
import { type Handle, RunnerUnavailable, Unstartable } from '../../src/runners/runner.ts';
import { listDescendants } from '../../src/runners/supervisor/proc.ts';
import { clusterRunner, WAITING_FOR_NODES } from '../support/cluster-runner.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { needs } from '../support/needs.ts';
import { processRunner } from '../support/process-runner.ts';
import { listCommandLines } from '../support/processes.ts';
import {
  allLines,
  attemptSpec,
  filesContract,
  runnerContract,
  runToEnd,
} from '../support/runner.contract.ts';

const never = new AbortController().signal;
describe('fake', () => {
  runnerContract(async () => {
    const runner = fakeRunner();
    return {
      runner,
      again: async () => runner,
      [Symbol.asyncDispose]: () => runner.sweep(new Set()),
    };
  });
});

test('an attempt that was prepared before there were several kinds of runner continues', async () => {
  const runner = fakeRunner();
  const handle = await runner.prepare(attemptSpec('echo old; exit 4'), never);
  const both = composeRunners('auto', { process: runner, docker: fakeRunner() }, () => 'docker');
  expect(await both.attach(handle)).toBe('prepared');
  await both.start(handle);
  expect(await both.wait(handle, never)).toMatchObject({ exitCode: 4 });
});

test('combined runners pass on how an attempt starts, and keep the kind in a handle that is replaced', async () => {
  const cluster = clusterRunner();
  const both = composeRunners('auto', { process: fakeRunner(), cluster }, () => 'cluster');
  const spec = attemptSpec('exit 0');
  const handle = await both.prepare(spec, never);
  const reports: string[] = [];
  const stored: (Handle | undefined)[] = [];
  const start = (signal: AbortSignal) =>
    both.start(
      handle,
      async (replaced) => {
        stored.push(replaced);
        return true;
      },
      { report: (text) => reports.push(text), signal },
    );
  expect(await start(AbortSignal.abort())).toBe(false);
  const starting = start(never);
  await eventually(() => expect(cluster.waiting.size).toBe(1));
  cluster.waiting.get(spec.job.name)?.admit();
  expect(await starting).toBe(true);
  expect(reports).toEqual([WAITING_FOR_NODES, WAITING_FOR_NODES]);
  expect(stored).toEqual([{ attempt: spec.id, runner: 'cluster', node: 'node-7' }]);
});

test('a joined machine that answers says itself why it cannot run a job', async () => {
  const joined = fakeRunner({
    machines: [{ id: 'box', cpus: 4, memoryBytes: 2 ** 33, gpus: {}, slots: 4 }],
  });
  const both = composeRunners('auto', { process: fakeRunner(), joined }, () => null);
  const spec = { ...attemptSpec('exit 0'), machine: 'box', image: 'debian' };
  await expect(both.prepare(spec, never)).rejects.toThrow(Unstartable);
});

test('a server without a container engine refuses a job with an image, and waits for an engine that may return', async () => {
  const kinds = { process: fakeRunner(), joined: fakeRunner({ machines: [] }) };
  const choose = (hasImage: boolean) => (hasImage ? null : 'process');
  const spec = { ...attemptSpec('exit 0'), image: 'debian' };
  const refusing = composeRunners('process', kinds, choose);
  await expect(refusing.prepare(spec, never)).rejects.toThrow(Unstartable);
  const docker = { ...fakeRunner({ machines: [] }), hasUnavailableEngine: true };
  const waiting = composeRunners('auto', { ...kinds, docker }, choose);
  await expect(waiting.prepare(spec, never)).rejects.toThrow(RunnerUnavailable);
});

describe('process', () => {
  runnerContract(() => processRunner());
  filesContract(() => processRunner());
});

describe('process, in a sandbox', () => {
  test("a job sees its folder and programs, but neither the server's files nor its processes", async (ctx) => {
    needs(ctx, 'bubblewrap');
    await using made = await processRunner();
    const command = `pwd; id -un; ls /; cat /etc/shadow; touch /usr/x; ls ${made.dir}; ls -d /proc/[0-9]* | wc -l; env | sort`;
    const env = { GREETING: 'hello $HOME', LD_PRELOAD: '' };
    const { lines } = await runToEnd(made.runner, attemptSpec(`exec 2>&1; ${command}`, { env }));
    const text = lines.join('\n');
    expect(lines.slice(0, 2)).toEqual(['/work', 'job']);
    expect(text).toMatch(/shadow: No such file/);
    expect(text).toMatch(/touch: .*Read-only file system/);
    expect(text).toMatch(new RegExp(`cannot access '${made.dir}'`));
    expect(text).toContain('GREETING=hello $HOME');
    expect(text).toMatch(/^HOME=\/home\/job$/m);
    expect(text).not.toContain(
      process.env.HOME === '/home/job' ? '\0' : `HOME=${process.env.HOME}`,
    );
  });

  test('a daemon that holds stdout and ignores SIGTERM ends with the job', async (ctx) => {
    needs(ctx, 'bubblewrap');
    await using made = await processRunner();
    const tag = `301.${process.pid}`;
    const command = `setsid sh -c 'trap "" TERM; sleep ${tag} & wait' & sleep 0.2; echo done`;
    const { outcome, lines } = await runToEnd(made.runner, attemptSpec(command));
    expect([outcome, lines]).toMatchObject([{ exitCode: 0 }, ['done']]);
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });

  test('removing an attempt that was not started closes the network that was opened for it', async (ctx) => {
    needs(ctx, 'bubblewrap', 'slirp4netns');
    await using made = await processRunner();
    const before = networks();
    const handle = await made.runner.prepare(attemptSpec('echo never'), never);
    const opened = () => networks().filter((pid) => !before.includes(pid));
    await eventually(() => expect(opened()).not.toEqual([]));
    await made.runner.remove(handle);
    await eventually(() => expect(opened()).toEqual([]));
  });

  test('a job can read its user name and the names of this machine, whatever the umask of the server', async (ctx) => {
    needs(ctx, 'bubblewrap');
    const before = process.umask(0o077);
    try {
      await using made = await processRunner();
      const command =
        'id -un; getent hosts localhost >/dev/null && cat /etc/passwd | wc -l; touch "$HOME/x"';
      const { outcome, lines } = await runToEnd(made.runner, attemptSpec(command));
      expect(outcome).toMatchObject({ exitCode: 0 });
      expect(lines).toEqual(['job', '3']);
    } finally {
      process.umask(before);
    }
  });

  test('SIGTERM reaches the whole tree; processes that ignore it are killed after the grace period', async (ctx) => {
    needs(ctx, 'bubblewrap');
    await using patient = await processRunner();
    await using strict = await processRunner('auto', undefined, 1_000);
    const polite = `sh -c 'trap "echo inner; exit" TERM; touch up; while :; do sleep 0.05; done' & trap "echo outer; wait; exit 7" TERM; until [ -e up ]; do sleep 0.01; done; echo up; while :; do sleep 0.05; done`;
    for (const [{ runner }, command, exitCode, said] of [
      [patient, polite, 7, ['inner', 'outer', 'up']],
      // Processes that a trap starts belong to the shutdown, and may finish.
      [
        patient,
        `trap "sleep 0.1 && echo saved; exit 7" TERM; echo up; while :; do sleep 0.05; done`,
        7,
        ['saved', 'up'],
      ],
      [strict, `trap "echo no" TERM; echo up; while :; do sleep 0.05; done`, 137, ['no', 'up']],
    ] as const) {
      const handle = await runner.prepare(attemptSpec(command), never);
      await runner.start(handle);
      for await (const { lines } of runner.logs(handle, null, never)) {
        if (lines.some(({ message }) => message === 'up')) break;
      }
      await runner.signal(handle, 'TERM');
      expect(await runner.wait(handle, never)).toMatchObject({ exitCode });
      // Shells also print a message when a child is killed, or when they start one while they are being killed.
      const lines = (await allLines(runner, handle)).filter(
        (line) => line !== 'Terminated' && !line.endsWith('Cannot fork'),
      );
      expect(lines.sort()).toEqual(said);
    }
  });
});

describe('process: log', () => {
  test('long lines are cut and marked, invalid bytes are replaced, and the last line needs no newline', async () => {
    await using made = await processRunner();
    const command = `printf 'a\\r\\n\\377b\\n'; head -c 70000 /dev/zero | tr '\\0' x; echo; echo to >/dev/stdout; echo err >&2; sleep 0.1; printf end`;
    const { lines } = await runToEnd(made.runner, attemptSpec(command));
    expect(lines).toHaveLength(6);
    expect(lines.slice(0, 2)).toEqual(['a', '\uFFFDb']);
    expect(lines.find((l) => l.startsWith('xxx'))).toBe(
      `${'x'.repeat(65536)} [cut: the line is over 64 KiB]`,
    );
    expect(lines).toEqual(expect.arrayContaining(['to', 'err']));
    expect(lines.at(-1)).toBe('end');
  });

  test('two hundred thousand lines arrive complete and in order', async () => {
    await using made = await processRunner();
    const { lines } = await runToEnd(made.runner, attemptSpec('seq 200000'));
    expect(lines.length).toBe(200_000);
    expect(lines.every((line, i) => line === String(i + 1))).toBe(true);
  });
});

describe('process: kernel keyrings', () => {
  test.each(['auto', 'unshare', 'none'] as const)(
    'no job can use one, by any set of system calls (%s)',
    async (sandbox) => {
      if (process.arch !== 'x64') return;
      await using made = await processRunner(sandbox, 'host');
      const numbers = { 'x86-64': [248, 249, 250], i386: [286, 287, 288] };
      const programs = [
        ...numbers['x86-64'].map((number) => callOf(number, [0x0f, 0x05])),
        // In the x32 ABI, which few kernels have.
        ...numbers['x86-64'].map((number) => callOf(0x40000000 + number, [0x0f, 0x05])),
        ...numbers.i386.map((number) => callOf(number, [0xcd, 0x80])),
      ];
      const commands = programs.map(
        (program, at) =>
          // Shells print a line when a signal has ended a program.
          `echo ${program.toString('base64')} | base64 -d > p${at}; chmod +x p${at}; { ./p${at}; } 2>/dev/null; echo $?`,
      );
      const { lines } = await runToEnd(made.runner, attemptSpec(commands.join('\n')));
      const native = numbers['x86-64'].length * 2;
      expect(lines.slice(0, native)).toEqual(Array(native).fill(`${ENOSYS}`));
      // A kernel without i386 system calls kills the caller (SIGSEGV).
      for (const code of lines.slice(native)) expect([`${ENOSYS}`, '139']).toContain(code);
      expect(lines).toHaveLength(programs.length);
    },
  );

  test("the keyring guard hides the server's keys from jobs", (ctx) => {
    needs(ctx, 'root');
    const [join, add] = process.arch === 'arm64' ? [219, 217] : [250, 248];
    // Joins a new session keyring and adds a key to it.
    const server = `
      syscall(${join}, 1, 0) > 0 or die $!;
      my ($type, $name, $key) = ("user", "of-the-server", "x");
      syscall(${add}, $type, $name, $key, 1, -3) > 0 or die $!;
      exec @ARGV`;
    // As another user, who sees a key if it is in a keyring of the process.
    const show = ['setpriv', '--reuid=65534', '--clear-groups', 'cat', '/proc/keys'];
    const keys = (...around: string[]) =>
      execFileSync('perl', ['-e', server, ...around, ...show], { encoding: 'utf8' });
    expect(keys()).toContain('of-the-server');
    expect(keys(...(keyringGuardPrefix() ?? []))).not.toContain('of-the-server');
  });
});

const ENOSYS = 38;

/** A program that makes the system call with this number and zero arguments, and exits with the error number. */
function callOf(number: number, instruction: number[]): Buffer {
  const at = 0x400000;
  const int32 = (value: number) => [...new Uint8Array(new Uint32Array([value]).buffer)];
  const code = [
    ...[0xb8, ...int32(number)],
    // All arguments are zero, in the registers of both calling conventions.
    ...[0x31, 0xff, 0x31, 0xf6, 0x31, 0xd2, 0x31, 0xdb, 0x31, 0xc9],
    ...instruction,
    // exit(-result)
    ...[0xf7, 0xd8, 0x89, 0xc7, 0xb8, ...int32(60), 0x0f, 0x05],
  ];
  const header = Buffer.alloc(0x78);
  header.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]);
  header.writeUInt16LE(2, 16);
  header.writeUInt16LE(62, 18);
  header.writeUInt32LE(1, 20);
  header.writeBigUInt64LE(BigInt(at + header.length), 24);
  header.writeBigUInt64LE(64n, 32);
  header.writeUInt16LE(64, 52);
  header.writeUInt16LE(56, 54);
  header.writeUInt16LE(1, 56);
  const size = BigInt(header.length + code.length);
  header.writeUInt32LE(1, 64);
  header.writeUInt32LE(5, 68);
  header.writeBigUInt64LE(BigInt(at), 80);
  header.writeBigUInt64LE(BigInt(at), 88);
  header.writeBigUInt64LE(size, 96);
  header.writeBigUInt64LE(size, 104);
  header.writeBigUInt64LE(0x1000n, 112);
  return Buffer.concat([header, Buffer.from(code)]);
}

test('a job has no grace period if the machine was suspended beyond its timeout', async () => {
  await using made = await processRunner();
  const command = 'trap "echo late" TERM; echo up; while :; do sleep 0.05; done';
  const handle = await made.runner.prepare(attemptSpec(command, { timeoutMs: 3_000 }), never);
  await made.runner.start(handle);
  for await (const _ of made.runner.logs(handle, null, never)) break;
  const shim = shimPid(made.dir, handle);
  process.kill(shim, 'SIGSTOP');
  // The timeout, another 5 seconds, and a margin.
  await delay(3_000 + 5_000 + 500);
  process.kill(shim, 'SIGCONT');
  expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 137, timedOut: true });
  // unshare of util-linux 2.38 may also print that it was killed.
  expect(await allLines(made.runner, handle)).not.toContain('late');
});

test('an attempt whose shim was killed is lost, and leaves no process', async () => {
  await using made = await processRunner();
  const { runner, dir } = made;
  const handle = await runner.prepare(attemptSpec(`sleep 302.${process.pid}`), never);
  await runner.start(handle);
  const claim = JSON.parse(readFileSync(join(dir, String(handle.attempt), 'claim'), 'utf8'));
  const waiting = runner.wait(handle, never);
  process.kill(claim.pid, 'SIGKILL');
  expect(await waiting).toEqual({ kind: 'lost' });
  await eventually(() => expect(listCommandLines(`sleep 302.${process.pid}`)).toEqual([]));
});

test('a shim is reused after an attempt that ended by itself, and not after one that was killed', async (ctx) => {
  needs(ctx, 'bubblewrap');
  await using made = await processRunner('auto', 'none');
  const { runner } = made;
  const shimOf = async (command: string, end?: 'KILL') => {
    const handle = await runner.prepare(attemptSpec(command), never);
    await runner.start(handle);
    const pid = shimPid(made.dir, handle);
    if (end) await runner.signal(handle, end);
    const lines = await allLines(runner, handle);
    await runner.wait(handle, never);
    await runner.remove(handle);
    return { pid, lines };
  };
  // The first shims, started before the first attempt ends, have compiled their source and are too large for reuse.
  await eventually(async () => expect(await shimOf('true')).toEqual(await shimOf('true')));
  const first = await shimOf('echo one; exit 3');
  const second = await shimOf('echo two');
  expect(second).toEqual({ pid: first.pid, lines: ['two'] });
  const third = await shimOf('sleep 600', 'KILL');
  expect(third.pid).toBe(first.pid);
  expect((await shimOf('echo four')).pid).not.toBe(first.pid);
});

test('signals for an ended attempt do not affect the next attempt of its shim', async (ctx) => {
  needs(ctx, 'bubblewrap');
  await using made = await processRunner();
  const { runner } = made;
  const next = attemptSpec('until [ -e go ]; do sleep 0.02; done; echo done; exit 4');
  // A shim that has compiled its source is too large for reuse, and another shim may be free first.
  const [ended, handle] = await eventually(async () => {
    const before = (await runToEnd(runner, attemptSpec('true'))).handle;
    // The shim may not be free yet when its attempt is over.
    for (let round = 0; round < 5; round++) {
      const tried = await runner.prepare(next, never);
      await runner.start(tried);
      if (shimPid(made.dir, tried) === shimPid(made.dir, before)) return [before, tried];
      await runner.remove(tried);
    }
    throw new Error('another shim has taken the next attempt');
  });
  await runner.signal(ended, 'TERM');
  await runner.signal(ended, 'KILL');
  {
    // A restarted server does not know which shim has which attempt.
    const other = await made.again();
    await other.signal(ended, 'KILL');
    await other.remove(ended);
  }
  expect(await runner.attach(ended)).toBe('gone');
  await writeFile(join(made.dir, String(handle.attempt), 'work/go'), '');
  expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 4 });
});

/** The processes that forward network traffic of jobs of this process. */
function networks(): number[] {
  return listDescendants(process.pid).filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1').startsWith('slirp4netns');
    } catch {
      return false;
    }
  });
}

function shimPid(dir: string, { attempt }: Handle): number {
  return JSON.parse(readFileSync(join(dir, String(attempt), 'claim'), 'utf8')).pid;
}

test('artifacts never contain targets of links', async () => {
  await using made = await processRunner();
  const { runner, dir } = made;
  const handle = await runner.prepare(attemptSpec('true'), never);
  const secret = join(dir, String(handle.attempt), 'outside.txt');
  await writeFile(secret, 'not yours');
  const work = join(dir, String(handle.attempt), 'work');
  await symlink(join(work, '..'), join(work, 'escape'));
  await symlink(secret, join(work, 'link'));
  for (const path of ['escape', 'escape/outside.txt', 'link', '../outside.txt', '/etc/passwd'])
    expect(await runner.artifacts(handle, path), path).toBeNull();
});

test('a hard link to a file of another user is not an artifact', async (ctx) => {
  needs(ctx, 'root');
  await using made = await processRunner();
  const { runner, dir } = made;
  const handle = await runner.prepare(attemptSpec('true'), never);
  const secret = join(dir, 'secret-key');
  await writeFile(secret, 'not yours', { mode: 0o600 });
  // A job can do this if the kernel does not protect hard links.
  await link(secret, join(dir, String(handle.attempt), 'work/linked'));
  for (const path of ['linked', '.']) {
    const tar = await runner.artifacts(handle, path);
    expect(await text(tar as Readable)).not.toContain('not yours');
  }
  await rm(secret);
});

test('after a power failure a prepared attempt is unprepared, and a claimed attempt is lost', async () => {
  await using made = await processRunner();
  const { runner, dir } = made;
  const handle = await runner.prepare(attemptSpec('true'), never);
  const at = (name: string) => join(dir, String(handle.attempt), name);
  expect(await runner.attach(handle)).toBe('prepared');
  const spec = JSON.parse(readFileSync(at('spec.json'), 'utf8'));
  for (const left of ['', JSON.stringify({ ...spec, bootId: 'of an earlier start' })]) {
    await writeFile(at('spec.json'), left);
    expect(await runner.attach(handle)).toBe('unprepared');
  }
  await writeFile(at('claim'), '');
  expect(await runner.attach(handle)).toBe('started');
  expect(await runner.wait(handle, never)).toEqual({ kind: 'lost' });
});

test('secrets leave no trace on the disk once the job has started', async () => {
  await using made = await processRunner();
  const spec = attemptSpec('echo started; sleep 600', { env: { TOKEN: 'hunter2hunter2' } });
  const handle: Handle = await made.runner.prepare(spec, never);
  await made.runner.start(handle);
  const folder = join(made.dir, spec.id);
  expect(existsSync(join(folder, 'spec.json'))).toBe(false);
  for (const name of ['setup', 'env']) expect(existsSync(join(folder, name)), name).toBe(false);
  expect(listCommandLines('hunter2hunter2')).toEqual([]);
});
