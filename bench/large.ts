/**
 * `npm run bench:large -- object|lfs|many|refs`: very large repositories over HTTP with stock git, against `file://`, once
 * each.
 *
 *   object   one file of 1.2 GB in git
 *   lfs      the same as a large file
 *   many     400,000 objects, about 300 MB in total
 *   refs     10,000 branches
 */
import { randomFillSync } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { freePort } from '../test/support/ports.ts';
import { openBackend } from './http-backend.ts';
import { openSsh } from './over-ssh.ts';
import { watch } from './process.ts';
import { makeRepository, openBench, type Shape, time } from './repository.ts';

const MB = 1_000_000;
const BYTES = 1_200 * MB;
const MANY: Shape = { commits: 80_000, folders: 40, files: 27, fileBytes: 4_400 };
const REFS = 10_000;
const PAGE = 100;

const port = await freePort();
await using bench = await openBench({ LOAM_SSH_PORT: `${port}` });
const { workspace, folder, server, graphql, remote } = bench;
const pid = server.child.pid as number;

/** Seconds, and the CPU and memory of the server alone. */
async function measured(what: string, work: () => Promise<unknown>): Promise<number> {
  const { seconds, cpuSeconds, before, peak } = await watch(pid, work);
  const moved = (peak - before) / MB;
  console.log(
    `${what}: ${seconds.toFixed(3)} s; the server took ${cpuSeconds.toFixed(2)} s of CPU and +${moved.toFixed(0)} MB`,
  );
  return seconds;
}

/** The same over `file://`, to and from a bare repository. */
async function compared(
  what: string,
  ours: () => Promise<unknown>,
  theirs: () => Promise<unknown>,
): Promise<void> {
  const floor = (await time(theirs)) / 1_000;
  const seconds = await measured(what, ours);
  console.log(`  over file:// ${floor.toFixed(2)} s: ${(seconds / floor).toFixed(2)}×`);
}

/** Pushes `refs` of the repository at `from`, and clones the result. */
async function pushAndClone(name: string, from: string, ...refs: string[]): Promise<void> {
  await bench.create(name);
  await workspace.git('.', 'init', '-q', '--bare', '-b', 'main', 'floor.git');
  const floor = `file://${join(folder, 'floor.git')}`;
  await compared(
    `push of ${name}`,
    () => workspace.git(from, 'push', '-q', remote(name), ...refs),
    () => workspace.git(from, 'push', '-q', floor, ...refs),
  );
  const clone = (url: string) => async () => {
    await workspace.git('.', 'clone', '-q', '--no-checkout', url, 'clone');
    await rm(join(folder, 'clone'), { recursive: true });
  };
  await compared(`clone of ${name}`, clone(remote(name)), clone(floor));
}

async function makeFile(path: string): Promise<void> {
  const noise = function* () {
    for (let left = BYTES; left > 0; left -= MB) yield randomFillSync(Buffer.alloc(MB));
  };
  await pipeline(Readable.from(noise()), createWriteStream(path));
}

async function object(): Promise<void> {
  await workspace.git('.', 'init', '-q', '-b', 'main', 'source');
  // No compression of the random bytes, because the time of the client is not of interest.
  await workspace.git('source', 'config', 'core.compression', '0');
  await makeFile(join(folder, 'source/file.bin'));
  await workspace.git('source', 'add', '.');
  await workspace.git('source', 'commit', '-q', '-m', 'large');
  await pushAndClone('object', 'source', 'main');
  const { repository } = await graphql(
    '{ repository(namespace: "admin", name: "object") { file(path: "file.bin") { downloadUrl } } }',
  );
  await measured('download of its file', () => drain(repository.file.downloadUrl));
}

async function lfs(): Promise<void> {
  await workspace.git('.', 'lfs', 'install');
  await workspace.git('.', 'init', '-q', '-b', 'main', 'source');
  await writeFile(join(folder, 'source/.gitattributes'), '*.bin filter=lfs diff=lfs merge=lfs\n');
  await makeFile(join(folder, 'source/file.bin'));
  await workspace.git('source', 'add', '.');
  await workspace.git('source', 'commit', '-q', '-m', 'large');
  await bench.create('lfs');
  const push = () => workspace.git('source', 'push', '-q', remote('lfs'), 'main');
  await measured('push of it as a large file', push);
  await measured('clone of it', () => workspace.git('.', 'clone', '-q', remote('lfs'), 'clone'));
}

async function many(): Promise<void> {
  await makeRepository(join(folder, 'source.git'), MANY);
  const stats = await workspace.git('source.git', 'count-objects', '-v');
  const count = (key: string) => Number(new RegExp(`^${key}: (\\d+)`, 'm').exec(stats)?.[1]);
  console.log(`${count('in-pack')} objects, ${(count('size-pack') / 1_000).toFixed(0)} MB`);
  await pushAndClone('many', 'source.git', 'main');
  const read =
    (fields: string, name = 'many') =>
    () =>
      graphql(`{ repository(namespace: "admin", name: "${name}") { ${fields} } }`);
  const path = 'src/folder-7/file-3.txt';
  await bench.create('warm');
  for (const [what, fields] of [
    ['the first 20 commits, and how many there are', 'commits { nodes { sha } totalCount }'],
    ['a directory', 'tree(path: "src/folder-7") { entries { name sizeBytes } }'],
    ['a file', `file(path: "${path}") { content }`],
    ['the commit of each line of it', `blame(path: "${path}") { line count }`],
    ['the last commit of each entry', 'tree(path: "src") { entries { name lastCommit { sha } } }'],
  ] as const) {
    // The status of the response does not matter.
    await read(fields, 'warm')().catch(() => {});
    await measured(what, read(fields));
    await measured('  again', read(fields));
  }
}

async function refs(): Promise<void> {
  await makeRepository(join(folder, 'source.git'), { ...MANY, commits: 1_000 });
  const commits = (await workspace.git('source.git', 'rev-list', 'main')).split('\n');
  const names = Array.from({ length: REFS }, (_, i) => `topic/${i}`);
  const lines = names.map((name, i) => `${commits[i % commits.length]} refs/heads/${name}\n`);
  await writeFile(
    join(folder, 'source.git/packed-refs'),
    `# pack-refs with: peeled fully-peeled\n${lines.join('')}`,
  );
  const all = 'refs/heads/*:refs/heads/*';
  await pushAndClone('refs', 'source.git', all);
  const ssh = await openSsh(bench, port);
  await bench.create('by-ssh');
  await measured('the same push over SSH', () =>
    workspace.git('source.git', '-c', ssh.config, 'push', '-q', ssh.remote('by-ssh'), all),
  );
  await using backend = await openBackend(folder);
  await workspace.git('.', 'init', '-q', '--bare', '-b', 'main', 'by-http.git');
  await measured('the same push to git http-backend', () =>
    workspace.git('source.git', 'push', '-q', `${backend.base}/by-http.git`, all),
  );
  const floor = `file://${join(folder, 'floor.git')}`;
  await compared(
    'ls-remote',
    () => workspace.git('source.git', 'ls-remote', remote('refs')),
    () => workspace.git('source.git', 'ls-remote', floor),
  );
  await compared(
    'push of one more',
    () => workspace.git('source.git', 'push', '-q', remote('refs'), 'main:refs/heads/one-more'),
    () => workspace.git('source.git', 'push', '-q', floor, 'main:refs/heads/one-more'),
  );
  await measured(`all branches, ${PAGE} a page`, async () => {
    let seen = 0;
    for (let after: string | null = null; ; ) {
      const { repository } = await graphql(
        `{ repository(namespace: "admin", name: "refs") { branches(first: ${PAGE}, after: ${JSON.stringify(after)}) { nodes { name } pageInfo { hasNextPage endCursor } } } }`,
      );
      const { nodes, pageInfo } = repository.branches;
      seen += nodes.length;
      if (!pageInfo.hasNextPage) break;
      after = pageInfo.endCursor;
    }
    if (seen !== REFS + 2) throw new Error(`${seen} branches`);
  });
}

async function drain(url: string): Promise<void> {
  const response = await fetch(url);
  let bytes = 0;
  for await (const chunk of response.body ?? []) bytes += chunk.length;
  if (bytes !== BYTES) throw new Error(`${bytes} bytes came`);
}

const parts: Record<string, () => Promise<void>> = { object, lfs, many, refs };
const part = parts[process.argv[2] ?? ''];
if (!part) throw new Error(`say which: ${Object.keys(parts).join(', ')}`);
await part();
