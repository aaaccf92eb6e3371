/**
 * `npm run bench:scan`: the time that secret scanning adds to a push of 10,000 commits, in alternating rounds with a push without
 * it; and the throughput of scanning, against only splitting the same texts into lines.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { findSecrets } from '../src/repositories/pushes/secret-scanning/find.ts';
import { makeRepository, median, openBench, time } from './repository.ts';

const COMMITS = { commits: 10_000, folders: 40, files: 27, fileBytes: 2_000 };
const ROUNDS = 5;

{
  await using bench = await openBench();
  const { workspace, folder } = bench;
  await makeRepository(join(folder, 'source.git'), COMMITS);
  const samples = { off: [] as number[], on: [] as number[] };
  for (let round = 0; round <= ROUNDS; round++)
    for (const how of ['off', 'on'] as const) {
      const name = `${how}-${round}`;
      const id = await bench.create(name);
      if (how === 'on')
        await bench.graphql(
          `mutation { updateRepository(input: { id: "${id}", secretScanning: true }) { repository { id } } }`,
        );
      const ms = await time(() =>
        workspace.git('source.git', 'push', '-q', bench.remote(name), 'main'),
      );
      // The first push of each fills the caches.
      if (round > 0) samples[how].push(ms);
    }
  const [off, on] = [median(samples.off), median(samples.on)];
  console.log(
    `a push of 10,000 commits: ${off.toFixed(0)} ms without scanning, ${on.toFixed(0)} ms with it, ${(on - off).toFixed(0)} ms more`,
  );
}

/** Typical content of pushes: sources, declarations, documents, lists of packages. */
const texts = readdirSync('node_modules', { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && /\.([cm]?[jt]s|json|md|map)$/.test(entry.name))
  .slice(0, 4_000)
  .map((entry) => readFileSync(join(entry.parentPath, entry.name)));
const megabytes = texts.reduce((sum, { length }) => sum + length, 0) / 1e6;
const speed = (work: (bytes: Buffer, text: string) => void) => {
  const rates = Array.from({ length: 5 }, () => {
    const begun = performance.now();
    for (const bytes of texts) work(bytes, bytes.toString('latin1'));
    return (megabytes * 1_000) / (performance.now() - begun);
  });
  return median(rates.slice(1));
};
const lines = speed((_, text) => text.split('\n'));
const secrets = speed((bytes, text) => {
  for (const _ of findSecrets(bytes, text));
});
console.log(
  `${megabytes.toFixed(0)} MB of texts: ${secrets.toFixed(0)} MB/s for secrets, ${lines.toFixed(0)} MB/s to split them into lines`,
);
