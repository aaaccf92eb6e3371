/** Answers to `ls-refs` without a git process equal those of git, byte for byte. */
import { execFileSync } from 'node:child_process';
import { getEventListeners } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { answerLsRefs, parseLsRefs, peekRequest } from '../../src/git/transport/ls-refs.ts';
import { FLUSH, pktLine } from '../../src/git/transport/pkt-line.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'loam-ls-refs-'));
});
afterAll(() => rm(folder, { recursive: true }));

const person = { GIT_COMMITTER_NAME: 'A', GIT_COMMITTER_EMAIL: 'a@b.c' };
const author = { GIT_AUTHOR_NAME: 'A', GIT_AUTHOR_EMAIL: 'a@b.c' };
const git = (dir: string, args: string[], input: string | Buffer = '', env = {}) =>
  execFileSync('git', args, {
    cwd: dir,
    input,
    env: { PATH: process.env.PATH, ...person, ...author, ...env },
    stdio: ['pipe', 'pipe', 'ignore'],
  });

/** @returns a bare repository, and the ids of two commits in it */
function made(name: string): { dir: string; commits: [string, string] } {
  const dir = join(folder, name);
  git(folder, ['init', '-q', '--bare', '-b', 'main', dir]);
  const tree = git(dir, ['mktree']).toString().trim();
  const commit = (text: string) => git(dir, ['commit-tree', '-m', text, tree]).toString().trim();
  return { dir, commits: [commit('one'), commit('two')] };
}

const CLIENT = ['command=ls-refs\n', 'agent=git/2.39.5', 'object-format=sha1'];
function requestOf(args: readonly string[], before: readonly string[] = CLIENT): Buffer {
  const lines = args.map((line) => pktLine(`${line}\n`)).join('');
  return Buffer.from(`${before.map(pktLine).join('')}0001${lines}${FLUSH}`);
}
const USUAL = requestOf([
  ...['peel', 'symrefs', 'unborn'],
  ...['ref-prefix HEAD', 'ref-prefix refs/heads/', 'ref-prefix refs/tags/'],
]);

const byGit = (dir: string, request: Buffer): string =>
  git(dir, ['upload-pack', '--stateless-rpc', dir], request, {
    GIT_PROTOCOL: 'version=2',
  }).toString();

async function byUs(dir: string, request: Buffer): Promise<string | null> {
  const asked = parseLsRefs(request);
  return asked && answerLsRefs(dir, asked);
}

test('answers for an empty repository, for branches, and for packed tags equal those of git', async () => {
  const { dir, commits } = made('usual');
  const same = async () => {
    const answer = await byUs(dir, USUAL);
    expect(answer).toBe(byGit(dir, USUAL));
    return answer;
  };
  expect(await same()).toContain('unborn HEAD symref-target:refs/heads/main');
  git(dir, ['update-ref', 'refs/heads/other', commits[0]]);
  expect(await same()).toContain('unborn HEAD');
  git(dir, ['update-ref', 'refs/heads/main', commits[1]]);
  expect(await same()).toContain(`${commits[1]} HEAD symref-target:refs/heads/main`);
  git(dir, ['tag', '-a', '-m', 'a', 'annotated', commits[0]]);
  git(dir, ['tag', '-a', '-m', 'b', 'nested', 'annotated']);
  git(dir, ['tag', 'light', commits[0]]);
  // The file of a loose tag does not contain its target.
  expect(await byUs(dir, USUAL)).toBeNull();
  git(dir, ['pack-refs', '--all']);
  expect(await same()).toContain(`refs/tags/nested peeled:${commits[0]}`);
  git(dir, ['update-ref', 'refs/heads/main', commits[0]]);
  git(dir, ['update-ref', 'refs/heads/z', commits[0]]);
  expect(await same()).toContain(`${commits[0]} HEAD`);
});

test('git must answer for symbolic refs, a detached HEAD and a missing HEAD', async () => {
  const { dir, commits } = made('unusual');
  git(dir, ['update-ref', 'refs/heads/main', commits[0]]);
  expect(await byUs(dir, USUAL)).not.toBeNull();
  git(dir, ['symbolic-ref', 'refs/heads/link', 'refs/heads/main']);
  expect(await byUs(dir, USUAL)).toBeNull();
  git(dir, ['symbolic-ref', '--delete', 'refs/heads/link']);
  await writeFile(join(dir, 'HEAD'), `${commits[0]}\n`);
  expect(await byUs(dir, USUAL)).toBeNull();
  await rm(join(dir, 'HEAD'));
  expect(await byUs(dir, USUAL)).toBeNull();
});

test('all combinations of arguments are answered like git does', async () => {
  const { dir, commits } = made('many');
  const names = ['main', 'a/b', 'a-b', 'a.b', 'ä', '\u{1f33e}', '\uffee', 'main2', 'tag/v1'];
  for (const [i, name] of names.entries())
    git(dir, ['update-ref', `refs/heads/${name}`, commits[i % 2] as string]);
  git(dir, ['tag', '-a', '-m', 'a', 'v1', commits[0]]);
  git(dir, ['pack-refs', '--all']);
  for (const name of names.slice(2, 6)) git(dir, ['update-ref', `refs/heads/${name}`, commits[0]]);
  const flags = ['peel', 'symrefs', 'unborn'];
  const prefixes = [
    [],
    ['HEAD'],
    [''],
    ['refs/heads/a', 'refs/tags/'],
    ['refs/heads/', 'refs/heads/a'],
    ['refs/heads/ä', 'refs/none'],
    ['HEAD', 'refs/heads/', 'refs/tags/'],
  ];
  for (const some of prefixes)
    for (let chosen = 0; chosen < 8; chosen++) {
      const of = some.map((prefix) => `ref-prefix ${prefix}`);
      const args = [...flags.filter((_, i) => chosen & (1 << i)), ...of];
      expect(await byUs(dir, requestOf(args)), args.join(', ')).toBe(byGit(dir, requestOf(args)));
    }
});

test('git must answer incomplete, longer and other requests', () => {
  for (let length = 0; length < USUAL.length; length++)
    expect(parseLsRefs(USUAL.subarray(0, length))).toBeNull();
  expect(parseLsRefs(USUAL)).not.toBeNull();
  const others = [
    Buffer.concat([USUAL, Buffer.from('0000')]),
    requestOf([], ['command=fetch\n']),
    requestOf(['peel', 'server-option=x']),
    requestOf([], [...CLIENT, 'object-format=sha256']),
    requestOf([], [...CLIENT, 'server-option=x']),
    requestOf(Array.from({ length: 101 }, (_, i) => `ref-prefix refs/heads/${i}`)),
    Buffer.from('0003'),
    Buffer.from('fffffffff'),
  ];
  for (const request of others) expect(parseLsRefs(request)).toBeNull();
});

test('git can still read the beginning of a request after it was peeked at', async () => {
  const { signal } = new AbortController();
  const whole = async (input: PassThrough) => Buffer.concat(await input.toArray()).toString();
  const input = new PassThrough();
  const beginning = peekRequest(input, signal);
  input.write('one');
  expect(String(await beginning)).toBe('one');
  input.end('two');
  expect(await whole(input)).toBe('onetwo');
  const empty = new PassThrough();
  empty.end();
  expect(await peekRequest(empty, signal)).toBeNull();
  expect(await whole(empty)).toBe('');
  const broken = new PassThrough().on('error', () => {});
  broken.destroy(new Error('cut off'));
  expect(await peekRequest(broken, signal)).toBeNull();
  expect(await peekRequest(new PassThrough(), AbortSignal.abort())).toBeNull();
  // The signal lives as long as the server, so each request must remove its listener.
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});
