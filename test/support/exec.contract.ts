/** Commands beside that of a job (`Runner.exec`), tested on every runner that has them. */
import { createHash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { expect, test } from 'vitest';
import {
  type ExecSession,
  type ExecSpec,
  type Handle,
  NotExecutable,
} from '../../src/runners/runner.ts';
import { eventually } from './eventually.ts';
import { attemptSpec, type RunnerUnderTest } from './runner.contract.ts';

const never = new AbortController().signal;
const MIB = 2 ** 20;
/** Each way. 1,024 takes 10 to 20 s on each runner. */
const MIB_SENT = Number(process.env.LOAM_TEST_EXEC_MIB ?? 64);

const exec = (
  { runner }: RunnerUnderTest,
  handle: Handle,
  command: string | null,
  changes: Partial<ExecSpec> = {},
): Promise<ExecSession> => {
  if (!runner.exec) throw new Error(`the runner ${runner.name} has no exec`);
  return runner.exec(handle, { command, env: {}, terminal: null, ...changes });
};

/** What a command without input prints, and its exit code. */
async function outputOf(session: ExecSession) {
  session.stdin.end();
  const [stdout, stderr, exitCode] = await Promise.all([
    text(session.stdout),
    session.stderr ? text(session.stderr) : '',
    session.exited,
  ]);
  return { stdout, stderr, exitCode };
}

/** Collects what a terminal shows. */
function watchScreen({ stdout }: ExecSession) {
  let shown = '';
  stdout.setEncoding('utf8').on('data', (chunk: string) => {
    shown += chunk;
  });
  return { until: (wanted: string | RegExp) => eventually(() => expect(shown).toMatch(wanted)) };
}

/** Counts processes by their command line, also without the program ps. */
const countProcesses = (pattern: string) =>
  `for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$each; echo; done 2>/dev/null | grep -c "^${pattern}"`;

let sleeps = 0;
/** A command that no other process of this machine runs: some runners show jobs all of them. */
const newSleep = () => `sleep ${process.pid}${String(sleeps++).padStart(3, '0')}`;

/** A job that runs until it is ended. @param first what it does first */
async function running(under: RunnerUnderTest, first = ':', env = {}) {
  const { runner } = under;
  const sleep = newSleep();
  const command = `${first}; ${sleep} & wait`;
  const handle = await runner.prepare(attemptSpec(command, { env }), never);
  await runner.start(handle);
  // The start may be recorded before the command begins, or a moment after that.
  await eventually(async () => {
    const { stdout } = await outputOf(await exec(under, handle, countProcesses(sleep)));
    expect(stdout).toBe('1\n');
  });
  return { handle, sleep };
}

/** On the process runner, terminals need `script`. */
export function execContract(open: () => Promise<RunnerUnderTest>): void {
  test('a command has the streams, folder and environment of the job, and an exit code', async () => {
    await using under = await open();
    const own = 'echo "$SECRET" > seen; echo "$HOME" > home';
    const { handle } = await running(under, own, { SECRET: "it's" });
    const command =
      'cat seen; echo "$SECRET$MORE" >&2; [ "$HOME" = "$(cat home)" ] && echo home > /dev/stdout; exit 7';
    const done = await outputOf(await exec(under, handle, command, { env: { MORE: 'more' } }));
    expect(done).toEqual({ stdout: "it's\nhome\n", stderr: "it'smore\n", exitCode: 7 });
    const killed = await outputOf(await exec(under, handle, 'kill -9 $$'));
    expect(killed.exitCode).toBe(137);
  });

  test('a command has no more rights than the job, and ends with it', async () => {
    await using under = await open();
    // A process without NoNewPrivs could use the bounding set; to empty it takes a right that ordinary users do not have.
    const status = process.getuid?.() === 0 ? 'Cap' : 'Cap[^B]';
    const show = `id -u; id -G; cat /proc/self/cgroup; grep -E "${status}|NoNew|Seccomp:" /proc/self/status; ulimit -a`;
    const { handle, sleep } = await running(under, `(${show}) > own`);
    const { stdout } = await outputOf(
      await exec(under, handle, `(${show}) > mine; diff own mine && ${countProcesses(sleep)}`),
    );
    expect(stdout).toBe('1\n');
    const session = await exec(under, handle, 'sleep 601');
    // The end waits for whoever reads the output.
    session.stdout.resume();
    session.stderr?.resume();
    const terminal = await exec(under, handle, 'sleep 602', {
      terminal: { columns: 80, rows: 24 },
    });
    terminal.stdout.resume();
    await under.runner.remove(handle);
    expect(await session.exited).not.toBe(0);
    expect(await terminal.exited).not.toBe(0);
    await expect(exec(under, handle, 'true')).rejects.toThrow(NotExecutable);
  });

  test('bytes pass unchanged in both directions, however slowly they are read', async () => {
    await using under = await open();
    const { handle } = await running(under);
    const sent = randomBytes(MIB);
    const session = await exec(under, handle, 'cat');
    const received = createHash('sha256');
    const expected = createHash('sha256');
    const sending = pipeline(
      Readable.from(
        (function* () {
          for (let i = 0; i < MIB_SENT; i++) {
            expected.update(sent);
            yield sent;
          }
        })(),
      ),
      session.stdin,
    );
    let size = 0;
    for await (const chunk of session.stdout) {
      received.update(chunk);
      // Nothing is read meanwhile.
      if (size === 0) await new Promise((resolve) => setTimeout(resolve, 300));
      size += chunk.length;
    }
    await sending;
    expect(size).toBe(MIB_SENT * MIB);
    expect(received.digest('hex')).toBe(expected.digest('hex'));
    expect(await session.exited).toBe(0);
  });

  test('a terminal has a size, colours, signals and job control', async () => {
    await using under = await open();
    const { handle } = await running(under);
    const session = await exec(under, handle, null, {
      env: { TERM: 'xterm-256color' },
      terminal: { columns: 100, rows: 40 },
    });
    const screen = watchScreen(session);
    session.stdin.write('PS1="next? "; stty size; tty; echo "$TERM"\n');
    await screen.until(/40 100\r\n\/dev\/pts\/\d+\r\nxterm-256color\r\n/);
    session.stdin.write('(trap "echo ended; exit" INT; echo begun; while :; do sleep 1; done)\n');
    await screen.until(/^begun\r$/m);
    session.stdin.write('\x03');
    // Before it prompts, the shell reads the size and sets it again, which can undo a change in between.
    await screen.until(/ended\r\n[\s\S]*next\? /);
    session.resize({ columns: 120, rows: 50 });
    session.stdin.write('until stty size | grep "50 120"; do sleep 0.1; done\n');
    await screen.until(/^50 120\r$/m);
    session.stdin.write('exit 9\n');
    expect(await session.exited).toBe(9);
  });

  test('closing a session ends what uses its streams, and nothing else', async () => {
    await using under = await open();
    const { handle } = await running(under);
    const count = async (what: string) =>
      (await outputOf(await exec(under, handle, countProcesses(what)))).stdout;
    const [piped, shown, left] = [newSleep(), newSleep(), newSleep()];
    const session = await exec(under, handle, `${left} >left 2>&1 & ${piped} & ${piped}`);
    session.stdout.resume();
    session.stderr?.resume();
    const terminal = await exec(under, handle, null, { terminal: { columns: 80, rows: 24 } });
    terminal.stdout.resume();
    terminal.stdin.write(`${shown}\n`);
    await eventually(async () => {
      expect(await count(piped)).toBe('2\n');
      expect(await count(left)).toBe('1\n');
      expect(await count(shown)).toBe('1\n');
    });
    for (const each of [session, terminal]) each.close();
    await eventually(async () => {
      expect(await count(piped)).toBe('0\n');
      expect(await count(shown)).toBe('0\n');
    });
    await Promise.all([session.exited, terminal.exited]);
    expect(await count(left)).toBe('1\n');
  });

  test('closing a session ends also what has stopped itself', async () => {
    await using under = await open();
    const { handle } = await running(under);
    const count = async (what: string) =>
      (await outputOf(await exec(under, handle, countProcesses(what)))).stdout;
    const [piped, shown] = [newSleep(), newSleep()];
    const session = await exec(under, handle, `${piped} & kill -STOP $$`);
    const size = { columns: 80, rows: 24 };
    // In a container, the parent of a command is not seen.
    const command = `${shown} & [ $PPID = 0 ] || kill -STOP $PPID; kill -STOP $$`;
    const terminal = await exec(under, handle, command, { terminal: size });
    for (const each of [session, terminal]) {
      each.stdout.resume();
      each.stderr?.resume();
    }
    await eventually(async () => {
      expect(await count(piped)).toBe('1\n');
      expect(await count(shown)).toBe('1\n');
    });
    for (const each of [session, terminal]) each.close();
    await Promise.all([session.exited, terminal.exited]);
    await eventually(async () => {
      expect(await count(piped)).toBe('0\n');
      expect(await count(shown)).toBe('0\n');
    });
  });
}
