/** Walks over a whole tree or a whole change, streamed: what they yield is bounded by who reads them. */
import { readdirSync, type Stats, statSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { listPackFiles } from '../disk/disk.ts';
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
      env: quarantineEnv(dir, quarantine),
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
  const env = { ...quarantineEnv(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
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
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input: tips.join('\n') };
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
      for (const { blocks } of await listStats(join(objects, name), /^[0-9a-f]{38}$/))
        loose += blocks;
  const packs = await listPackFiles(dir).catch(() => []);
  const packed = packs.reduce((sum, { size }) => sum + size, 0);
  return (Math.floor(loose / 2) + Math.floor(packed / 1024)) * 1024;
}

/** Of the files with such names; those that are removed meanwhile are left out. */
async function listStats(folder: string, pattern: RegExp): Promise<Stats[]> {
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
export function quarantineEnv(dir: string, quarantine: string | null): Record<string, string> {
  if (!quarantine) return {};
  return {
    GIT_OBJECT_DIRECTORY: quarantine,
    GIT_ALTERNATE_OBJECT_DIRECTORIES: `${dir}/objects`,
    GIT_QUARANTINE_PATH: quarantine,
  };
}

/* Which files differ between two commits, and through which commits a file came to be what it is. */

/** A ref that points at one commit, and is to point at another. */
export type Move = { before: string; after: string };

/** A file at a commit: its mode and the id of its contents; both are zeros where there is none. */
export type FileState = string;

export type FileChange = {
  path: string;
  /** One; of a merge one for each parent, `to` being none of them. */
  from: FileState[];
  to: FileState;
};

/** Each file becomes two fields. */
const RAW_OPTIONS = ['--raw', '-z', '--no-abbrev', '--no-renames'];

/**
 * The files that differ between the two commits of each move, move by move, in one process. Moves to what is no commit
 * have none.
 */
export async function* movedFiles(
  { dir, quarantine, signal }: Quarantined,
  moves: readonly Move[],
): AsyncGenerator<{ move: Move; change: FileChange }> {
  // A commit with another behind it is compared with that as if it were its parent.
  const input = moves.map(({ before, after }) => `${after} ${before}\n`).join('');
  const args = ['diff-tree', '--stdin', '-r', ...RAW_OPTIONS, '--format=%H %P'];
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input };
  let move: Move | undefined;
  for await (const one of parseChanges(gitLines(args, options, { separator: '\0' }))) {
    if (typeof one === 'string') {
      const [after = '', before = ''] = one.split(' ');
      move = { before, after };
    } else if (move) yield { move, change: one };
  }
}

/**
 * The changes of the files at `paths` by commits that are reachable from `after` and not from `before`, newest first; of
 * a merge those that differ from all its parents.
 */
export async function* changesBetween(
  { dir, quarantine, signal }: Quarantined,
  { before, after }: Move,
  paths: readonly string[],
): AsyncGenerator<FileChange> {
  // Else the side of a merge is left out whose file the merge did not take.
  const args = ['log', '--full-history', '--format=', '--root', '--diff-merges=combined'];
  // A path that begins with `:` is one, too.
  const env = { ...quarantineEnv(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
  const fields = gitLines(
    [...args, ...RAW_OPTIONS, after, `^${before}`, '--', ...paths],
    { dir, signal, env },
    { separator: '\0' },
  );
  for await (const one of parseChanges(fields)) if (typeof one !== 'string') yield one;
}

/**
 * The paths, as Latin-1, at which commits reachable from `tips`, and from no ref yet, bring the blobs. What lies in no
 * commit has none: a tag can name a file.
 * @throws GitError
 */
export async function pathsOf(
  { dir, quarantine, signal }: Quarantined,
  tips: readonly string[],
  oids: ReadonlySet<string>,
): Promise<Map<string, Set<string>>> {
  // A list of objects (`rev-list --objects`) names one path of each, and cuts it at a line break.
  const args = ['log', '--stdin', '--format=', '-m', ...RAW_OPTIONS, '--root', '--not', '--all'];
  const input = tips.map((tip) => `${tip}\n`).join('');
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input };
  const fields = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  const paths = new Map<string, Set<string>>();
  if (oids.size === 0) return paths;
  for await (const one of parseChanges(fields)) {
    if (typeof one === 'string') continue;
    const oid = one.to.slice(one.to.indexOf(' ') + 1);
    if (oids.has(oid)) paths.set(oid, (paths.get(oid) ?? new Set()).add(one.path));
  }
  return paths;
}

/** The changes that git lists, and the text of each header as it is. */
async function* parseChanges(fields: AsyncIterable<string>): AsyncGenerator<FileChange | string> {
  let states: FileState[] | undefined;
  for await (const field of fields) {
    if (states) {
      yield { path: field, from: states.slice(0, -1), to: states.at(-1) as FileState };
      states = undefined;
      continue;
    }
    // A header is followed by a line feed.
    const text = field.trimStart();
    if (text.startsWith(':')) states = parseStates(text);
    else if (text) yield text;
  }
}

/** `:<modes> <ids> <status>`, with a colon for each state before the change, and the state after it as the last. */
function parseStates(text: string): FileState[] {
  const all = text.replace(/^:+/, '').split(' ');
  const count = text.length - text.replace(/^:+/, '').length + 1;
  return Array.from({ length: count }, (_, i) => `${all[i]} ${all[count + i]}`);
}
