/** Walks over a whole tree or a whole change, streamed: what they yield is bounded by who reads them. */
import { readdirSync, type Stats, statSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { packFiles } from '../disk/disk.ts';
import { GitError, git, gitLines } from '../processes/run.ts';

export type TreeFile = { path: string; size: number };

/** Every file of a commit's tree with its size; submodules left out. Leaving the loop ends the process. */
export async function* walkTree(
  dir: string,
  commit: string,
  signal: AbortSignal,
): AsyncGenerator<TreeFile> {
  const args = ['ls-tree', '-r', '-l', '-z', '--full-tree', commit];
  for await (const line of gitLines(args, { dir, signal }, { separator: '\0' })) {
    // <mode> <type> <id> <size right-aligned>\t<path>
    const tab = line.indexOf('\t');
    const [, type, , size] = line.slice(0, tab).split(/ +/);
    if (type === 'blob') yield { path: line.slice(tab + 1), size: Number(size) };
  }
}

export type Quarantined = { dir: string; quarantine: string | null; signal: AbortSignal };

/**
 * Whether `before` is an ancestor of `after`, which may still be in quarantine. Git decides: what a parser of our own takes
 * for a parent and git does not would let a protected branch lose its history.
 */
export async function isFastForward(
  { dir, quarantine, signal }: Quarantined,
  before: string,
  after: string,
): Promise<boolean> {
  try {
    await git(['merge-base', '--is-ancestor', before, after], {
      dir,
      signal,
      env: seeing(dir, quarantine),
    });
    return true;
  } catch (error) {
    if (error instanceof GitError && error.code === 1) return false;
    throw error;
  }
}

/** Larger files are not compared line by line. */
export const MAX_COMPARED_BYTES = 8 * 2 ** 20;

/**
 * The lines of a patch with all that commits reachable from `tips`, and from no ref yet, add to the files at `paths`, and
 * perhaps to others; merges show what is in none of their parents. No context lines, and large files are left out. As
 * Latin-1, which keeps every byte, as are the paths.
 * @param tips what is no commit, nor a tag of one, is passed over
 */
export async function* patchOf(
  { dir, quarantine, signal }: Quarantined,
  tips: readonly string[],
  paths: readonly string[],
): AsyncGenerator<string> {
  const args = [
    'log',
    '--stdin',
    // Else the side of a merge that took the file as the other side has it is left out.
    '--full-history',
    '--format=commit %H',
    '--patch',
    '--cc',
    '--unified=0',
    '--no-renames',
    '--no-color',
    '--no-ext-diff',
    '--no-textconv',
    '--full-index',
    '--irreversible-delete',
    '--src-prefix=',
    '--dst-prefix=',
    '--root',
    '--not',
    '--all',
  ];
  // Attributes from the push itself could hide files from the patch; git from 2.43 reads them when bare.
  const config = {
    'core.bigFileThreshold': `${MAX_COMPARED_BYTES}`,
    'attr.tree': '4b825dc642cb6eb9a060e54bf8d69288fbee4904',
  };
  // A path that begins with `:` is one, too.
  const env = { ...seeing(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
  const options = { dir, signal, config, env };
  // Paths are read a line each, and an argument cannot hold every byte: where one has a line break, all is compared.
  const named = paths.some((path) => path.includes('\n')) ? [] : paths;
  const lines = [...tips, '--', ...named].map((line) => `${line}\n`).join('');
  const input = Buffer.from(lines, 'latin1');
  yield* gitLines(args, { ...options, input }, { encoding: 'latin1' });
}

/**
 * The paths that commits reachable from `tips`, and from no ref yet, change, some of them several times; of a merge those
 * that differ from all its parents. Tips that are no commits, or not there, have none.
 * @param without refs that do not count
 */
export async function* changedPaths(
  { dir, quarantine, signal }: Quarantined,
  tips: readonly string[],
  without: readonly string[] = [],
): AsyncGenerator<string> {
  const args = [
    'log',
    '--ignore-missing',
    '--stdin',
    '--format=',
    '--name-only',
    '-z',
    '--diff-merges=combined',
    '--no-renames',
    '--root',
    '--not',
    // `HEAD` leads to one of the others.
    ...['HEAD', ...without].map((ref) => `--exclude=${ref}`),
    '--all',
  ];
  const options = { dir, signal, env: seeing(dir, quarantine), input: tips.join('\n') };
  for await (const path of gitLines(args, options, { separator: '\0' })) {
    if (path) yield path;
  }
}

/** Bytes on disk of all objects, in whole KiB: what `git count-objects -v` tells, without its process. */
export async function diskUsage(dir: string): Promise<number> {
  const objects = join(dir, 'objects');
  const names = await readdir(objects);
  let loose = 0;
  for (const name of names)
    if (/^[0-9a-f]{2}$/.test(name))
      for (const { blocks } of await statsIn(join(objects, name), /^[0-9a-f]{38}$/))
        loose += blocks;
  const packs = await packFiles(dir).catch(() => []);
  const packed = packs.reduce((sum, { size }) => sum + size, 0);
  return (Math.floor(loose / 2) + Math.floor(packed / 1024)) * 1024;
}

/** Of the files with such names; those that are removed meanwhile are left out. */
async function statsIn(folder: string, pattern: RegExp): Promise<Stats[]> {
  const names = (await readdir(folder).catch(() => [])).filter((name) => pattern.test(name));
  const stats = await Promise.all(names.map((name) => stat(join(folder, name)).catch(() => null)));
  return stats.filter((one) => one !== null);
}

/** Bytes in the files of a quarantine, which git has just written on this machine: at once. */
export function sizeOf(quarantine: string): number {
  const entries = readdirSync(quarantine, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  return files.reduce(
    (sum, { parentPath, name }) => sum + statSync(join(parentPath, name)).size,
    0,
  );
}

/** What lets git see a push that is still in quarantine. */
export function seeing(dir: string, quarantine: string | null): Record<string, string> {
  if (!quarantine) return {};
  return {
    GIT_OBJECT_DIRECTORY: quarantine,
    GIT_ALTERNATE_OBJECT_DIRECTORIES: `${dir}/objects`,
    GIT_QUARANTINE_PATH: quarantine,
  };
}
