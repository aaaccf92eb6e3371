/**
 * `npm run bench:inputs [GB]`: from creating a job until its first line, for a job with a data repository of so many GB of large
 * files as input: copied into the working directory of each job; read only, where the first job on the machine fills the shared copy;
 * and read only, with that copy. The machine needs bubblewrap and three times the space.
 */
import { createHash, randomFillSync } from 'node:crypto';
import { firstLine } from './jobs.ts';
import { median, openBench, TOKEN } from './repository.ts';

const GB = Number(process.argv[2] ?? 1);
const FILE_BYTES = 64 * 2 ** 20;
const FILES = Math.ceil((GB * 1e9) / FILE_BYTES);
const ROUNDS = 5;

await using bench = await openBench({ LOAM_RUNNER: 'process' });
const { base } = bench.server;
const code =
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }';
await bench.graphql(code);
const id = await bench.create('data');
const changes: { path: string; content: string }[] = [];
for (let i = 0; i < FILES; i++) {
  const body = randomFillSync(Buffer.alloc(FILE_BYTES));
  const oid = createHash('sha256').update(body).digest('hex');
  const headers = { authorization: `Basic ${Buffer.from(`x:${TOKEN}`).toString('base64')}` };
  const url = `${base}/admin/data.git/info/lfs/objects/${oid}`;
  const { status } = await fetch(url, { method: 'PUT', headers, body });
  if (status !== 200) throw new Error(`the upload was answered ${status}`);
  const content = `version https://git-lfs.github.com/spec/v1\noid sha256:${oid}\nsize ${FILE_BYTES}\n`;
  changes.push({ path: `train/${i}.bin`, content });
}
const list = changes
  .map(({ path, content }) => `{path: "${path}", content: ${JSON.stringify(content)}}`)
  .join();
await bench.graphql(
  `mutation { createCommit(input: {id: "${id}", branch: "main", message: "data", changes: [${list}]}) { commit { sha } } }`,
);

/** @returns milliseconds until the first line of the job */
async function start(name: string, readOnly: boolean): Promise<number> {
  const from = Date.now();
  await bench.graphql(
    `mutation { createJob(input: {namespace: "admin", name: "${name}", repo: "admin/code", gpu: NONE, diskGb: 500
      command: "wc -c < data/0.bin", inputs: [{repo: "admin/data", path: "train", to: "data", readOnly: ${readOnly}}]}) { job { id } } }`,
  );
  const { arrived, ended } = await firstLine(base, name);
  await ended;
  return arrived - from;
}

const copied: number[] = [];
for (let i = 0; i < 2; i++) copied.push(await start(`copied-${i}`, false));
const first = await start('first', true);
const shared: number[] = [];
for (let i = 0; i < ROUNDS; i++) shared.push(await start(`shared-${i}`, true));
const show = (ms: number) => `${(ms / 1_000).toFixed(2)} s`;
console.log(
  `${((FILES * FILE_BYTES) / 1e9).toFixed(1)} GB in ${FILES} large files, from creating a job until its first line:
  copied                ${copied.map(show).join(', ')}
  read only, first job  ${show(first)}
  read only, next jobs  ${shared.map(show).join(', ')} (median ${show(median(shared))})`,
);
