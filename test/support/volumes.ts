/** Volumes in a folder of their own, as the file of `LOAM_VOLUMES` declares them. */
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { CurrentVolumes } from '../../src/base/config/volumes-file.ts';
import { createLog } from '../../src/base/log.ts';
import { type LocalVolumes, openLocalVolumes } from '../../src/runners/volumes.ts';

export type TestVolumes = AsyncDisposable & {
  /** Has a folder for each volume: `data` with the file `a.txt`, `scratch` and `own`, and not `missing`. */
  root: string;
  /** The path of the file. */
  file: string;
  declared: CurrentVolumes;
  local: LocalVolumes;
  /** Replaces the file. */
  declare(lines: readonly string[]): Promise<void>;
};

/** The claim of a volume of `testVolumes` with this root. */
export function claimOf(root: string, name: string): string {
  return `${basename(root).toLowerCase().replaceAll('_', '-')}-${name}`;
}

/** @param more further volumes, as lines of YAML */
export async function testVolumes(more: readonly string[] = []): Promise<TestVolumes> {
  const root = await mkdtemp(join(tmpdir(), 'loam-volumes-'));
  // Jobs run as other users.
  await chmod(root, 0o755);
  for (const name of ['data', 'scratch', 'own']) await mkdir(join(root, name));
  for (const name of ['scratch', 'own']) await chmod(join(root, name), 0o777);
  await writeFile(join(root, 'data/a.txt'), 'all of it\n');
  const file = join(root, 'volumes.yml');
  const write = (lines: readonly string[]) =>
    writeFile(file, `volumes: [\n${lines.map((line) => `  ${line},\n`).join('')}]\n`);
  await write([
    `{ name: data, path: ${root}/data, claim: ${claimOf(root, 'data')} }`,
    `{ name: scratch, path: ${root}/scratch, access: write, claim: ${claimOf(root, 'scratch')} }`,
    `{ name: own, path: ${root}/own, access: write, per_namespace: true, claim: ${claimOf(root, 'own')} }`,
    `{ name: missing, path: ${root}/missing }`,
    ...more,
  ]);
  const declared = new CurrentVolumes(file);
  const local = await openLocalVolumes({ volumes: declared, log: createLog('silent') });
  return {
    root,
    file,
    declared,
    local,
    async declare(lines) {
      await write(lines);
      declared.reload();
      await local.check();
    },
    async [Symbol.asyncDispose]() {
      await local[Symbol.asyncDispose]();
      await rm(root, { recursive: true, force: true });
    },
  };
}
