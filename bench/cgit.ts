/**
 * `npm run bench:cgit`: a tree, a file and a page of commits of a repository of 150,000 objects. Loam serves them over REST with
 * authentication and permissions; the peer is cgit behind nginx and fcgiwrap, which has neither. Requests are sequential on one
 * connection, rounds alternate, and the CPU time of all processes is measured on both sides.
 *
 * Our responses are JSON with more data (sizes, totals). Those of cgit are HTML, and the plain text of the file. Our server
 * caches the page of commits after the first request; cgit has no cache by default.
 */
import { join } from 'node:path';
import { openCgit } from './nginx.ts';
import { openAccount } from './process.ts';
import { LARGE, makeRepository, openBench, TOKEN } from './repository.ts';
import { alternate, type Side, show } from './sides.ts';

const READS = 20;
const EFFORT = { rounds: 15, warmUp: 5 };

await using bench = await openBench();
const dir = join(bench.folder, 'large.git');
await makeRepository(dir, LARGE);
await bench.workspace.git('large.git', 'commit-graph', 'write', '--reachable');
const id = await bench.create('large');
await bench.workspace.git('large.git', 'push', '-q', bench.remote('large'), 'main');

await using cgit = await openCgit(bench.folder, 'large', dir);
await using ours = await openAccount('ours', bench.server.child.pid as number);
await using theirs = await openAccount('theirs', cgit.pid);
const rest = `${bench.server.base}/auth/v1/repository/admin/${id}`;
const folderOf = (i: number) => `src/folder-${i % LARGE.folders}`;

const CASES = [
  {
    name: 'a tree of 27 entries',
    ours: (i: number) => `${rest}/tree/${folderOf(i)}?ref=main`,
    theirs: (i: number) => `${cgit.base}/large/tree/${folderOf(i)}?h=main`,
    shows: 'file-26.txt',
  },
  {
    name: 'a file of 10 kB',
    ours: (i: number) => `${rest}/file/${folderOf(i)}/file-3.txt?ref=main`,
    theirs: (i: number) => `${cgit.base}/large/plain/${folderOf(i)}/file-3.txt?h=main`,
    shows: '==',
  },
  {
    name: 'a page of 20 commits',
    ours: () => `${rest}/commits/main`,
    theirs: () => `${cgit.base}/large/log/?h=main`,
    shows: `change ${LARGE.commits - 20}`,
  },
];

for (const { name, shows, ...pages } of CASES) {
  const read = async (url: string) => {
    const response = await fetch(url, { headers: { authorization: `Bearer ${TOKEN}` } });
    const text = await response.text();
    if (!response.ok || !text.includes(shows)) throw new Error(`${url}: ${text.slice(0, 500)}`);
  };
  const sides: [Side, Side] = [
    { account: ours, url: 'ours', samples: [] },
    { account: theirs, url: 'theirs', samples: [] },
  ];
  await alternate(sides, EFFORT, async (who) => {
    for (let i = 0; i < READS; i++) await read(pages[who as keyof typeof pages](i));
  });
  show(`${READS} times ${name}`, ...(sides.map(({ samples }) => samples) as [[], []]));
}
