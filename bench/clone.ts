/**
 * `npm run bench:clone`: cloning over HTTP from the server, against `git clone` of the same bare repository
 * over `file://` with protocol v2, in alternating rounds. With `-- backend` against nginx and `git http-backend`
 * (`against-backend.ts`).
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Disk } from '../src/git/disk/disk.ts';
import { compareWithBackend } from './against-backend.ts';
import { LARGE, makeRepository, median, openBench, time } from './repository.ts';

const SMALL = { commits: 50, folders: 5, files: 5, fileBytes: 1_000 };
const ROUNDS = 5;

await using bench = await openBench();
const { workspace, folder } = bench;
const disk = new Disk(join(folder, 'data/repositories'), 'bench');

const isAgainstFile = process.argv[2] !== 'backend';
if (!isAgainstFile) await compareWithBackend(bench, { small: SMALL, large: LARGE });

for (const [name, shape] of isAgainstFile
  ? ([
      ['small', SMALL],
      ['large', LARGE],
    ] as const)
  : []) {
  await makeRepository(join(folder, `${name}.git`), shape);
  const id = await bench.create(name);
  await workspace.git(`${name}.git`, 'push', '-q', bench.remote(name), 'main');
  const samples = { http: [] as number[], file: [] as number[] };
  const sources = { http: bench.remote(name), file: `file://${disk.pathOf(id)}` };
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [how, url] of Object.entries(sources)) {
      const args = ['-c', 'protocol.version=2', 'clone', '-q', '--bare', url, 'clone'];
      const ms = await time(() => workspace.git('.', ...args));
      // The first clone of each fills the caches.
      if (round > 0) samples[how as keyof typeof samples].push(ms);
      await rm(join(folder, 'clone'), { recursive: true });
    }
  }
  const [http, file] = [median(samples.http), median(samples.file)];
  console.log(
    `clone of the ${name} one: ${http.toFixed(0)} ms over HTTP, ${file.toFixed(0)} ms over file://, ratio ${(http / file).toFixed(2)}×`,
  );
}
