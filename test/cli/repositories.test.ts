/** `loam repo …`, `loam ls`, `loam cat` */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

test('a repository is created, pushed to, listed, changed and deleted', async () => {
  await using user = await LoamUser.open(ada);
  const created = await user.run(['repo', 'create', 'model', '--description', 'Weights']);
  expect([created.code, created.stdout]).toEqual([0, `${app.base}/ada/model\n`]);
  expect(created.stderr).toContain(`git remote add origin ${app.base}/ada/model.git`);

  // What it says works, whatever the name of the branch, because the repository is empty.
  await user.write('work/file', 'text\n');
  const cwd = join(user.home, 'work');
  await user.exec('git', ['init', '-q', '-b', 'master'], { cwd });
  const [, add = '', push = ''] = created.stderr.trim().split('\n  git ');
  for (const args of [['add', '-A'], ['commit', '-qm', 'Add'], add.split(' '), push.split(' ')])
    await user.exec('git', args, { cwd });

  const json = await user.loam([
    'repo',
    'create',
    'ada/other',
    '--visibility',
    'public',
    '--init',
    '--json',
  ]);
  expect(JSON.parse(json)).toMatchObject({ fullName: 'ada/other', visibility: 'PUBLIC' });
  const listed = await user.loam(['repo', 'list']);
  const [first = '', second = ''] = listed.split('\n').sort().slice(1);
  expect(first.split('\t')).toEqual([
    'ada/model',
    'private',
    expect.stringMatching(/B$/),
    expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
    'Weights',
  ]);
  expect(second).toMatch(/^ada\/other\tpublic\t/);
  expect(await user.loam(['repo', 'list', 'ada', '--visibility', 'public'])).not.toContain('model');
  expect(JSON.parse(await user.loam(['repo', 'list', '--limit', '1', '--json']))).toHaveLength(1);

  expect(await user.loam(['repo', 'rename', 'other', 'another'])).toBe('ada/another\n');
  await user.loam(['repo', 'visibility', 'another', 'internal']);
  expect(await user.loam(['repo', 'list', '--visibility', 'internal'])).toContain('ada/another');
  await app.organization('acme', { ada: 'ADMIN' });
  expect(await user.loam(['repo', 'transfer', 'another', 'acme'])).toBe('acme/another\n');

  // Without a terminal nobody can be asked.
  const refused = await user.run(['repo', 'delete', 'acme/another']);
  expect([refused.code, refused.stderr]).toEqual([2, expect.stringContaining('--yes')]);
  await user.loam(['repo', 'delete', 'acme/another', '--yes']);
  const gone = await user.run(['repo', 'delete', 'acme/another', '--yes']);
  expect([gone.code, gone.stderr]).toEqual([1, expect.stringContaining('not found')]);
});

test('on a terminal, a repository is deleted when its name is typed', async (ctx) => {
  needs(ctx, 'script');
  await using user = await LoamUser.open(ada);
  const wrong = await user.run(['repo', 'create', 'doomed', '--public']);
  expect([wrong.code, wrong.stderr]).toEqual([2, expect.stringContaining('--visibility public')]);
  await user.loam(['repo', 'create', 'doomed']);
  const answer = (text: string) =>
    user.exec(
      'script',
      ['-qec', `'${process.execPath}' '${LOAM}' repo delete doomed || true`, '/dev/null'],
      {
        stdin: text,
      },
    );
  expect(await answer('doomed\n')).toContain('The answer is not ada/doomed');
  expect(await user.loam(['repo', 'list'])).toContain('doomed');
  expect(await answer('ada/doomed\n')).toContain('Deleted ada/doomed');
  expect(await user.loam(['repo', 'list'])).not.toContain('doomed');
});

test('a clone needs no configuration of git, and keeps no credential', async () => {
  await using user = await LoamUser.open();
  const env = { LOAM_URL: app.base, LOAM_TOKEN: ada.token };
  await user.loam(['repo', 'create', 'cloned', '--init'], { env });
  await user.loam(['repo', 'clone', 'cloned', 'folder', '--depth', '1'], { env });
  const config = await readFile(join(user.home, 'folder/.git/config'), 'utf8');
  expect(config).toContain(`url = ${app.base}/ada/cloned.git`);
  expect(config).not.toContain(ada.token);
  const again = await user.run(['repo', 'clone', 'cloned', 'folder'], { env });
  expect([again.code, again.stderr]).toEqual([128, expect.stringContaining('already exists')]);
  const missing = await user.run(['repo', 'clone', 'ada/nothing'], { env });
  expect([missing.code, missing.stderr]).toEqual([1, 'loam: Repository ada/nothing not found\n']);
  expect((await user.run(['repo', 'clone', 'a/b/c'], { env })).code).toBe(2);
});

test('files are listed and read without a clone, byte for byte', async () => {
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'files']);
  await user.exec('git', ['clone', '-q', `${app.base}/ada/files.git`]);
  const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, at) => (at * 7) % 256));
  await user.write('files/src/main.py', 'print("ü")\n');
  await user.write('files/bom.txt', '\ufeffline\r\n');
  const cwd = join(user.home, 'files');
  await writeFile(join(cwd, 'data.bin'), bytes);
  await user.exec('ln', ['-s', 'bom.txt', 'link'], { cwd });
  for (const args of [
    ['add', '-A'],
    ['commit', '-qm', 'Add'],
    ['push', '-q', 'origin', 'HEAD:main', 'HEAD:feature/x'],
  ])
    await user.exec('git', args, { cwd });

  expect(await user.loam(['ls', 'files'])).toBe(
    'folder\t\tsrc/\nfile\t9 B\tbom.txt\nfile\t293 KiB\tdata.bin\nlink\t7 B\tlink\n',
  );
  expect(await user.loam(['ls', 'ada/files@feature/x', '/src/'])).toBe('file\t12 B\tmain.py\n');
  const [entry] = JSON.parse(await user.loam(['ls', 'ada/files', 'src', '--json']));
  expect(entry).toMatchObject({ name: 'main.py', type: 'FILE', sizeBytes: 12 });
  expect(await user.loam(['cat', 'files@main', 'src/main.py'])).toBe('print("ü")\n');
  await user.exec('sh', ['-c', `'${process.execPath}' '${LOAM}' cat files data.bin > out.bin`]);
  expect((await readFile(join(user.home, 'out.bin'))).equals(bytes)).toBe(true);
  expect(await user.loam(['cat', 'files', 'bom.txt'])).toBe('\ufeffline\r\n');

  const missing = await user.run(['cat', 'files', 'nothing']);
  expect([missing.code, missing.stdout, missing.stderr]).toEqual([
    1,
    '',
    'loam: File nothing not found\n',
  ]);
  expect((await user.run(['ls', 'files@nowhere'])).code).toBe(1);
});

test('a file cannot control the terminal', async (ctx) => {
  needs(ctx, 'script');
  await using user = await LoamUser.open(ada);
  await user.loam(['repo', 'create', 'hostile']);
  await user.exec('git', ['clone', '-q', `${app.base}/ada/hostile.git`]);
  await user.write('hostile/a\x1b]0;title\x07', 'x');
  await user.write('hostile/b\x9b2J\u202e', 'x');
  await user.write('hostile/text', 'one \x1b]0;title\x07\x1b[2Jtwo\n');
  await user.write('hostile/binary', 'a\0b');
  const cwd = join(user.home, 'hostile');
  for (const args of [
    ['add', '-A'],
    ['commit', '-qm', 'Add'],
    ['push', '-q', 'origin', 'HEAD:main'],
  ])
    await user.exec('git', args, { cwd });
  const show = (words: string) =>
    user.exec('script', ['-qec', `'${process.execPath}' '${LOAM}' ${words} || true`, '/dev/null']);
  expect(await show('cat hostile text')).toBe('one two\r\n');
  expect(await show('cat hostile binary')).toContain('Redirect stdout to a file');
  expect(await show('ls hostile')).toContain('a\\u{1b}]0;title\\u{7}');
  const json = await user.loam(['ls', 'hostile', '--json']);
  expect(json).toContain('b\\u009b2J\\u202e');
  const names = JSON.parse(json).map(({ name }: { name: string }) => name);
  expect(names).toContain('b\x9b2J\u202e');
});
