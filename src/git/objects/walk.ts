/** Streams the files of a tree and the changes of commits. The consumer limits how much is read. */
import { readdirSync, type Stats, statSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { listPackFiles } from '../disk/pack-files.ts';
import { GitError, git, gitLines } from '../processes/run.ts';
import { HIDDEN_PREFIX } from './refs.ts';

/** `sha`: the id of the blob. */
type TreeFile = { path: string; size: number; sha: string };

/** Yields every file of a commit's tree with its size, without submodules. Leaving the loop ends the process. */
export async function* walkTree(
  dir: string,
  commit: string,
  signal: AbortSignal,
): AsyncGenerator<TreeFile> {
  const args = ['ls-tree', '-r', '-l', '-z', '--full-tree', commit];
  for await (const line of gitLines(args, { dir, signal }, { separator: '\0' })) {
    // <mode> <type> <id> <size right-aligned>\t<path>
    const tab = line.indexOf('\t');
    const [, type, sha = '', size] = line.slice(0, tab).split(/ +/);
    if (type === 'blob') yield { path: line.slice(tab + 1), size: Number(size), sha };
  }
}

/** A repository together with the objects of a push that is still in quarantine. */
export type RepositoryWithQuarantine = {
  dir: string;
  quarantine: string | null;
  signal: AbortSignal;
};

/**
 * Whether `before` is an ancestor of `after`, which may still be in quarantine. Decided by git, because with a
 * separate parser, a forged parent that git does not accept could remove the history of a protected branch.
 */
export async function isFastForward(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
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
 * Yields the lines of a patch of all commits that are reachable from `tips` and from no ref. Contains the files at
 * `paths`, and maybe more files; for a merge, only lines that none of its parents has. Omits context lines and large
 * files. Lines and paths are Latin-1, which preserves every byte.
 * @param tips objects that are neither commits nor tags of commits are skipped
 */
export async function* readPatch(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  tips: readonly string[],
  paths: readonly string[],
): AsyncGenerator<string> {
  const args = [
    'log',
    '--stdin',
    // Otherwise git omits the side of a merge whose version of the file the merge did not take.
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
  // Pushed attributes could hide files from the patch. Git from 2.43 on reads them in bare repositories.
  const config = {
    'core.bigFileThreshold': `${MAX_COMPARED_BYTES}`,
    'attr.tree': '4b825dc642cb6eb9a060e54bf8d69288fbee4904',
  };
  // Taken literally, because a path may begin with `:`, which is special in a pathspec.
  const env = { ...quarantineEnv(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
  const options = { dir, signal, config, env };
  // Git reads one path per line, and arguments cannot contain every byte. A path with a line break selects all files.
  const listedPaths = paths.some((path) => path.includes('\n')) ? [] : paths;
  const lines = [...tips, '--', ...listedPaths].map((line) => `${line}\n`).join('');
  const input = Buffer.from(lines, 'latin1');
  yield* gitLines(args, { ...options, input }, { encoding: 'latin1' });
}

/**
 * Yields the paths that commits reachable from `tips` and from no ref change. A path may be repeated. For a merge, only
 * paths that differ from all its parents. Tips that are not commits, or are missing, are skipped.
 * @param without refs that are ignored when looking for reachable commits
 */
export async function* listChangedPaths(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
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
    // `HEAD` points to another ref, and the server removes hidden refs later.
    ...['HEAD', `${HIDDEN_PREFIX}*`, ...without].map((ref) => `--exclude=${ref}`),
    '--all',
  ];
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input: tips.join('\n') };
  for await (const path of gitLines(args, options, { separator: '\0' })) {
    if (path) yield path;
  }
}

/** Returns the bytes on disk of all objects, in whole KiB, like `git count-objects -v`, but without starting git. */
export async function measureDiskUsage(dir: string): Promise<number> {
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

/** Returns the stats of the files whose names match. Omits files that are removed during the call. */
async function listStats(folder: string, pattern: RegExp): Promise<Stats[]> {
  const names = (await readdir(folder).catch(() => [])).filter((name) => pattern.test(name));
  const stats = await Promise.all(names.map((name) => stat(join(folder, name)).catch(() => null)));
  return stats.filter((found) => found !== null);
}

/**
 * Returns the total size of the files in a quarantine. Synchronous, because git has just written them on this machine.
 */
export function measureQuarantine(quarantine: string): number {
  const entries = readdirSync(quarantine, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  return files.reduce(
    (sum, { parentPath, name }) => sum + statSync(join(parentPath, name)).size,
    0,
  );
}

/** Environment that makes the objects of a push in quarantine visible to git. */
export function quarantineEnv(dir: string, quarantine: string | null): Record<string, string> {
  if (!quarantine) return {};
  return {
    GIT_OBJECT_DIRECTORY: quarantine,
    GIT_ALTERNATE_OBJECT_DIRECTORIES: `${dir}/objects`,
    GIT_QUARANTINE_PATH: quarantine,
  };
}

/** A ref moves from one commit to another. */
export type RefMove = { before: string; after: string };

/** The mode and blob id of a file at a commit; both are zeros if the file does not exist. */
export type FileState = string;

export type FileChange = {
  path: string;
  /** State before the commit. For a merge, the state in each parent, and `to` differs from all of them. */
  from: FileState[];
  to: FileState;
};

/** Output of two fields per file. */
const RAW_OPTIONS = ['--raw', '-z', '--no-abbrev', '--no-renames'];

/**
 * Yields the files that differ between the two commits of each move, in the order of moves, with one process. Moves to
 * objects that are not commits yield nothing.
 */
export async function* diffRefMoves(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  moves: readonly RefMove[],
): AsyncGenerator<{ move: RefMove; change: FileChange }> {
  // `diff-tree` compares the first commit of a line with the second, as if the second were its parent.
  const input = moves.map(({ before, after }) => `${after} ${before}\n`).join('');
  const args = ['diff-tree', '--stdin', '-r', ...RAW_OPTIONS, '--format=%H %P'];
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input };
  let move: RefMove | undefined;
  for await (const item of parseChanges(gitLines(args, options, { separator: '\0' }))) {
    if (typeof item === 'string') {
      const [after = '', before = ''] = item.split(' ');
      move = { before, after };
    } else if (move) yield { move, change: item };
  }
}

/**
 * Yields the changes of the files at `paths` by commits that are reachable from `after` and not from `before`, newest
 * first. For a merge, only files that differ from all its parents.
 */
export async function* listFileChanges(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  { before, after }: RefMove,
  paths: readonly string[],
): AsyncGenerator<FileChange> {
  // Without `--full-history`, git omits the side of a merge whose version of the file the merge did not take.
  const args = ['log', '--full-history', '--format=', '--root', '--diff-merges=combined'];
  // A path may begin with `:`, which is magic in a pathspec.
  const env = { ...quarantineEnv(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
  const fields = gitLines(
    [...args, ...RAW_OPTIONS, after, `^${before}`, '--', ...paths],
    { dir, signal, env },
    { separator: '\0' },
  );
  for await (const item of parseChanges(fields)) if (typeof item !== 'string') yield item;
}

/**
 * Finds the paths, as Latin-1, at which commits reachable from `tips` and from no ref add the blobs. A blob that only a
 * tag points to has no path.
 * @throws GitError
 */
export async function findBlobPaths(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  tips: readonly string[],
  oids: ReadonlySet<string>,
): Promise<Map<string, Set<string>>> {
  // `rev-list --objects` is not used: it prints one path per object, and cuts the path at a line break.
  const args = ['log', '--stdin', '--format=', '-m', ...RAW_OPTIONS, '--root', '--not', '--all'];
  const input = tips.map((tip) => `${tip}\n`).join('');
  const options = { dir, signal, env: quarantineEnv(dir, quarantine), input };
  const fields = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  const paths = new Map<string, Set<string>>();
  if (oids.size === 0) return paths;
  for await (const item of parseChanges(fields)) {
    if (typeof item === 'string') continue;
    const oid = item.to.slice(item.to.indexOf(' ') + 1);
    if (oids.has(oid)) paths.set(oid, (paths.get(oid) ?? new Set()).add(item.path));
  }
  return paths;
}

/** Yields the changes in git's raw output, and the text of each commit header. */
async function* parseChanges(fields: AsyncIterable<string>): AsyncGenerator<FileChange | string> {
  let states: FileState[] | undefined;
  for await (const field of fields) {
    if (states) {
      yield { path: field, from: states.slice(0, -1), to: states.at(-1) as FileState };
      states = undefined;
      continue;
    }
    // Git writes a line feed after a header.
    const text = field.trimStart();
    if (text.startsWith(':')) states = parseStates(text);
    else if (text) yield text;
  }
}

/** Parses `:<modes> <ids> <status>`: a colon per old state; the last mode and the last id are the new state. */
function parseStates(text: string): FileState[] {
  const all = text.replace(/^:+/, '').split(' ');
  const count = text.length - text.replace(/^:+/, '').length + 1;
  return Array.from({ length: count }, (_, i) => `${all[i]} ${all[count + i]}`);
}

const EMPTY_TREE = '4b825dc642cb6eb9a060e54bf8d69288fbee4904';
const MAX_CHANGED_PATHS = 10_000;
const CHANGED_PATHS_MS = 20_000;

/**
 * Lists the paths that differ between two commits; a rename has both paths. Null for more than 10,000.
 * @param from null for the empty tree
 */
export async function changedPaths(
  dir: string,
  from: string | null,
  to: string,
): Promise<string[] | null> {
  const args = ['diff-tree', '-r', '--name-only', '-z', '--no-renames', from ?? EMPTY_TREE, to];
  const signal = AbortSignal.timeout(CHANGED_PATHS_MS);
  const paths: string[] = [];
  for await (const path of gitLines(args, { dir, signal }, { separator: '\0' })) {
    if (paths.length === MAX_CHANGED_PATHS) return null;
    paths.push(path);
  }
  return paths;
}
