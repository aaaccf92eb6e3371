/** `loam shell` and `loam cp`: a terminal, pipes, files, and what they say when they cannot. */
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdir, readFile, readlink, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs, SYSTEM_NODE } from '../support/needs.ts';
import { freePort } from '../support/ports.ts';
import { untilShell } from '../support/shell-socket.ts';
import { sshUser } from '../support/ssh-client.ts';
import { cancel, submit, until, variables } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeAll(async () => {
  app = await startApp({
    config: { runner: 'process', ssh: { host: '127.0.0.1', port: 0 } },
  });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.repository('ada/code');
  await running('held');
});
afterAll(async () => {
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

/** Starts a job that runs until it is cancelled. */
async function running(name: string, fields: object = {}) {
  const command = 'echo begun; exec /bin/sleep 600';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...fields });
  await until(ada, 'ada', name, 'RUNNING');
  await untilShell(ada, `ada/${name}`);
}

const inJob = (command: string) => user.loam(['shell', 'held', '--', command]);

test('a command has pipes and passes its exit code on', async () => {
  const done = await user.run(['shell', 'ada/held', '--', 'cat; echo bad >&2; exit 7'], {
    stdin: 'text',
  });
  expect(done).toEqual({ code: 7, stdout: 'text', stderr: 'bad\n' });
  expect(await user.loam(['shell', 'held', '--', 'printf', '%s|', 'a b', '$HOME'])).toBe(
    'a b|$HOME|',
  );
});

test('shells, copies and forwarded ports work with Node 20', async (ctx) => {
  needs(ctx, 'node20');
  await user.write('copied', 'text');
  expect(await user.exec(SYSTEM_NODE, [LOAM, 'shell', 'held', '--', 'pwd'])).toBe('/work\n');
  await user.exec(SYSTEM_NODE, [LOAM, 'cp', 'copied', 'held:copied']);
  expect(await inJob('cat copied')).toBe('text');
  const refused = await user.exec('sh', [
    '-c',
    `'${SYSTEM_NODE}' '${LOAM}' forward none 8000 2>&1 || true`,
  ]);
  expect(refused).toMatch(/not found/);
});

test('bytes pass unchanged in both directions, to the end of the input', async () => {
  const sent = randomBytes(48 * 2 ** 20);
  const child = spawn(process.execPath, [LOAM, 'shell', 'held', '--', 'cat'], {
    env: user.env,
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(sent);
  const received = createHash('sha256');
  for await (const chunk of child.stdout) received.update(chunk);
  expect(received.digest('hex')).toBe(createHash('sha256').update(sent).digest('hex'));
});

test('a reader that ends early, as head does, ends the command', async () => {
  const line = `${process.execPath} ${LOAM} shell held -- 'echo $$ > endless; exec yes' | head -n 1`;
  expect(await user.exec('sh', ['-c', line])).toBe('y\n');
  await eventually(async () =>
    expect(await inJob('kill -0 $(cat endless) 2>/dev/null || echo gone')).toBe('gone\n'),
  );
});

test('a terminal follows the size of the own one, which is restored', async () => {
  const loam = `'${process.execPath}' '${LOAM}' shell held`;
  const before = 'stty cols 77 rows 33; stty -g > before';
  const line = `${before}; ${loam}; echo "code $?"; stty -g > after`;
  const child = spawn('script', ['-qefc', line, '/dev/null'], {
    cwd: user.home,
    env: { ...user.env, TERM: 'xterm-256color', SHELL: '/bin/sh', LANG: 'xx' },
  });
  let shown = '';
  child.stdout.setEncoding('utf8').on('data', (text) => {
    shown += text;
  });
  const ended = new Promise((resolve) => child.once('close', resolve));
  child.stdin.write('stty size; echo "$TERM $LANG"; tty > own\n');
  await eventually(() => expect(shown).toMatch(/33 77\r+\nxterm-256color xx/));
  const shell = (await readFile(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8')).trim();
  const tty = await readlink(`/proc/${shell}/fd/0`);
  await user.exec('stty', ['-F', tty, 'cols', '100', 'rows', '40']);
  await eventually(() => {
    child.stdin.write('stty size\n');
    expect(shown).toMatch(/40 100\r/);
  });
  // Ctrl-C is a key of the job.
  child.stdin.write('echo be"gun"; sleep 600\n');
  await eventually(() => expect(shown).toMatch(/begun\r/));
  child.stdin.write('\x03');
  await eventually(() => {
    child.stdin.write('echo inter"rupted"\n');
    expect(shown).toMatch(/interrupted\r/);
  });
  child.stdin.write('exit 5\n');
  await eventually(() => expect(shown).toMatch(/code 5\r/));
  child.stdin.end();
  await ended;
  const [first, last] = await Promise.all(
    ['before', 'after'].map((name) => readFile(join(user.home, name), 'utf8')),
  );
  expect(last).toBe(first);
});

test('loam job shows the open shells, and one that is ended says by whom', async () => {
  const ending = user.run(['shell', 'held', '--', 'sleep 601']);
  let id = '';
  await eventually(async () => {
    const { shells } = JSON.parse(await user.loam(['job', 'held', '--json']));
    expect(shells).toMatchObject([{ username: 'ada', command: 'sleep 601', terminal: false }]);
    [{ id }] = shells;
  });
  const row = new RegExp(`^${id}\\tada\\t\\S+\\t127\\.0\\.0\\.1\\tsleep 601$`, 'm');
  expect(await user.loam(['job', 'held'])).toMatch(row);
  await ada.gql('mutation ($id: ID!) { endJobShell(input: { id: $id }) { id } }', { id });
  const stderr = 'loam: The shell was ended by ada\n';
  expect(await ending).toEqual({ code: 255, stdout: '', stderr });
});

test('nobody opens a shell in a job of loam run --no-shell', async () => {
  const command = ['--name', 'closed', '--repo', 'ada/code', '--no-shell', '-d', '--', 'sleep 600'];
  await user.loam(['run', ...command]);
  await until(ada, 'ada', 'closed', 'RUNNING');
  const refused = await user.run(['shell', 'closed']);
  expect([refused.code, refused.stderr]).toEqual([
    5,
    expect.stringContaining('This job has no shells'),
  ]);
  expect(await user.loam(['job', 'closed'])).toMatch(/^shells\tnone$/m);
  await user.loam(['cancel', 'closed']);
});

test('refusals say what is wrong', async () => {
  const refused = async (...args: string[]) => {
    const { code, stderr } = await user.run(args);
    return [code, stderr];
  };
  expect(await refused('shell', 'none')).toEqual([1, 'loam: Job ada/none not found\n']);
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'ended', command: 'true' });
  await until(ada, 'ada', 'ended', 'SUCCEEDED');
  expect(await refused('shell', 'ended')).toEqual([
    1,
    'loam: The job has ended (succeeded); a shell needs a running job\n',
  ]);
  await using off = await startApp({ config: { jobShell: 'off' } });
  const eve = await off.user('eve');
  await eve.repository('eve/code');
  await submit(eve, { namespace: 'eve', repo: 'eve/code', name: 'runs', command: 'sleep 60' });
  await until(eve, 'eve', 'runs', 'RUNNING');
  await using stranger = await LoamUser.open(eve);
  expect(await stranger.run(['shell', 'runs'])).toMatchObject({
    code: 5,
    stderr: expect.stringContaining('LOAM_JOB_SHELL'),
  });
});

test('files and folders are copied to a job and back', async () => {
  const content = randomBytes(3 * 2 ** 20);
  await user.write('sent/deep/a b.txt', 'text\n');
  await user.write('sent/run.sh', '#!/bin/sh\necho ran\n');
  await chmod(join(user.home, 'sent/run.sh'), 0o755);
  await writeFile(join(user.home, 'sent/large'), content);
  await mkdir(join(user.home, 'sent/empty'));
  const long = `${'x'.repeat(120)}/${'ü'.repeat(100)}`;
  await user.write(`sent/${long}`, 'long\n');
  const { code, stderr } = await user.run(['cp', 'sent', 'held:copied']);
  expect([code, stderr]).toEqual([0, expect.stringMatching(/^Copied 4 files \(3\.0 MiB\)/)]);
  expect(await inJob('cd copied && ./run.sh && cat "deep/a b.txt" && ls')).toMatch(
    /^ran\ntext\ndeep\nempty\nlarge\nrun\.sh\nx+\n$/,
  );
  // An existing folder gets the folder into it.
  await user.loam(['cp', 'sent/deep', 'held:copied']);
  await user.loam(['cp', 'sent/run.sh', 'ada/held:copied/other.sh']);
  expect(await inJob('ls copied/deep copied/other.sh')).toMatch(/other\.sh/);

  await mkdir(join(user.home, 'here'));
  await user.loam(['cp', 'held:copied', 'here']);
  expect((await readFile(join(user.home, 'here/copied/large'))).equals(content)).toBe(true);
  expect(await readFile(join(user.home, `here/copied/${long}`), 'utf8')).toBe('long\n');
  expect((await stat(join(user.home, 'here/copied/run.sh'))).mode & 0o111).not.toBe(0);
  expect((await stat(join(user.home, 'here/copied/empty'))).isDirectory()).toBe(true);
  await user.loam(['cp', 'held:copied/deep/', 'renamed']);
  expect(await readFile(join(user.home, 'renamed/a b.txt'), 'utf8')).toBe('text\n');
  await user.loam(['cp', 'held:copied/deep/.', 'here']);
  expect(await readFile(join(user.home, 'here/a b.txt'), 'utf8')).toBe('text\n');
  await user.loam(['cp', 'held:/etc/passwd', 'users']);
  expect(await readFile(join(user.home, 'users'), 'utf8')).not.toBe('');
});

test('a copy replaces no file that no copy wrote, unless it is told to', async () => {
  await inJob('echo from the job > fresh');
  await user.write('fresh', 'mine\n');
  const refused = await user.run(['cp', 'held:fresh', '.']);
  expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining('--force')]);
  expect(await readFile(join(user.home, 'fresh'), 'utf8')).toBe('mine\n');
  await user.loam(['cp', '--force', 'held:fresh', '.']);
  expect(await readFile(join(user.home, 'fresh'), 'utf8')).toBe('from the job\n');
  await inJob('echo changed > fresh');
  await user.loam(['cp', 'held:fresh', '.']);
  expect(await readFile(join(user.home, 'fresh'), 'utf8')).toBe('changed\n');
});

test('what git would take for its own, and links, are left out', async () => {
  await inJob(
    'mkdir -p odd/.git odd/sub && cd odd && echo x > .git/config && echo y > sub/HEAD && ln -s /etc/passwd link && echo z > kept && ln kept same && mkfifo fifo',
  );
  const { code, stderr } = await user.run(['cp', 'held:odd', 'odd']);
  expect(code).toBe(1);
  for (const name of ['odd/.git', 'odd/sub/HEAD', 'odd/link', 'odd/fifo'])
    expect(stderr).toContain(`  ${name}`);
  // Two names of one file are two files.
  expect(await user.exec('ls', ['-A', 'odd'])).toBe('kept\nsame\nsub\n');
});

test('JOB: alone is the working directory of the job', async () => {
  await user.write('alone', '1');
  expect((await user.run(['cp', 'alone', 'held:'])).stderr).toMatch(/to \. of the job/);
  expect(await inJob('cat /work/alone')).toBe('1');
});

test('paths that do not exist, and wrong arguments', async () => {
  const said = async (...args: string[]) => {
    const { code, stderr } = await user.run(['cp', ...args]);
    return [code, stderr];
  };
  expect(await said('held:', '.')).toEqual([2, expect.stringContaining('name a path')]);
  expect(await said('held:none', '.')).toEqual([1, 'none: no such file or folder in the job\n']);
  expect(await said('none', 'held:x')).toEqual([2, 'loam: none: no such file or folder\n']);
  expect(await said('a', 'b')).toEqual([2, expect.stringContaining('must be JOB:PATH')]);
  expect(await said('held:a', 'held:b')).toEqual([2, expect.stringContaining('must be JOB:PATH')]);
  await user.write('one', '1');
  expect(await said('one', 'held:no/folder/x')).toEqual([1, expect.stringMatching(/cd/)]);
  expect(await said('one', 'held:newdir/')).toEqual([
    2,
    'loam: newdir/: no such folder in the job\n',
  ]);
});

test('a job without tar, and one whose tar is hostile', async () => {
  await running('bare', { env: variables({ PATH: '/work/bin' }) });
  const none = await user.run(['cp', 'bare:/etc/hostname', 'x']);
  expect([none.code, none.stderr]).toEqual([
    1,
    'The job has no program tar, which loam cp needs\n',
  ]);
  for (const name of ['../outside', './wanted/../../outside', '/etc/wanted']) {
    const archive = pack();
    archive.entry({ name: './wanted/fine' }, 'fine');
    archive.entry({ name }, 'evil');
    archive.finalize();
    const tar = (await buffer(archive as AsyncIterable<Buffer>)).toString('base64');
    const script = '#!/bin/sh\\nexec /usr/bin/base64 -d /work/tar';
    await user.loam(
      [
        'shell',
        'bare',
        '--',
        `/bin/mkdir -p bin /work/bin; /bin/cat > /work/tar; printf '${script}\\n' > /work/bin/tar; /bin/chmod 755 /work/bin/tar; echo > wanted`,
      ],
      { stdin: tar },
    );
    const { code, stderr } = await user.run(['cp', 'bare:wanted', 'got', '--force']);
    expect([name, code, stderr]).toEqual([
      name,
      1,
      expect.stringMatching(/which was not asked for|leads out of the folder/),
    ]);
    await expect(stat(join(user.home, 'outside'))).rejects.toThrow('ENOENT');
  }
  await cancel(ada, 'ada', 'bare');
});

test('ssh reaches a job by the block of ssh-config', async (ctx) => {
  needs(ctx, 'ssh');
  await using workspace = await Workspace.open();
  const port = app.app.ssh?.port ?? 0;
  const { key } = await sshUser(ada, workspace, port);
  const block = `Host loam-ada-held\n  HostName 127.0.0.1\n  Port ${port}\n  User ada/held\n`;
  const printed = await user.run(['ssh-config', 'held']);
  expect(printed).toEqual({
    code: 0,
    stdout: block,
    stderr: 'VS Code: vscode://vscode-remote/ssh-remote+loam-ada-held/work\n',
  });
  await user.write('.ssh/config', 'Host other\n  Port 1');
  for (const said of [/^Added loam-ada-held/, /has loam-ada-held already/])
    expect((await user.run(['ssh-config', '--write', 'held'])).stderr).toMatch(said);
  const file = join(user.home, '.ssh/config');
  expect(await readFile(file, 'utf8')).toBe(`Host other\n  Port 1\n\n${block}`);
  const unknown = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null', 'LogLevel=ERROR'];
  const options = unknown.flatMap((option) => ['-o', option]);
  const line = ['-F', file, '-i', key.path, ...options, 'loam-ada-held', 'echo here'];
  expect(await user.exec('ssh', line)).toBe('here\n');
  await user.write('.ssh/config', 'Host loam-ada-held\n  Port 1\n');
  const refused = await user.run(['ssh-config', '--write', 'held']);
  expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining('another block')]);
});

test('a lost connection ends with 255', async () => {
  const held = user.start(['shell', 'held', '--', 'echo up >&2; sleep 600']);
  await held.said(/up/);
  await app.restart();
  const { code, stderr } = await held.result();
  expect([code, stderr]).toEqual([
    255,
    'up\nloam: The connection to the job was lost: The server is stopping\n',
  ]);
});

test('loam forward leads to a port of the job', async (ctx) => {
  needs(ctx, 'python3');
  const inJob = await freePort();
  const command = `head -c 3000000 /dev/urandom > random; echo begun; exec python3 -m http.server ${inJob} --bind 127.0.0.1`;
  await running('served', { command });
  const child = spawn(process.execPath, [LOAM, 'forward', 'served', `0:${inJob}`, '0:1'], {
    env: user.env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  try {
    let shown = '';
    let errors = '';
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      shown += chunk;
    });
    child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
      errors += chunk;
    });
    const port = await eventually(() => {
      const [, here] = new RegExp(`127.0.0.1:(\\d+) → port ${inJob} of the job`).exec(shown) ?? [];
      expect(here).toBeDefined();
      return here;
    });
    const random = async () => (await fetch(`http://127.0.0.1:${port}/random`)).arrayBuffer();
    await eventually(async () => expect((await random()).byteLength).toBe(3_000_000));
    const bodies = await Promise.all(Array.from({ length: 6 }, random));
    const inside = await user.loam(['shell', 'served', '--', 'sha256sum < random']);
    for (const body of bodies)
      expect(inside).toContain(createHash('sha256').update(Buffer.from(body)).digest('hex'));
    const [, closed] = /127.0.0.1:(\d+) → port 1 of/.exec(shown) ?? [];
    await expect(fetch(`http://127.0.0.1:${closed}/`)).rejects.toThrow();
    await eventually(() => expect(errors).toMatch(/port 1: .*refused/));
  } finally {
    child.kill();
  }
  expect(await user.run(['forward', 'served', '70000'])).toMatchObject({ code: 2 });
  expect(await user.run(['forward', 'none', '80'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('not found'),
  });
  await cancel(ada, 'ada', 'served');
});
