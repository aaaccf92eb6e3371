/** `loam shell --new`: a job that waits for the shell, and ends with it. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { joinCommand, READY, waitingCommand } from '../../src/cli/commands/shell-job.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser, RunningCommand } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { cancel, job, lines, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.repository('ada/code');
});
afterAll(async () => {
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

/** The arguments for a new job of this name. */
const create = (name: string, ...more: string[]) => [
  ...['shell', '--repo', 'ada/code', '--name', name],
  ...more,
];
const stateOf = async (name: string) => {
  const { status, exitCode } = await job(ada, 'ada', name);
  return [status, exitCode];
};

test('a command gets the input, and the job its exit code', async () => {
  const done = await user.run(create('piped', '--', 'cat; echo bad >&2; exit 7'), {
    stdin: 'text',
  });
  expect([done.code, done.stdout], done.stderr).toEqual([7, 'text']);
  expect(done.stderr).toContain(`Job ada/piped: ${app.base}/ada/-/jobs/piped\n`);
  expect(done.stderr).toMatch(/^bad\nada\/piped failed with exit code 7 after \d+s\n$/m);
  expect(await stateOf('piped')).toEqual(['FAILED', 7]);
  expect(await lines(ada, 'ada', 'piped')).toEqual([READY]);
});

test('the job ends when all output has arrived', async () => {
  const bytes = 24 * 2 ** 20;
  const running = user.start(create('long', '--', `head -c ${bytes} /dev/zero; printf end`));
  const hash = createHash('sha256');
  running.child.stdout?.removeAllListeners('data').on('data', (text: string) => hash.update(text));
  const { code, stderr } = await running.result();
  expect(code, stderr).toBe(0);
  const whole = createHash('sha256').update(Buffer.alloc(bytes)).update('end');
  expect(hash.digest('hex')).toBe(whole.digest('hex'));
  expect(await stateOf('long')).toEqual(['SUCCEEDED', 0]);
});

test('a shell begins in the working directory as it is', async () => {
  await user.exec('git', ['clone', '-q', `${app.base}/ada/code.git`]);
  await user.write('code/a b/new', 'changed\n');
  const cwd = join(user.home, 'code/a b');
  const env = { GREETING: 'hello' };
  const { code, stdout, stderr } = await user.run(
    [
      'shell',
      '--new',
      '--env',
      'GREETING',
      '--label',
      'kind=test',
      '--',
      'cat new; echo $GREETING',
    ],
    { cwd, env },
  );
  expect([code, stdout], stderr).toEqual([0, 'changed\nhello\n']);
  const [, name = ''] = /ada\/(cat-new-\w+) succeeded/.exec(stderr) ?? [];
  const query = `{ job(namespace: "ada", name: "${name}") { labels { key value } } }`;
  expect((await ada.gql(query)).job.labels).toEqual([{ key: 'kind', value: 'test' }]);
});

test('a shell on a terminal ends the job with success, whatever its last command said', async (ctx) => {
  needs(ctx, 'script');
  const shell = user.inTerminal(create('typed'));
  shell.child.stdin?.write('tty >/dev/null && echo on a term"inal"\n');
  await eventually(() => expect(shell.stdout).toMatch(/on a terminal\r/));
  // Ctrl-C is a key of the job.
  shell.child.stdin?.write('echo be"gun"; sleep 600\n');
  await eventually(() => expect(shell.stdout).toMatch(/begun\r/));
  shell.child.stdin?.write('\x03');
  await eventually(() => {
    shell.child.stdin?.write('echo inter"rupted"\n');
    expect(shell.stdout).toMatch(/interrupted\r/);
  });
  shell.child.stdin?.write('exit 5\n');
  expect((await shell.result()).code).toBe(5);
  expect(shell.stdout).toMatch(/ada\/typed succeeded after/);
  expect(await stateOf('typed')).toEqual(['SUCCEEDED', 0]);
});

test('a terminal without keys and output is closed, and the job ends', async (ctx) => {
  needs(ctx, 'script');
  const shell = user.inTerminal(create('unused', '--idle', '2s'));
  expect((await shell.result()).code, shell.stdout).toBe(255);
  expect(shell.stdout).toMatch(/There was no key and no output for 2s\.\r\nada\/unused succeeded/);
  expect(await stateOf('unused')).toEqual(['SUCCEEDED', 0]);
  expect(await lines(ada, 'ada', 'unused')).toContain('The terminal was idle for 2s');
});

test('after the connection is lost, one can come back', async () => {
  const first = user.start(create('kept', '--idle', '1h', '--', 'echo up >&2; sleep 600'));
  await first.said(/^up$/m);
  first.child.kill('SIGKILL');
  const log = () => lines(ada, 'ada', 'kept');
  await eventually(async () =>
    expect(await log()).toContain('The connection to the shell was lost'),
  );
  const { code, stdout, stderr } = await user.run(['shell', '--join', 'kept'], {
    stdin: 'echo back; exit 3\n',
  });
  expect([code, stdout], stderr).toEqual([3, 'back\n']);
  expect(await stateOf('kept')).toEqual(['SUCCEEDED', 0]);
});

test('after the connection is lost, the job ends when it was idle', async () => {
  const first = user.start(create('lost', '--idle', '1s', '--', 'echo up >&2; sleep 600'));
  await first.said(/^up$/m);
  first.child.kill('SIGKILL');
  await until(ada, 'ada', 'lost', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'lost')).toEqual([
    READY,
    'The connection to the shell was lost',
    'No shell was open for 1s',
  ]);
});

test('a server that stops says how to come back', async () => {
  const held = user.start(create('away', '--', 'echo up >&2; sleep 600'));
  await held.said(/^up$/m);
  await app.restart();
  const { code, stderr } = await held.result();
  expect(code, stderr).toBe(255);
  expect(stderr).toContain('loam shell --join ada/away');
  const { stderr: back } = await user.run(['shell', '--join', 'away'], { stdin: 'exit\n' });
  expect(back).toMatch(/ada\/away succeeded/);
});

test('Ctrl-C cancels a job that waits, and one whose command runs without a terminal', async () => {
  const queued = user.start(create('queued', '--gpu', 'T4'));
  await queued.said(/waiting|queue/i);
  queued.child.kill('SIGINT');
  expect(await queued.result()).toMatchObject({ code: 130 });
  expect(queued.stderr).toMatch(/Cancelling ada\/queued….*ada\/queued cancelled/s);
  const running = user.start(create('runs', '--', 'echo up >&2; sleep 600'));
  await running.said(/^up$/m);
  running.child.kill('SIGINT');
  expect(await running.result(), running.stderr).toMatchObject({ code: 130 });
  expect(await stateOf('runs')).toMatchObject(['CANCELLED', expect.anything()]);
});

test('a job that ends before the shell says how', async () => {
  const queued = user.start(create('stopped', '--gpu', 'T4'));
  await queued.said(/waiting|queue/i);
  await cancel(ada, 'ada', 'stopped');
  const { code, stderr } = await queued.result();
  expect([code, stderr]).toEqual([1, expect.stringMatching(/ada\/stopped cancelled after/)]);
});

test('the server refuses the shell before the job runs, and the job is cancelled', async () => {
  await using off = await startApp({ config: { runner: 'process', jobShell: 'off' } });
  const eve = await off.user('eve');
  await eve.repository('eve/code');
  await using stranger = await LoamUser.open(eve);
  const args = ['shell', '--repo', 'eve/code', '--name', 'none', '--gpu', 'T4'];
  expect(await stranger.run(args)).toMatchObject({
    code: 5,
    stderr: expect.stringContaining('LOAM_JOB_SHELL'),
  });
  expect((await job(eve, 'eve', 'none')).status).toBe('CANCELLED');
});

test('wrong usage', async () => {
  const said = async (...args: string[]) => {
    const { code, stderr } = await user.run(['shell', ...args]);
    return [code, stderr];
  };
  expect(await said()).toEqual([2, expect.stringContaining('--new')]);
  expect(await said('--gpu', 'T4', 'train')).toEqual([2, expect.stringContaining('"--"')]);
  expect(await said('--new', '--join', 'x')).toEqual([2, expect.stringContaining('--join')]);
  expect(await said('--new', '--idle', 'x')).toEqual([2, expect.stringContaining('90m')]);
});

test.for(['sh', 'busybox'] as const)('the command of the job runs in %s', async (program, ctx) => {
  if (program !== 'sh') needs(ctx, program);
  const dir = await mkdtemp(join(tmpdir(), 'loam-waiting-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  const run = (script: string) =>
    new RunningCommand(
      spawn(program, [...(program === 'busybox' ? ['sh'] : []), '-c', script], {
        env: { PATH: process.env.PATH, TMPDIR: dir },
        stdio: ['pipe', 'pipe', 'pipe'],
        detached: true,
      }),
    );
  const endAll = ({ child: { pid = 0 } }: RunningCommand) => process.kill(-pid, 'SIGKILL');
  const waiting = run(waitingCommand('', 3_600));
  onTestFinished(() => void endAll(waiting));
  const said = (text: string) => eventually(() => expect(waiting.stdout).toContain(text));
  await said(READY);
  const lost = run(joinCommand('echo up; exec sleep 600'));
  await eventually(() => expect(lost.stdout).toBe('up\n'));
  endAll(lost);
  await said('was lost');
  // Two at once: the job ends after the last one.
  const [one, two] = ['exit 3', 'read -r line; exit 4'].map((text) => run(joinCommand(text)));
  expect((await one?.result())?.code).toBe(3);
  const end = () => run(`echo end >"$TMPDIR/loam-shell/events"`).result();
  await end();
  two?.child.stdin?.end('line\n');
  expect((await two?.result())?.code).toBe(4);
  expect(waiting.child.exitCode).toBe(null);
  await end();
  expect(await waiting.result()).toMatchObject({ code: 4, stderr: '' });
});
