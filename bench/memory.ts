/**
 * `npm run bench:memory`: the resident memory of an idle server, and its growth while 200 MB are pushed, cloned and downloaded, and
 * while a directory of a 236 MB repository is read. Fails above 100 MB.
 *
 * Measures only the process of the server, from /proc every 20 ms; git runs in processes of its own.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { residentOf, watch } from './process.ts';
import { LARGE, makeRepository, openBench } from './repository.ts';

const LIMIT_MB = 100;
const MB = 1_000_000;
const PAYLOAD = 200 * MB;
/** By then, the memory used for the start is freed. */
const IDLE_MS = 12_000;

await using bench = await openBench();
const { workspace, server, graphql, remote } = bench;
const pid = server.child.pid as number;
let failed = false;

await delay(IDLE_MS);
console.log(
  `idle, ${IDLE_MS / 1_000} s after the start: ${((await residentOf(pid)) / MB).toFixed(0)} MB`,
);

// Small runs first, so that code that is loaded on first use does not count.
await bench.create('warm');
await workspace.git('.', 'init', '-q', '-b', 'main', 'warm');
await workspace.commit('warm', { 'a.txt': 'a'.repeat(2_000_000) });
await workspace.git('warm', 'push', '-q', remote('warm'), 'main');
await workspace.git('.', 'clone', '-q', remote('warm'), 'warm-clone');
await download('warm', 'a.txt');

await bench.create('big');
await workspace.git('.', 'init', '-q', '-b', 'main', 'big');
await workspace.commit('big', { 'big.bin': randomBytes(PAYLOAD) });
await measured('push of 200 MB', () => workspace.git('big', 'push', '-q', remote('big'), 'main'));
await measured('clone of 200 MB', () =>
  workspace.git('.', 'clone', '-q', remote('big'), 'big-clone'),
);
await measured('download of 200 MB', () => download('big', 'big.bin'));

await makeRepository(join(bench.folder, 'large.git'), LARGE);
await bench.create('large');
await measured('push of 236 MB in 150,000 objects', () =>
  workspace.git('large.git', 'push', '-q', remote('large'), 'main'),
);
await measured('tree of 27 entries in it, 200 times', async () => {
  for (let i = 0; i < 200; i++)
    await graphql(
      `{ repository(namespace: "admin", name: "large") { tree(path: "src/folder-${i % 40}") { entries { name sizeBytes } } } }`,
    );
});
process.exitCode = failed ? 1 : 0;

async function measured(what: string, work: () => Promise<unknown>): Promise<void> {
  const { seconds, before, peak } = await watch(pid, work);
  const moved = (peak - before) / MB;
  failed ||= moved >= LIMIT_MB;
  console.log(
    `${what}: +${moved.toFixed(0)} MB over ${(before / MB).toFixed(0)} MB, ${seconds.toFixed(1)} s`,
  );
}

async function download(name: string, path: string): Promise<void> {
  const { repository } = await graphql(
    `{ repository(namespace: "admin", name: "${name}") { file(path: "${path}") { sizeBytes downloadUrl } } }`,
  );
  const response = await fetch(repository.file.downloadUrl);
  let bytes = 0;
  for await (const chunk of response.body ?? []) bytes += chunk.length;
  if (bytes !== repository.file.sizeBytes) throw new Error(`${bytes} bytes came`);
}
