/**
 * `npm run bench:cli [pairs] [files]`: the `loam` command against what it replaces. Both sides alternate, and the first runs do
 * not count.
 *
 * - Start-up: `loam version` against `node -e 0`.
 * - From the start of `loam run` until the first line of the job is printed, against the REST request that creates the same job
 *   and a follower of its log. `loam run` runs with `--repo`, and in a clone with a change that is not committed.
 * - `loam run --detach` in a clone of 100,000 files with one change, until the job is created, against `git add` and `git commit`
 *   of that change.
 * - `loam artifacts get` of 1 GB, against `curl` of the same link.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFile, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { buildPrograms } from '../src/programs/build.ts';
import { createJob, firstLine } from './jobs.ts';
import { median, openBench, TOKEN, time } from './repository.ts';

const run = promisify(execFile);
const PAIRS = Number(process.argv[2] ?? 10);
const FILES = Number(process.argv[3] ?? 100_000);
const FILES_PER_FOLDER = 100;
const WARM_UP = 3;
const LOAM = join(import.meta.dirname, '../dist/cli/loam.mjs');
const COMMAND = 'echo first line';
const ARTIFACT_BYTES = 1e9;
/** Downloads of the artifact by each side: they take seconds. */
const DOWNLOADS = 5;

let jobs = 0;

await buildPrograms();
await using bench = await openBench({ LOAM_RUNNER: 'process' });
const { base } = bench.server;
const home = join(bench.folder, 'home');
await mkdir(home);
const env = {
  PATH: process.env.PATH,
  HOME: home,
  GIT_AUTHOR_NAME: 'Ada',
  GIT_AUTHOR_EMAIL: 'ada@example.com',
  GIT_COMMITTER_NAME: 'Ada',
  GIT_COMMITTER_EMAIL: 'ada@example.com',
};
await signIn();
await measureStart();
const small = await openClone('small', 10);
await measureFirstLine('--repo', ['--repo', 'admin/small'], home);
await measureFirstLine('in a clone with a change', [], small);
await measureManyFiles();
await measureDownload();

async function signIn(): Promise<void> {
  const child = loam(['login', base, '--token', '-'], home);
  child.stdin?.end(TOKEN);
  await once(child, 'close');
}

async function measureStart(): Promise<void> {
  const { ours, theirs } = await pairs(
    // In a home without a login, so that it does not ask a server for its version.
    () => run(process.execPath, [LOAM, 'version'], { env: { HOME: bench.folder } }),
    () => run(process.execPath, ['-e', '0']),
    PAIRS * 2,
  );
  console.log(
    `loam version, ${PAIRS * 2} pairs: ${ours.toFixed(0)} ms; node -e 0 ${theirs.toFixed(0)} ms: ${(ours / theirs).toFixed(2)}×`,
  );
}

async function measureFirstLine(title: string, options: string[], cwd: string): Promise<void> {
  let ended: Promise<unknown> = Promise.resolve();
  const { ours, theirs } = await pairs(
    async () => {
      await ended;
      if (cwd === small) await appendFile(join(cwd, '0/0.txt'), 'changed\n');
      const child = loam(['run', ...options, '--', COMMAND], cwd);
      ended = once(child, 'close');
      await once(child.stdout as NonNullable<typeof child.stdout>, 'data');
    },
    async () => {
      await ended;
      const name = `rest-${jobs++}`;
      await createJob(base, { repo: 'admin/small', name, command: COMMAND });
      ended = (await firstLine(base, name)).ended;
    },
    PAIRS,
  );
  await ended;
  console.log(
    `loam run → first line, ${title}, ${PAIRS} pairs: ${ours.toFixed(0)} ms; REST ${theirs.toFixed(0)} ms: ${(ours - theirs).toFixed(0)} ms more`,
  );
}

async function measureManyFiles(): Promise<void> {
  const clone = await openClone('many', FILES);
  const changed = join(clone, '0/0.txt');
  const change = () => appendFile(changed, `changed ${jobs++}\n`);
  const { ours, theirs } = await pairs(
    async () => {
      await change();
      await once(loam(['run', '--detach', '--', 'true'], clone), 'close');
    },
    async () => {
      await change();
      await git(clone, 'add', '--all');
      await git(clone, 'commit', '-q', '-m', 'change');
    },
    PAIRS,
  );
  console.log(
    `loam run --detach, ${FILES} files and one change, ${PAIRS} pairs: ${ours.toFixed(0)} ms; git add and commit ${theirs.toFixed(0)} ms: ${(ours - theirs).toFixed(0)} ms more`,
  );
}

async function measureDownload(): Promise<void> {
  const name = 'large';
  const command = `mkdir out; head -c ${ARTIFACT_BYTES} /dev/urandom > out/file`;
  await createJob(base, { repo: 'admin/small', name, command, output_path: 'out' });
  await loamJson(['wait', name]);
  const [file] = (await loamJson(['artifacts', 'ls', name, '--json'])) as [{ downloadUrl: string }];
  const target = join(bench.folder, 'downloaded');
  const { ours, theirs } = await pairs(
    async () => {
      await rm(target, { recursive: true, force: true });
      await once(loam(['artifacts', 'get', name, '--out', target], home), 'close');
    },
    async () => {
      await rm(target, { recursive: true, force: true });
      await run('curl', ['-sSf', '--create-dirs', '-o', join(target, 'file'), file.downloadUrl]);
    },
    DOWNLOADS,
  );
  console.log(
    `loam artifacts get of 1 GB, ${DOWNLOADS} pairs: ${(ours / 1_000).toFixed(2)} s; curl ${(theirs / 1_000).toFixed(2)} s: ${(ours / theirs).toFixed(2)}×`,
  );
}

/** Runs both sides in turn. @returns the median of each in milliseconds */
async function pairs(
  our: () => Promise<unknown>,
  their: () => Promise<unknown>,
  count: number,
): Promise<{ ours: number; theirs: number }> {
  const ours: number[] = [];
  const theirs: number[] = [];
  for (let i = -Math.min(WARM_UP, count); i < count; i++) {
    const [a, b] = [await time(our), await time(their)];
    if (i < 0) continue;
    ours.push(a);
    theirs.push(b);
  }
  return { ours: median(ours), theirs: median(theirs) };
}

/** Its exit code is that of the job, which is 0: another one ends the benchmark. */
function loam(args: string[], cwd: string): ChildProcess {
  const child = spawn(process.execPath, [LOAM, ...args], { cwd, env, stdio: 'pipe' });
  let said = '';
  child.stderr.on('data', (text) => {
    said += text;
  });
  child.once('close', (code) => {
    if (code !== 0) throw new Error(`loam ${args.join(' ')} ended with ${code}: ${said}`);
  });
  return child;
}

async function loamJson(args: string[]): Promise<unknown> {
  const { stdout } = await run(process.execPath, [LOAM, ...args], { env, cwd: home });
  return stdout === '' ? null : JSON.parse(stdout);
}

function git(cwd: string, ...args: string[]): Promise<unknown> {
  return run('git', args, { cwd, env });
}

/** A clone of a new repository with that many files, all of them pushed. */
async function openClone(name: string, files: number): Promise<string> {
  await bench.create(name);
  const clone = join(bench.folder, name);
  await git(bench.folder, 'init', '-q', '-b', 'main', clone);
  for (let i = 0; i < files; i++) {
    const folder = join(clone, String(Math.floor(i / FILES_PER_FOLDER)));
    if (i % FILES_PER_FOLDER === 0) await mkdir(folder);
    await writeFile(join(folder, `${i % FILES_PER_FOLDER}.txt`), `file ${i}\n`);
  }
  await git(clone, 'add', '--all');
  await git(clone, 'commit', '-q', '-m', 'files');
  await git(clone, 'push', '-q', bench.remote(name), 'main');
  await git(clone, 'remote', 'add', 'origin', `${base}/admin/${name}.git`);
  return clone;
}
