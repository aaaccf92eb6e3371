/** `loam jobs`, `job`, `logs`, `wait`, `cancel`, `rerun`, `rm`, `top`, `artifacts`, `api`, `open`, `completion`. */
import { createHash } from 'node:crypto';
import { chmod, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { Client as LoamClient } from '../../src/cli/sdk/client.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { job, lines, submit, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;
let runner: FakeRunner;

beforeAll(async () => {
  runner = fakeRunner({ images: true });
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const start = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', name, command, image: 'busybox', ...more });
const finish = async (name: string, command: string, status = 'SUCCEEDED', more: object = {}) => {
  await start(name, command, more);
  return until(ada, 'ada', name, status);
};

test('jobs are listed and shown, for people and for programs', async () => {
  const labels = [{ key: 'kind', value: 'list' }];
  await finish('listed', 'echo hi\n\n  echo there\n', 'SUCCEEDED', { labels });
  await finish('broken', 'exit 3', 'FAILED', { labels });
  const list = async (...args: string[]) => (await user.loam(['jobs', ...args])).trim().split('\n');
  const rows = await list('--label', 'kind=list');
  expect(rows.map((row) => row.split('\t').slice(0, 3))).toEqual([
    ['ada/broken', 'failed', '8 vCPUs, 32 GB'],
    ['ada/listed', 'succeeded', '8 vCPUs, 32 GB'],
  ]);
  expect(rows[1]?.split('\t').at(-1)).toBe('echo hi ⏎ echo there');
  expect(await list('--label', 'kind=list', '--status', 'failed', '--mine')).toHaveLength(1);
  expect(await list('--namespace', 'ada', '--limit', '1')).toHaveLength(1);
  expect(JSON.parse((await list('--json', '--status', 'failed')).join(''))[0]).toMatchObject({
    name: 'broken',
    exitCode: 3,
  });
  const unknown = await user.run(['jobs', '--status', 'nonsense']);
  expect(unknown.code).toBe(2);

  const shown = await user.loam(['job', 'broken']);
  expect(shown).toContain('exit code\t3\n');
  expect(shown).toMatch(/^1\tlocal\t.*\texited\t3$/m);
  const info = JSON.parse(await user.loam(['job', 'ada/broken', '--json']));
  expect(info).toMatchObject({ status: 'FAILED', attempts: [{ number: 1, exitCode: 3 }] });
  const missing = await user.run(['job', 'none']);
  expect([missing.code, missing.stdout]).toEqual([1, '']);
  expect((await user.run(['job', 'a/b/c'])).code).toBe(2);
});

test('logs: whole, the end, what matches, and to the end of a running job', async () => {
  await start('talks', 'echo one;echo two;echo three;hold;echo four;exit 5');
  await eventually(async () => expect(await lines(ada, 'ada', 'talks')).toHaveLength(3));
  expect(await user.loam(['logs', 'talks'])).toBe('one\ntwo\nthree\n');
  expect(await user.loam(['logs', 'talks', '--tail', '1'])).toBe('three\n');
  expect(await user.loam(['logs', 'talks', '--grep', '^t'])).toBe('two\nthree\n');
  expect(await user.loam(['logs', 'talks', '--since', '1h'])).toBe('one\ntwo\nthree\n');
  expect(await user.loam(['logs', 'talks', '--since', '2099-01-01'])).toBe('');
  expect(await user.loam(['logs', 'talks', '-t', '--tail', '2'])).toMatch(
    /^(20\S+Z (two|three)\n){2}$/,
  );
  expect((await user.run(['logs', 'talks', '--grep', '('])).code).toBe(2);
  expect((await user.run(['logs', 'talks', '--tail', '0'])).code).toBe(2);

  const follower = user.start(['logs', '-f', '--tail', '1', 'talks']);
  const waiter = user.start(['wait', 'talks']);
  const watcher = user.start(['wait', 'talks', 'listed']);
  await eventually(() => expect(follower.stdout).toBe('three\n'));
  runner.release();
  expect(await follower.result()).toMatchObject({ code: 0, stdout: 'three\nfour\n' });
  expect((await waiter.result()).code).toBe(5);
  expect((await watcher.result()).code).toBe(5);
  expect(await user.loam(['logs', '-f', 'talks'])).toBe('one\ntwo\nthree\nfour\n');
  const events = (await user.loam(['logs', '--json', 'talks'])).trim().split('\n');
  expect(JSON.parse(events[0] ?? '').kind).toMatch(/status|line/);
});

test('wait ends with the first job that fails, and leaves the others alone', async () => {
  await start('long', 'hold');
  await start('fails', 'exit 7');
  expect((await user.run(['wait', 'long', 'fails'])).code).toBe(7);
  await user.loam(['cancel', 'long']);
  expect((await job(ada, 'ada', 'long')).status).toBe('CANCELLED');
  const again = await user.run(['cancel', 'long', 'none']);
  expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('none: ')]);
});

test('a job runs again, and is removed', async () => {
  await finish('base', 'echo base');
  expect(await user.loam(['rerun', 'base'])).toBe('ada/base-2\n');
  const followed = await user.run(['rerun', 'base', '--name', 'other', '-f']);
  expect([followed.code, followed.stdout]).toEqual([0, 'base\n']);
  await until(ada, 'ada', 'base-2', 'SUCCEEDED');
  await user.loam(['rm', 'base', 'base-2', 'other']);
  expect((await user.run(['job', 'base'])).code).toBe(1);
});

test('jobs that options select are cancelled, run again and removed, after a question', async () => {
  const labels = [{ key: 'sweep', value: '7' }];
  for (const name of ['m-1', 'm-2', 'm-3']) await start(name, 'hold', { labels });
  await start('apart', 'hold');
  const select = ['--label', 'sweep=7'];
  for (const args of [
    ['cancel'],
    ['cancel', 'm-1', ...select],
    ['rm', '--yes'],
    ['rerun', '--name', 'x', ...select],
  ])
    expect((await user.run(args)).code, args.join(' ')).toBe(2);
  const unconfirmed = await user.run(['cancel', ...select]);
  expect(unconfirmed).toMatchObject({ code: 2, stderr: expect.stringContaining('3 jobs of ada') });
  expect((await user.run(['cancel', '--dry-run', ...select])).stderr).toBe(
    '3 jobs of ada would be cancelled.\n',
  );
  expect((await job(ada, 'ada', 'm-1')).status).not.toBe('CANCELLED');
  const cancelled = await user.run(['cancel', '--yes', ...select, '--prefix', 'm-']);
  expect([cancelled.code, cancelled.stderr]).toEqual([0, '3 jobs cancelled.\n']);
  expect((await job(ada, 'ada', 'm-3')).status).toBe('CANCELLED');
  expect((await job(ada, 'ada', 'apart')).status).not.toBe('CANCELLED');
  const none = await user.run(['cancel', '--yes', ...select]);
  expect([none.code, none.stderr]).toEqual([0, '0 jobs of ada would be cancelled.\n']);
  expect(await user.loam(['jobs', '--before', '1d'])).not.toContain('m-1');

  const again = await user.run(['rerun', '--yes', ...select]);
  expect([again.code, again.stderr]).toEqual([0, '3 jobs run again.\n']);
  const removed = await user.run(['rm', '--yes', ...select, '--artifacts']);
  expect(removed.stderr).toBe('3 jobs deleted, with their artifacts.\n');
  await user.loam(['cancel', '--yes', '--all']);
  expect((await user.run(['rm', '--yes', ...select, '--mine'])).stderr).toBe('3 jobs deleted.\n');
  expect(await user.loam(['jobs', ...select])).toBe('');
});

test('in a terminal, the number of selected jobs is asked for', async (ctx) => {
  needs(ctx, 'script');
  for (const name of ['q-1', 'q-2']) await start(name, 'hold');
  const answer = async (text: string) => {
    const command = user.inTerminal(['cancel', '--prefix', 'q-']);
    const question = '2 jobs of ada will be cancelled. Type 2 to confirm: ';
    await eventually(() => expect(command.stdout).toContain(question));
    command.child.stdin?.write(`${text}\n`);
    return command.result();
  };
  expect((await answer('y')).code).toBe(1);
  expect((await job(ada, 'ada', 'q-1')).status).not.toBe('CANCELLED');
  expect((await answer('2')).code).toBe(0);
  expect((await job(ada, 'ada', 'q-1')).status).toBe('CANCELLED');
});

test('a job runs with artifacts of another', async () => {
  await finish('model', 'echo x > out/weights', 'SUCCEEDED', { outputPath: 'out' });
  const run = (name: string, input: string) =>
    user.run(['run', '--image', 'busybox', '--name', name, '--input', input, '--', 'echo ran']);
  expect((await run('uses', 'model:weights:in/')).code).toBe(0);
  expect(await user.loam(['job', 'uses'])).toMatch(/^inputs\tmodel:weights:in\/$/m);
  const { id } = (await ada.post('/auth/v1/repository/ada', { name: 'code' })).body;
  const { commitSha } = await finish('code', 'true', 'SUCCEEDED', { repo: 'ada/code' });
  expect((await run('reads', 'ada/code@main=code/:ro')).code).toBe(0);
  expect(await user.loam(['job', 'reads'])).toContain(
    `\ninputs\tada/code@main=code/:ro (${commitSha.slice(0, 10)})\n`,
  );
  for (const wrong of ['ada/code@', '/code', 'ada/', 'a/b/c'])
    expect((await run('wrong', wrong)).code, wrong).toBe(2);
  await ada.delete(`/auth/v1/repository/ada/${id}`);
  expect((await run('wrong', 'ada/none')).stderr).toContain('no repository ada/none');
  expect((await run('lacks', 'model:bias')).code).toBe(125);
  expect((await run('wrong', 'a:b:c:d')).code).toBe(2);
  for (const verb of ['ls', 'get'])
    expect((await user.run(['artifacts', verb, 'lacks'])).stderr).toBe(
      'Job ada/lacks has no artifacts\n',
    );
  expect((await user.run(['artifacts', 'get', 'model', 'bias'])).stderr).toBe(
    'Job ada/model has no artifacts at bias\n',
  );
});

test('a job that is cancelled because of another says so at its end', async () => {
  await finish('spoilt', 'exit 3', 'FAILED');
  const run = ['run', '--image', 'busybox', '--name', 'follows', '--after', 'spoilt', '--', 'true'];
  const reason = 'ada/follows cancelled after 0s: it needed spoilt to succeed, which failed\n';
  expect((await user.run(run)).stderr).toContain(reason);
  expect((await user.run(['wait', 'follows'])).stderr).toContain(reason);
});

test('top shows running jobs', async () => {
  await start('busy-one', 'busy');
  await until(ada, 'ada', 'busy-one', 'RUNNING');
  expect(await user.loam(['top'])).toMatch(/^ada\/busy-one\t\d+ % of 8\t\d+\/32 GB\t\t/m);
  expect(JSON.parse(await user.loam(['top', '--json']))[0].name).toBe('busy-one');
  await user.loam(['cancel', 'busy-one']);
});

test('followers of a log survive restarts of the server, without losing or repeating a line', async () => {
  await start('survives', 'flood 3000 20;echo middle;hold;flood 3000 20;echo last;exit 9');
  const follower = user.start(['logs', '-f', 'survives']);
  const waiter = user.start(['wait', 'survives']);
  await eventually(() => expect(follower.stdout).toContain('middle\n'));
  await app.restart();
  await eventually(() => expect(follower.stderr).toContain('answers again'));
  runner.release();
  const { code, stdout } = await follower.result();
  expect(code).toBe(0);
  const flood = `${'x'.repeat(20)}\n`.repeat(3000);
  expect(stdout === `${flood}middle\n${flood}last\n`).toBe(true);
  expect((await waiter.result()).code).toBe(9);
});

/** A network that cuts the transfer of each file after some bytes, and notes the ranges that are requested. */
function cuttingFetch(bytes: number, ranges: (string | null)[]): typeof fetch {
  return async (input, init) => {
    const response = await fetch(input, init);
    if (!`${input}`.includes('/files/')) return response;
    ranges.push(new Headers(init?.headers).get('range'));
    let left = bytes;
    const cut = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        controller.enqueue(chunk.subarray(0, left));
        left -= chunk.length;
        if (left <= 0) controller.error(new Error('the network is gone'));
      },
    });
    const { status, headers } = response;
    return new Response(response.body?.pipeThrough(cut), { status, headers });
  };
}

test('a download that is cut continues, and files of another job do not mix in', async () => {
  const text = 'abcdefghij'.repeat(9_000);
  const digest = (data: string | Buffer) => createHash('sha256').update(data).digest('hex');
  const more = { outputPath: 'out' };
  await finish('big', `echo ${text} > out/deep/big;echo small > out/small`, 'SUCCEEDED', more);
  const folder = join(user.home, 'big');
  const ranges: (string | null)[] = [];
  const flaky = new LoamClient({
    url: app.base,
    token: ada.token,
    fetch: cuttingFetch(60_000, ranges),
  });
  // The library records what it writes, and the command below replaces that.
  vi.stubEnv('XDG_STATE_HOME', join(user.home, '.local/state'));
  onTestFinished(() => void vi.unstubAllEnvs());
  const failures: string[] = [];
  const files = await flaky.jobs.get('ada', 'big').artifacts.download(folder, {
    concurrency: 1,
    onRetry: ({ message }) => failures.push(message),
  });
  expect(files.map(({ path }) => path).sort()).toEqual(['deep/big', 'small']);
  expect(ranges.filter(Boolean)).toEqual(['bytes=60000-']);
  expect(failures).toEqual([expect.stringContaining('the network is gone')]);
  expect(digest(await readFile(join(folder, 'deep/big')))).toBe(digest(`${text}\n`));
  expect(await readdir(join(folder, 'deep'))).toEqual(['big']);

  // The whole file again, in place of an older one.
  await user.loam(['artifacts', 'get', 'big', 'deep', '-o', folder]);
  expect(digest(await readFile(join(folder, 'deep/big')))).toBe(digest(`${text}\n`));
  const nothing = await user.run(['artifacts', 'get', 'big', 'none', '-o', folder]);
  expect(nothing.code).toBe(1);
});

test('names that lead out of the folder are refused', async () => {
  const evil = (path: string): typeof fetch => {
    return async (input, init) => {
      if (!`${input}`.endsWith('/graphql')) return new Response('evil');
      const node = { path, sizeBytes: 4, downloadUrl: `${app.base}/artifacts/x` };
      const files = { nodes: [node], pageInfo: { hasNextPage: false, endCursor: null } };
      return Response.json({ data: { job: { artifacts: { files } } }, init });
    };
  };
  const root = join(user.home, 'victim/folder');
  for (const path of ['../x', 'a/../../x', '/etc/x', '', 'a//b', './x', 'a/.', 'a\0b', '..']) {
    const liar = new LoamClient({ url: app.base, token: 'x', fetch: evil(path) });
    const download = liar.jobs.get('a', 'b').artifacts.download(root);
    await expect(download, JSON.stringify(path)).rejects.toThrow(/Refused to write/);
  }
  expect(await readdir(join(user.home, 'victim'), { recursive: true })).toEqual(['folder']);
  const long = new LoamClient({ url: app.base, token: 'x', fetch: evil('fine') });
  const found = await long.jobs.get('a', 'b').artifacts.download(root);
  expect(found.map(({ path }) => path)).toEqual(['fine']);
});

test('api sends REST and GraphQL requests, and reads all pages', async () => {
  const answer = JSON.parse(await user.loam(['api', '/auth/v1/whoami']));
  expect(answer.username).toBe('ada');
  for (const name of ['a', 'b', 'c'])
    await user.loam([
      'api',
      '/auth/v1/repository/ada',
      '-f',
      `name=${name}`,
      '-F',
      'auto_init=false',
    ]);
  const pages = (
    await user.loam([
      'api',
      '/auth/v1/repository/ada',
      '-X',
      'get',
      '-f',
      'per_page=2',
      '--paginate',
    ])
  )
    .trim()
    .split('\n');
  expect(pages).toHaveLength(2);
  const query = `query ($endCursor: String, $first: Int!) { viewer { repositories(first: $first, after: $endCursor) {
    nodes { name } pageInfo { hasNextPage endCursor } } } }`;
  const results = (
    await user.loam(['api', '-q', '-', '-F', 'first=1', '--paginate'], { stdin: query })
  )
    .trim()
    .split('\n');
  expect(results).toHaveLength(3);
  expect((await user.run(['api'])).code).toBe(2);
  expect((await user.run(['api', '//elsewhere.example/x'])).code).toBe(2);
  const missing = await user.run(['api', '/auth/v1/none', '--verbose']);
  expect([missing.code, missing.stdout]).toEqual([1, '']);
  expect(missing.stderr).toContain('request id: ');
  const { token } = await ada.withToken({ scopes: ['REPO_READ'] });
  const env = { LOAM_URL: app.base, LOAM_TOKEN: token };
  const refused = await user.run(['api', '-q', '{ viewer { accessTokens { totalCount } } }'], {
    env,
  });
  expect([refused.code, refused.stdout]).toEqual([5, '']);
});

test('wrong values are refused in the words of the command, and what was not found is named', async () => {
  const refused = async (...args: string[]) => {
    const { code, stderr } = await user.run(args);
    expect(stderr).toMatch(/^loam: /);
    return [code, stderr];
  };
  expect(await refused('jobs', '--status', 'runing')).toEqual([
    2,
    expect.stringContaining(
      'must be one of queued, running, succeeded, failed, timed-out, cancelled',
    ),
  ]);
  expect(await refused('budget', 'set', 'abc')).toEqual([
    2,
    expect.stringContaining('an amount such as 500.00'),
  ]);
  expect(await refused('jobs', '--nonsense')).toEqual([2, expect.stringContaining('--nonsense')]);
  expect(await refused('job', 'nothing')).toEqual([1, 'loam: Job ada/nothing not found\n']);
  expect(await refused('jobs', '--namespace', 'nobody')).toEqual([
    1,
    'loam: Namespace nobody not found\n',
  ]);
  expect(await refused('jobs', '--limit', '0')).toEqual([2, expect.stringContaining('--limit')]);
});

test('open prints addresses, and completion scripts ask the command', async () => {
  expect(await user.loam(['open', '--print'])).toBe(`${app.base}\n`);
  expect(await user.loam(['open', 'ada/a'])).toBe(`${app.base}/ada/a\n`);
  expect(await user.loam(['open', 'ada/listed'])).toBe(`${app.base}/ada/-/jobs/listed\n`);
});

test('bash alone completes commands, options, and names that the server has', async () => {
  await user.write('bin/loam', `#!/bin/sh\nexec '${process.execPath}' '${LOAM}' "$@"\n`);
  await chmod(join(user.home, 'bin/loam'), 0o755);
  await user.write('completion.bash', await user.loam(['completion', 'bash']));
  for (const shell of ['zsh', 'fish'])
    expect(await user.loam(['completion', shell])).toContain('loam');
  await ada.post('/auth/v1/repository/ada', { name: 'completed' });
  const complete = async (line: string) => {
    const script = `PATH=$HOME/bin:$PATH; source completion.bash; COMP_LINE='${line}'
      COMP_POINT=\${#COMP_LINE}; _loam loam; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const said = await user.exec('env', [
      '-i',
      `HOME=${user.home}`,
      `PATH=${process.env.PATH}`,
      'bash',
      '--norc',
      '-c',
      script,
    ]);
    return said.trim().split('\n');
  };
  expect(await complete('loam arti')).toEqual(['artifacts']);
  expect(await complete('loam --verbose artifacts ')).toEqual(['ls', 'get', 'help']);
  expect(await complete('loam logs --fol')).toEqual(['--follow']);
  expect(await complete('loam logs -f list')).toEqual(['listed']);
  expect(await complete('loam wait listed ada/list')).toEqual(['ada/listed']);
  expect(await complete('loam run --after list')).toEqual(['listed']);
  expect(await complete('loam jobs --status=ru')).toEqual(['running']);
  expect(await complete('loam open x --unknown')).toEqual(['']);
  expect(await complete('loam repo clone ada/comp')).toEqual(['ada/completed']);
  expect(await complete('loam run --repo comp')).toEqual(['completed']);
  expect(await complete('loam secret list --namespace a')).toEqual(['ada']);
  expect(await complete('loam run -- logs ')).toEqual(['']);
});

test('in a terminal, Ctrl-C asks first, and the second one cancels', async (ctx) => {
  needs(ctx, 'script');
  const begin = async (name: string) => {
    const args = ['run', '--image', 'busybox', '--name', name, '--', 'echo begun;hold'];
    const command = user.inTerminal(args);
    await eventually(() => expect(command.stdout).toContain('begun\r\n'));
    command.child.stdin?.write('\x03');
    await eventually(() => expect(command.stdout).toContain('Detach from it, or cancel it?'));
    return command;
  };
  const detached = await begin('left-alone');
  detached.child.stdin?.write('d\n');
  expect((await detached.result()).code).toBe(130);
  expect(detached.stdout).toContain('loam logs -f ada/left-alone');
  expect((await job(ada, 'ada', 'left-alone')).status).toBe('RUNNING');

  const cancelled = await begin('given-up');
  cancelled.child.stdin?.write('\x03');
  expect((await cancelled.result()).code).toBe(130);
  expect((await job(ada, 'ada', 'given-up')).status).toBe('CANCELLED');
  await user.loam(['cancel', 'left-alone']);
});

test('in a terminal, a log shows its colours and does nothing else', async (ctx) => {
  needs(ctx, 'script');
  const evil = '\x1b[31mred\x1b[0m\x1b[2J\x1b]title\x07\x1bPstring\x1b\\ end';
  await finish('evil', `echo ${evil}`);
  const command = user.inTerminal(['logs', 'evil']);
  await command.result();
  expect(command.stdout).toBe('\x1b[31mred\x1b[0m end\x1b[0m\r\n');
  const plain = user.inTerminal(['logs', 'evil'], { env: { NO_COLOR: '1' } });
  await plain.result();
  expect(plain.stdout).toBe('red end\r\n');
  // A file gets the bytes as they are.
  expect(await user.loam(['logs', 'evil'])).toBe(`${evil}\n`);
  const table = user.inTerminal(['jobs', '--limit', '1']);
  await table.result();
  expect(table.stdout).toContain('\x1b[2mNAME\x1b[22m  ');
  expect(table.stdout).toContain('ada/evil  \x1b[32msucceeded\x1b[39m');
});
