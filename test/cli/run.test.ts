/** `loam run`: the working directory as it is, the log, the exit code, the artifacts. */
import { once } from 'node:events';
import { chmod, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { announced } from '../../src/cli/commands/follow.ts';
import { LoamError } from '../../src/cli/sdk/errors.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { freePort } from '../support/ports.ts';
import { job, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;
let clone: string;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.post('/auth/v1/repository/ada', { name: 'model' });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/model.git`]);
  clone = join(user.home, 'model');
  await user.write('model/tracked', 'committed\n');
  await user.write('model/.gitignore', 'ignored\n');
  await inClone('add', '-A');
  await inClone('commit', '-qm', 'Add files');
  await inClone('push', '-q', 'origin', 'HEAD:main');
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const inClone = (...args: string[]) => user.exec('git', args, { cwd: clone });
const run = (...args: string[]) => user.run(['run', ...args], { cwd: clone });

/** Everything of a clone that `loam run` must leave as it is. */
async function stateOf() {
  const outputs = await Promise.all([
    inClone('status', '--porcelain=v2', '--branch', '--show-stash'),
    inClone('for-each-ref'),
    inClone('reflog', '--all'),
    inClone('ls-files', '--stage', '--debug'),
    inClone('count-objects', '-v'),
    inClone('config', '--list', '--show-origin'),
  ]);
  return [...outputs, (await readdir(join(clone, '.git'))).sort().join(' ')];
}

test('a dirty working directory runs as it is, and stays as it is', async () => {
  await user.write('model/tracked', 'changed\n');
  await inClone('stash', '-q');
  await user.write('model/tracked', 'staged\n');
  await inClone('add', 'tracked');
  await user.write('model/tracked', 'changed again\n');
  await user.write('model/new file', 'untracked\n');
  await user.write('model/ignored', 'ignored\n');
  // Hooks of the user are not for snapshots.
  await user.write('model/.git/hooks/pre-push', '#!/bin/sh\nexit 1\n');
  await chmod(join(clone, '.git/hooks/pre-push'), 0o755);
  const before = await stateOf();
  const result = await run(
    ...['--name', 'dirty', '--output', 'out', '--get', 'here', '--env', 'GREETING=hello'],
    ...['--label', 'kind=test', '--cpu', '2', '--memory', '4G', '--timeout', '2h', '--'],
    'cat tracked "new file"; ls ignored 2>&1; echo $GREETING; mkdir -p out/deep; echo a > out/deep/a; exit 3',
  );
  expect(result.code, result.stderr).toBe(3);
  expect(result.stdout).toMatch(/^changed again\nuntracked\n.*ignored.*\nhello\n$/);
  expect(result.stderr).toContain(`Job ada/dirty: ${app.base}/ada/-/jobs/dirty\n`);
  expect(result.stderr).toMatch(/ada\/dirty failed with exit code 3 after \d+s\n/);
  expect(await readFile(join(clone, 'here/deep/a'), 'utf8')).toBe('a\n');
  await rm(join(clone, 'here'), { recursive: true });
  expect(await stateOf()).toEqual(before);
  const query = `{ job(namespace: "ada", name: "dirty") {
    command cpu memoryGb timeoutMinutes snapshot branch repo environmentNames labels { key value } } }`;
  expect((await ada.gql(query)).job).toMatchObject({
    cpu: 2,
    memoryGb: 4,
    timeoutMinutes: 120,
    snapshot: expect.stringMatching(/^[0-9a-f]{32}$/),
    branch: null,
    repo: 'ada/model',
    environmentNames: ['GREETING'],
    labels: [{ key: 'kind', value: 'test' }],
  });
});

test('large files go to the server of the job, whatever address the repository names', async (ctx) => {
  needs(ctx, 'git-lfs');
  const requests: (string | undefined)[] = [];
  const thief = createServer((req, res) => {
    requests.push(req.url);
    res.writeHead(500).end();
  });
  await once(thief.listen(0, '127.0.0.1'), 'listening');
  onTestFinished(async () => {
    thief.close();
    thief.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(thief.address() as AddressInfo).port}`;
  await ada.post('/auth/v1/repository/ada', { name: 'large' });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/large.git`]);
  const cwd = join(user.home, 'large');
  const git = (...args: string[]) => user.exec('git', args, { cwd });
  await git('lfs', 'install', '--local');
  await git('config', 'remote.origin.lfsurl', url);
  await user.write('large/.lfsconfig', `[lfs]\n\turl = ${url}\n\tpushurl = ${url}\n`);
  await user.write('large/.gitattributes', '*.bin filter=lfs diff=lfs merge=lfs -text\n');
  await user.write('large/model.bin', 'weights\n');
  const first = await user.run(['run', '--name', 'large', '--', 'cat model.bin'], { cwd });
  expect([first.code, first.stdout], first.stderr).toEqual([0, 'weights\n']);
  // The clone's own settings.
  for (const key of ['lfs.url', 'lfs.pushurl']) await git('config', key, url);
  await user.write('large/model.bin', 'more\n');
  const second = await user.run(['run', '--name', 'larger', '--', 'cat model.bin'], { cwd });
  expect([second.code, second.stdout], second.stderr).toEqual([0, 'more\n']);
  expect(requests).toEqual([]);
});

test('a job gets the permissions and identity tokens that are asked for, and the command uses its token', async () => {
  const { stdout, stderr } = await run(
    ...['--name', 'trusted', '--permission', 'repo=read', '--permission', 'jobs=write', '--detach'],
    ...['--id-token', 'CLOUD=sts.example.com', '--', 'test -s "$CLOUD_FILE" && sleep 600'],
  );
  expect(stdout, stderr).toBe('ada/trusted\n');
  await until(ada, 'ada', 'trusted', 'RUNNING');
  const shown = await user.loam(['job', 'trusted'], { cwd: clone });
  expect(shown).toMatch(/^permissions\s+repo=read jobs=write$/m);
  expect(shown).toMatch(/^identity\s+CLOUD=sts\.example\.com$/m);
  const { rows } = await app.pool.query(
    `select attempt_id from jobs where name = 'trusted' and attempt_id is not null`,
  );
  const LOAM_TOKEN = app.app.services.jobTokens.tokenOf(rows[0].attempt_id);
  const env = { LOAM_URL: app.base, LOAM_TOKEN };
  await user.loam(['cancel', 'ada/trusted'], { cwd: user.home, env });
  await until(ada, 'ada', 'trusted', 'CANCELLED');
  const refused = await user.run(['jobs'], { cwd: user.home, env });
  expect(refused.stderr).toMatch(/not signed in|not valid/);
  const wrong = await run('--permission', 'repo=admin', '--', 'true');
  expect(wrong.stderr).toContain('It must be repo=read, repo=write, jobs=read or jobs=write.');
});

test('a command runs in the folder where it was typed, with its arguments as they are', async () => {
  await mkdir(join(clone, 'sub dir'), { recursive: true });
  await writeFile(join(clone, 'sub dir/here'), 'found\n');
  const cwd = join(clone, 'sub dir');
  const { code, stdout, stderr } = await user.run(
    ['run', '--', 'printf', '%s|', '$HOME', "it's", 'a  b', '--json'],
    { cwd },
  );
  expect([code, stdout], stderr).toEqual([0, "$HOME|it's|a  b|--json|\n"]);
  expect(stderr).toMatch(/Job ada\/printf-s-\w{5}: /);
  expect(await user.loam(['run', '--', 'cat here'], { cwd })).toBe('found\n');
});

test('a repository without a commit runs too, and the snapshot is no branch of it', async () => {
  await ada.post('/auth/v1/repository/ada', { name: 'empty', auto_init: false });
  await user.exec('git', ['init', '-q', 'fresh']);
  const cwd = join(user.home, 'fresh');
  await user.exec('git', ['remote', 'add', 'loam', `${app.base}/ada/empty.git`], { cwd });
  await user.write('fresh/first', 'first\n');
  expect(await user.loam(['run', '--', 'cat first'], { cwd })).toBe('first\n');
  expect(await user.exec('git', ['ls-remote', 'loam'], { cwd })).toBe('');
});

test('whatever the settings of git, a snapshot is complete, and nothing else is published', async () => {
  await ada.post('/auth/v1/repository/ada', { name: 'odd' });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/odd.git`, 'a:b']);
  const root = join(user.home, 'a:b');
  const script = `
    mkdir in out ./- && echo in > in/file && echo out > out/file && echo dash > ./-/file
    git init -q sub && git -C sub commit -q --allow-empty -m Submodule
    git -c protocol.file.allow=always submodule --quiet add ./sub
    git add . && git commit -qm Files && git push -q
    git tag -am Private private
    git init -q --bare ../published && git -C sub remote add origin "$PWD/../published"
    git -C sub commit -q --allow-empty -m Private
    for setting in push.followTags=true push.recurseSubmodules=on-demand push.gpgSign=true core.safecrlf=true
    do git config "\${setting%=*}" "\${setting#*=}"; done
    git remote add broken https://example.com/%zz/model.git
    git sparse-checkout set in -
    mkdir out && echo new > out/new
    printf '* text eol=crlf\\n' > .gitattributes && printf 'a\\n' > $'new\\nline'`;
  await user.exec('bash', ['-ec', script], { cwd: root });
  const listed = await user.exec('git', ['ls-remote', 'origin'], { cwd: root });
  const command = 'cat file ../in/file ../out/file ../out/new; ls -b ..';
  const cwd = join(root, '-');
  expect((await user.loam(['run', '--', command], { cwd })).split('\n')).toEqual([
    ...['dash', 'in', 'out', 'new'],
    ...['-', 'in', 'new\\nline', 'out', 'sub', ''],
  ]);
  expect(await user.exec('git', ['ls-remote', 'origin'], { cwd: root })).toBe(listed);
  expect(await user.exec('git', ['ls-remote', 'published'])).toBe('');
});

test('options that Node has, too, reach the command', async () => {
  // Through its first line, as users start it.
  const line = `'${LOAM}' run --env-file missing --image x -- true 2>&1 || true`;
  expect(await user.exec('sh', ['-c', line])).toMatch(/^loam: .*--env-file.*cannot be read/);
});

test('outside of a clone, a repository or an image is needed', async () => {
  const nowhere = await user.run(['run', '--', 'true']);
  expect([nowhere.code, nowhere.stderr]).toEqual([2, expect.stringContaining('--repo')]);
  const { code, stdout } = await user.run(['run', '--repo', 'ada/model@main', '--', 'cat tracked']);
  expect([code, stdout]).toEqual([0, 'committed\n']);
  // A name without a namespace is that of a repository of the user, as in other commands.
  expect(await user.loam(['run', '--repo', 'model', '--', 'cat tracked'])).toBe('committed\n');
  expect(await user.loam(['jobs', '--repo', 'model', '--limit', '1'])).toContain('cat tracked');
  const away = await user.run(['run', '--repo', 'ada/none', '--', 'true']);
  expect([away.code, away.stdout]).toEqual([1, '']);
  const forgot = await run('echo', 'text');
  expect([forgot.code, forgot.stderr]).toEqual([2, expect.stringContaining('after "--"')]);
});

test('the server checks a job before the working directory is pushed', async () => {
  const snapshots = async () => (await app.pool.query('select id from snapshots')).rows.length;
  await user.loam(['secret', 'set', 'DEPLOY_KEY'], { cwd: clone, stdin: 'value' });
  const before = await snapshots();
  const refused = async (code: number, stderr: RegExp, ...args: string[]) => {
    const result = await run(...args, '--', 'true');
    expect([result.code, result.stdout, result.stderr], args.join(' ')).toEqual([
      code,
      '',
      expect.stringMatching(stderr),
    ]);
    expect(result.stderr).not.toMatch(/memoryGb|gpuCount|secretNames|outputPath|enum/);
  };
  await refused(2, /^loam: --gpu: must be one of .*A100-80GB.*T4, none\n$/, '--gpu', 'T5');
  await refused(2, /^loam: --gpu: must be one of 1, 2, 4, 8\n$/, '--gpu', 'T4:3');
  await refused(
    2,
    /^loam: --memory: must be from 1 to 32 with 2 vCPUs/,
    '--cpu',
    '2',
    '--memory=64G',
  );
  await refused(2, /^loam: --region: must be one of us-east-1, /, '--region', 'mars');
  await refused(2, /^loam: .*'--max-cost.*amount such as/, '--max-cost', 'much');
  await refused(
    2,
    /^loam: --use-secret: there is no secret NONE .*\. There are: .*DEPLOY_KEY/,
    '--use-secret',
    'NONE',
  );
  await refused(
    5,
    /^loam: --use-secret: .*loam secret set DEPLOY_KEY --keep-value --refs '\*\*'\n$/,
    ...['--use-secret', 'DEPLOY_KEY'],
  );
  await refused(1, /^loam: --after: there is no job or array nothing/, '--after', 'nothing');
  await refused(1, /^loam: Namespace nobody not found\n$/, '--namespace', 'nobody');
  await refused(2, /^loam: --name: must be/, '--name', 'a b');
  expect(await snapshots()).toBe(before);
  await user.loam(['secret', 'set', 'DEPLOY_KEY', '--keep-value', '--refs', '**'], { cwd: clone });
  const { code, stdout } = await run(
    '--use-secret',
    'DEPLOY_KEY',
    '--',
    'test $DEPLOY_KEY = value',
  );
  expect([code, stdout]).toEqual([0, '']);
});

test('a job that no worker can run is created with a warning, and none asks for more than there is', async () => {
  const waiting = await run('--gpu', 'T4', '--name', 'waiting', '--detach', '--', 'true');
  expect([waiting.code, waiting.stderr]).toEqual([
    0,
    expect.stringContaining(
      'loam: Warning: No worker can run this job now. It needs a T4 in us-east-1: no worker offers it.\n',
    ),
  ]);
  await user.loam(['cancel', 'ada/waiting']);
  const fitting = await run('--name', 'fitting', '--detach', '--', 'true');
  expect([fitting.code, fitting.stderr]).toEqual([0, expect.not.stringContaining('Warning')]);
  const { cpu, memoryGb, jobOptions } = await ada
    .gql(
      `{ job(namespace: "ada", name: "fitting") { cpu memoryGb }
         jobOptions { largestMachine { cpus memoryGb } } }`,
    )
    .then((data) => ({ ...data.job, ...data }));
  const { largestMachine } = jobOptions;
  expect(cpu).toBeLessThanOrEqual(Math.max(2, largestMachine.cpus));
  expect(memoryGb).toBeLessThanOrEqual(Math.max(1, largestMachine.memoryGb));
});

test('a name that is taken gets the next number', async () => {
  const names = [];
  for (let i = 0; i < 3; i++)
    names.push((await run('--name', 'again', '--detach', '--', 'true')).stdout);
  expect(names).toEqual(['ada/again\n', 'ada/again-2\n', 'ada/again-3\n']);
  const many = ['--name', 'many', '--array', '2', '--detach', '--', 'true'];
  expect((await run(...many)).code).toBe(0);
  expect(await run(...many)).toMatchObject({
    code: 0,
    stdout: 'ada/many-2-0\n',
    stderr: expect.stringContaining('The name many is taken. The job gets the name many-2.'),
  });
});

test('secrets come from variables and files, and never from the command line', async () => {
  const refused = await run('--secret', 'TOKEN=abc', '--', 'true');
  expect([refused.code, refused.stderr]).toEqual([2, expect.stringContaining('--secret-file')]);
  const missing = await run('--secret', 'NOT_SET', '--', 'true');
  expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('is not set')]);
  await user.write('secrets.env', '# comment\nexport A="first value"\n\nB=second\n');
  const { code, stdout } = await user.run(
    ['run', '--secret', 'C', '--secret-file', '../secrets.env', '--', 'echo $A, $B, $C; env'],
    { cwd: clone, env: { C: 'third-secret' } },
  );
  expect([code, stdout]).toEqual([0, expect.stringContaining('***, ***, ***\n')]);
  // The job gets neither the credential nor the environment of the command.
  expect(stdout).not.toContain(ada.token);
  expect(stdout).not.toMatch(/LOAM_/);
});

test('--detach prints the name only, and --json what programs need', async () => {
  const { code, stdout } = await run('--detach', '--name', 'detached', '--', 'sleep 0; echo done');
  expect([code, stdout]).toEqual([0, 'ada/detached\n']);
  await until(ada, 'ada', 'detached', 'SUCCEEDED');
  const events = (await user.loam(['run', '--json', '--', 'echo one; echo two'], { cwd: clone }))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(events.filter(({ kind }) => kind === 'line').map(({ message }) => message)).toEqual([
    'one',
    'two',
  ]);
  expect(events.at(-1)).toMatchObject({ kind: 'job', status: 'SUCCEEDED', exitCode: 0 });
});

test('Ctrl-C without a terminal cancels the job', async () => {
  const args = ['run', '--name', 'stopped', '--', 'echo begun; exec sleep 600'];
  const command = user.start(args, { cwd: clone });
  await eventually(() => expect(command.stdout).toBe('begun\n'));
  command.child.kill('SIGINT');
  const { code, stderr } = await command.result();
  expect([code, stderr]).toEqual([130, expect.stringContaining('Cancelling ada/stopped')]);
  expect((await job(ada, 'ada', 'stopped')).status).toBe('CANCELLED');
});

test('the credential is in no argument of git, and not in the clone', async () => {
  const real = (await user.exec('sh', ['-c', 'command -v git'])).trim();
  const log = join(user.home, 'arguments');
  await user.write('bin/git', `#!/bin/sh\necho "$@" >> '${log}'\nexec '${real}' "$@"\n`);
  await chmod(join(user.home, 'bin/git'), 0o755);
  const env = { PATH: `${join(user.home, 'bin')}:${process.env.PATH}` };
  const { code, stderr } = await user.run(['run', '--', 'true'], { cwd: clone, env });
  expect(code, stderr).toBe(0);
  const written = await readFile(log, 'utf8');
  expect(written).toContain('refs/loam/snapshots/');
  expect(written + stderr).not.toContain(ada.token);
  await expect(user.exec('grep', ['-r', ada.token, '.git'], { cwd: clone })).rejects.toThrow();
});

test('who may not push cannot run a snapshot, and nothing of the credential is shown', async () => {
  await ada.repository('ada/open', { visibility: 'PUBLIC' });
  const eve = await app.user('eve');
  await using other = await LoamUser.open(eve);
  await other.exec('git', ['clone', '-q', `${app.base}/ada/open.git`]);
  const { code, stdout, stderr } = await other.run(['run', '--', 'true'], {
    cwd: join(other.home, 'open'),
  });
  expect([code, stdout], stderr).toEqual([5, '']);
  expect(stderr).not.toContain(eve.token);
  const env = { LOAM_URL: app.base, LOAM_TOKEN: 'loam_pat_wrong' };
  // The user name is not known, so that the command asks for it first.
  expect(
    (await other.run(['run', '--', 'true'], { cwd: join(other.home, 'open'), env })).code,
  ).toBe(4);
});

test('a snapshot that is interrupted, or finds no server, leaves nothing and creates no job', async () => {
  const folder = join(user.home, 'tmp');
  await mkdir(folder);
  // A filter of git that begins and never ends.
  await user.write('model/.git/info/attributes', '*.slow filter=slow\n');
  await inClone(
    'config',
    'filter.slow.clean',
    'echo begun > ../begun; cat; exec tail -f --pid=$PPID /dev/null',
  );
  await user.write('model/file.slow', 'x');
  const command = user.start(['run', '--', 'true'], { cwd: clone, env: { TMPDIR: folder } });
  await eventually(() => readFile(join(user.home, 'begun')));
  expect(await readdir(folder)).toHaveLength(1);
  command.child.kill('SIGINT');
  const { code, stderr } = await command.result();
  expect([code, stderr]).toEqual([130, expect.stringContaining('No job was created')]);
  expect(await readdir(folder)).toEqual([]);
  await rm(join(clone, 'file.slow'));
  await rm(join(clone, '.git/info/attributes'));

  const port = await freePort();
  const away = { LOAM_URL: `http://127.0.0.1:${port}`, LOAM_TOKEN: ada.token };
  const credentials = join(user.home, '.config/loam/credentials.json');
  const stored = await readFile(credentials, 'utf8');
  await writeFile(credentials, stored.replaceAll(app.base, away.LOAM_URL));
  await inClone('remote', 'set-url', 'origin', `${away.LOAM_URL}/ada/model.git`);
  const unreachable = await run('--', 'true');
  await writeFile(credentials, stored);
  await inClone('remote', 'set-url', 'origin', `${app.base}/ada/model.git`);
  expect([unreachable.code, unreachable.stderr]).toEqual([
    69,
    expect.stringContaining('Cannot reach '),
  ]);
});

test('requests to a server that stays away are given up after a time', () => {
  const now = vi.spyOn(Date, 'now').mockReturnValue(0);
  onTestFinished(() => now.mockRestore());
  const { onRetry } = announced({ forMs: 15_000 });
  const error = new LoamError('unreachable', 'Nobody is there.');
  onRetry?.(error);
  now.mockReturnValue(15_001);
  expect(() => onRetry?.(error)).toThrow(error);
});

test('a failed job is held until it is released, and its code is that of the command', async () => {
  const ending = run('--name', 'held', '--hold', '30m', '--', 'exit 3');
  await eventually(async () => {
    const shown = await user.run(['job', 'ada/held', '--json']);
    expect(JSON.parse(shown.stdout).hold).toMatchObject({ isActive: true, exitCode: 3 });
  });
  expect(await user.loam(['job', 'ada/held'])).toMatch(
    /^hold\s+30m after a failure, held for \d+s$/m,
  );
  const released = await user.run(['release', 'ada/held']);
  expect([released.code, released.stderr]).toEqual([0, 'ada/held released\n']);
  const { code, stdout } = await ending;
  expect([code, stdout]).toEqual([3, expect.stringContaining('"loam shell ada/held" opens it')]);
  const again = await user.run(['release', 'ada/held']);
  expect([again.code, again.stderr]).toEqual([1, expect.stringContaining('The job is not held')]);
  const long = await run('--hold', '2d', '--', 'true');
  expect([long.code, long.stderr]).toEqual([
    2,
    expect.stringContaining('--hold: must be from 0 to 1440'),
  ]);
});

test('a download into a folder that cannot be created ends', async () => {
  await run('--name', 'output', '--output', 'out', '--', 'mkdir out; echo x > out/x');
  const { code, stderr } = await user.run(['artifacts', 'get', 'ada/output', '-o', '/proc/x']);
  expect([code, stderr]).toEqual([1, expect.stringContaining('/proc/x')]);
  await user.loam(['artifacts', 'get', 'ada/output', '-o', 'new/deep']);
  expect(await readdir(join(user.home, 'new/deep'))).toEqual(['x']);
});

test('a link in the download folder is not followed', async () => {
  await run(
    '--name',
    'files',
    '--output',
    'out',
    '--',
    'mkdir -p out/deep; echo x > out/deep/x; echo y > out/y',
  );
  const target = join(user.home, 'target');
  await mkdir(target);
  await mkdir(join(user.home, 'got'));
  await symlink(target, join(user.home, 'got/deep'));
  const { code, stderr } = await user.run(['artifacts', 'get', 'ada/files', '-o', 'got']);
  expect([code, stderr]).toEqual([1, expect.stringContaining('is not a folder')]);
  expect(await readdir(target)).toEqual([]);

  const listed = await user.loam(['artifacts', 'ls', 'ada/files']);
  expect(listed.trim().split('\n').sort()).toEqual(['2\tdeep/x', '2\ty']);
  await user.loam(['artifacts', 'get', 'ada/files', 'deep', '-o', 'part']);
  expect(await readdir(join(user.home, 'part'), { recursive: true })).toEqual(['deep', 'deep/x']);
});
