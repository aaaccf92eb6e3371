/**
 * `npm run bench:git-reads`: a tree, a file and a page of commits of a repository of 150,000 objects, read with the server's
 * reader, against the simplest possible use of `git cat-file --batch-command`. The same sequential reads in alternating rounds,
 * and also over REST, to show the cost of the other layers.
 *
 * Both start from a branch name. The simple reader has no pool and no totals: for a page of commits it follows parents, while
 * ours walks the commit-graph once and caches data that never changes.
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { CatFilePool } from '../src/git/objects/cat-file.ts';
import { HistoryCache, readHistory } from '../src/git/objects/history.ts';
import { parseTree, readText, readTree } from '../src/git/objects/read.ts';
import { locate, resolveCommit } from '../src/git/objects/resolve.ts';
import { git } from '../src/git/processes/run.ts';
import { FairSemaphore } from '../src/platform/limits/fair-semaphore.ts';
import { LARGE, makeRepository, median, openBench, TOKEN, time } from './repository.ts';

const ROUNDS = 5;
const READS = 300;
const folders = (i: number) => `src/folder-${i % LARGE.folders}`;

await using bench = await openBench();
const dir = join(bench.folder, 'large.git');
const made = await time(() => makeRepository(dir, LARGE));
await git(['commit-graph', 'write', '--reachable'], { dir, timeoutMs: 300_000 });
const stats = (await git(['count-objects', '-v'], { dir })).toString();
const count = (name: string) => Number(new RegExp(`^${name}: (\\d+)`, 'm').exec(stats)?.[1]);
console.log(
  `${count('in-pack')} objects, ${(count('size-pack') / 1_000).toFixed(0)} MB, made in ${(made / 1_000).toFixed(0)} s`,
);
const id = await bench.create('large');
await bench.workspace.git('large.git', 'push', '-q', bench.remote('large'), 'main');

await using pool = new CatFilePool();
const history = new HistoryCache(new FairSemaphore(8));
const plain = openPlain(dir);
const rest = (path: string) => async () => {
  const url = `${bench.server.base}/auth/v1/repository/admin/${id}/${path}`;
  const response = await fetch(url, { headers: { authorization: `Bearer ${TOKEN}` } });
  if (!response.ok) throw new Error(await response.text());
  await response.text();
};

const cases = [
  {
    name: 'tree of 27 entries with sizes',
    ours: (i: number) =>
      pool.use(dir, async (objects) => {
        const at = await locate(objects, 'main', folders(i));
        return (await readTree(objects, at?.object?.oid ?? '', { withPointers: false })).length;
      }),
    theirs: async (i: number) => {
      const [commit] = await plain.ask(['info refs/heads/main^{commit}']);
      const [tree] = await plain.ask([`contents ${commit?.oid}:${folders(i)}`]);
      const entries = parseTree(tree?.data as Buffer);
      return (await plain.ask(entries.map(({ sha }) => `info ${sha}`))).length;
    },
    rest: (i: number) => rest(`tree/${folders(i)}?ref=main`)(),
  },
  {
    name: 'file of 10 kB',
    ours: (i: number) =>
      pool.use(dir, async (objects) => {
        const at = await locate(objects, 'main', `${folders(i)}/file-3.txt`);
        return (await readText(objects, at?.object?.oid ?? ''))?.length;
      }),
    theirs: async (i: number) => {
      const [commit] = await plain.ask(['info refs/heads/main^{commit}']);
      const [blob] = await plain.ask([`contents ${commit?.oid}:${folders(i)}/file-3.txt`]);
      return blob?.data?.toString('utf8').length;
    },
    rest: (i: number) => rest(`file/${folders(i)}/file-3.txt?ref=main`)(),
  },
  {
    name: 'page of 20 commits',
    ours: async () => {
      const commit = await resolveCommit(pool, dir, 'main');
      const page = { skip: 0, take: 20 };
      return (await readHistory(pool, history, dir, commit ?? '', page)).commits.length;
    },
    theirs: async () => {
      let count = 0;
      for (let next = 'refs/heads/main^{commit}'; count < 20; count++) {
        const [commit] = await plain.ask([`contents ${next}`]);
        next = /^parent (\w+)/m.exec(commit?.data?.toString('utf8') ?? '')?.[1] ?? '';
      }
      return count;
    },
    rest: () => rest('commits/main')(),
  },
];

for (const { name, ours, theirs, rest } of cases) {
  const samples = { ours: [] as number[], theirs: [] as number[], rest: [] as number[] };
  if ((await ours(0)) !== (await theirs(0))) throw new Error(`${name}: the two answer differently`);
  await rest(0);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [who, read] of Object.entries({ ours, theirs, rest }))
      samples[who as keyof typeof samples].push(await repeat(read));
  }
  const [a, b, c] = [median(samples.ours), median(samples.theirs), median(samples.rest)];
  console.log(
    `${name}: ${a.toFixed(2)} ms, plain cat-file ${b.toFixed(2)} ms, ratio ${(a / b).toFixed(2)}×; over REST ${c.toFixed(2)} ms`,
  );
}
plain.end();

/** The average milliseconds of sequential reads. */
async function repeat(read: (i: number) => Promise<unknown>): Promise<number> {
  const total = await time(async () => {
    for (let i = 0; i < READS; i++) await read(i);
  });
  return total / READS;
}

type Answer = { oid: string; data?: Buffer };

/** The simplest client of `cat-file`: no limits, no missing objects, sequential requests. */
function openPlain(dir: string) {
  const child = spawn('git', ['-C', dir, 'cat-file', '--batch-command', '--buffer']);
  let buffer: Buffer = Buffer.alloc(0);
  let wake = () => {};
  child.stdout.on('data', (chunk: Buffer) => {
    buffer = buffer.length ? Buffer.concat([buffer, chunk]) : chunk;
    wake();
  });
  const more = () =>
    new Promise<void>((resolve) => {
      wake = resolve;
    });
  return {
    async ask(commands: string[]): Promise<Answer[]> {
      child.stdin.write(`${commands.join('\n')}\nflush\n`);
      const answers: Answer[] = [];
      for (const command of commands) {
        let end = buffer.indexOf(10);
        for (; end < 0; end = buffer.indexOf(10)) await more();
        const [oid = '', , size] = buffer.toString('latin1', 0, end).split(' ');
        const whole = command.startsWith('contents') ? end + 2 + Number(size) : end + 1;
        while (buffer.length < whole) await more();
        answers.push({ oid, data: buffer.subarray(end + 1, whole - 1) });
        buffer = buffer.subarray(whole);
      }
      return answers;
    },
    end: () => child.stdin.end(),
  };
}
