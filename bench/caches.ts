/**
 * `npm run bench:caches [files] [MiB]`: a job saves a tree of files as a cache, another restores it, in alternation with
 * `tar | zstd` and `zstd -d | tar` of the same tree on the same disk, synced. Then a job changes one file, and the bytes that
 * the storage gets are compared with the first save. By default 20,000 files of together 400 MiB; half of the bytes compress.
 *
 * The times are those that the server records: from the end of the command to the end of the job, and from the creation to the
 * start of the command, less those of a job without a cache.
 */
import { execFile } from 'node:child_process';
import { mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { median, openBench } from './repository.ts';

const run = promisify(execFile);
const [files = 20_000, mib = 400] = process.argv.slice(2).map(Number);
const ROUNDS = 3;
const FILES_IN_FOLDER = 100;

/** Makes the same tree each time, in the current folder: half of each file is noise. */
const MAKE = `perl -e '
my ($files, $bytes, $seed) = @ARGV; srand($seed);
for my $i (0 .. $files - 1) {
  my $dir = "tree/" . int($i / ${FILES_IN_FOLDER}); mkdir "tree"; mkdir $dir;
  my $noise = join "", map { pack "N", int rand 2 ** 32 } 1 .. $bytes / 8;
  open my $f, ">", "$dir/file-$i"; print $f $noise, substr("line $i of the file\\n" x $bytes, 0, $bytes / 2); close $f;
  utime 1e9, 1e9, "$dir/file-$i";
}' ${files} ${Math.floor((mib * 2 ** 20) / files)}`;

await using bench = await openBench({ LOAM_RUNNER: 'process' });
const { folder, server, graphql } = bench;
await bench.create('code');
await bench.workspace.git('.', 'init', '-q', '-b', 'main', 'code');
await writeFile(join(folder, 'code/file'), 'file');
await bench.workspace.git('code', 'add', '.');
await bench.workspace.git('code', 'commit', '-qm', 'first');
await bench.workspace.git('code', 'push', '-q', bench.remote('code'), 'main');

let jobs = 0;
type Times = { prepared: number; finished: number };

/** In seconds. */
async function runJob(command: string, key: string | null, restoreKey = 'none'): Promise<Times> {
  const name = `job-${++jobs}`;
  const cache =
    key === null ? '' : `cache: [{ path: "tree", key: "${key}", restoreKeys: ["${restoreKey}"] }]`;
  await graphql(`mutation { createJob(input: { namespace: "admin", name: "${name}", repo: "admin/code", gpu: NONE,
    diskGb: 20, command: ${JSON.stringify(command)}, ${cache} }) { job { name } } }`);
  for (;;) {
    const { job } = await graphql(
      `{ job(namespace: "admin", name: "${name}") { status progress createdAt completedAt caches { problem }
        attempts { nodes { startedAt exitedAt } } } }`,
    );
    const [attempt] = job.attempts.nodes;
    const problem = job.caches.find((one: { problem: string | null }) => one.problem);
    if (['FAILED', 'CANCELLED'].includes(job.status) || problem)
      throw new Error(`${name}: ${job.progress} ${problem?.problem ?? ''}`);
    if (job.completedAt) {
      const between = (from: string, to: string) => (Date.parse(to) - Date.parse(from)) / 1000;
      return {
        prepared: between(job.createdAt, attempt.startedAt),
        finished: between(attempt.exitedAt ?? job.completedAt, job.completedAt),
      };
    }
    await delay(50);
  }
}

async function seconds(script: string, cwd: string): Promise<number> {
  const at = performance.now();
  await run('bash', ['-euo', 'pipefail', '-c', script], { cwd });
  return (performance.now() - at) / 1000;
}

async function storedBytes(): Promise<number> {
  const root = join(folder, 'data/storage/lfs');
  let sum = 0;
  for (const name of await readdir(root, { recursive: true }).catch(() => []))
    sum += await stat(join(root, name)).then((found) => (found.isFile() ? found.size : 0));
  return sum;
}

const plain = join(folder, 'plain');
await mkdir(plain);
const times: Record<'save' | 'tarSave' | 'restore' | 'tarRestore', number[]> = {
  save: [],
  tarSave: [],
  restore: [],
  tarRestore: [],
};
const empty = await runJob('true', null);
let first = 0;
let changed = 0;
for (let round = 1; round <= ROUNDS; round++) {
  await run('bash', ['-c', `rm -rf tree && ${MAKE} ${round}`], { cwd: plain });
  times.tarSave.push(
    await seconds('tar -cf - tree | zstd -q -T2 -o all.zst -f && sync all.zst', plain),
  );
  const before = await storedBytes();
  times.save.push((await runJob(`${MAKE} ${round}`, `tree-${round}`)).finished);
  first = (await storedBytes()) - before;
  times.tarRestore.push(
    await seconds('rm -rf out && mkdir out && zstd -dc all.zst | tar -xf - -C out', plain),
  );
  const { prepared } = await runJob('test -e tree/0/file-0', `tree-${round}`);
  times.restore.push(prepared - empty.prepared);
  const middle = await storedBytes();
  await runJob('echo changed > tree/0/file-7', `changed-${round}`, `tree-${round}`);
  changed = (await storedBytes()) - middle;
}

const show = (name: string, own: number[], other: number[]) =>
  console.log(
    `${name}: Loam ${median(own).toFixed(2)} s, tar and zstd ${median(other).toFixed(2)} s, ratio ${(median(own) / median(other)).toFixed(2)}`,
  );
console.log(`${files} files, ${mib} MiB, ${ROUNDS} rounds, server ${server.base}`);
show('save', times.save, times.tarSave);
show('restore', times.restore, times.tarRestore);
console.log(
  `stored: ${(first / 1e6).toFixed(1)} MB, with one changed file ${(changed / 1e6).toFixed(2)} MB more, ${((100 * changed) / first).toFixed(2)} %`,
);
