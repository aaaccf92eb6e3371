/** Which files differ between two commits, and through which commits a file came to be what it is. */
import { gitLines } from '../processes/run.ts';
import { type Quarantined, seeing } from './walk.ts';

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
const AS_FIELDS = ['--raw', '-z', '--no-abbrev', '--no-renames'];

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
  const args = ['diff-tree', '--stdin', '-r', ...AS_FIELDS, '--format=%H %P'];
  const options = { dir, signal, env: seeing(dir, quarantine), input };
  let move: Move | undefined;
  for await (const one of changesIn(gitLines(args, options, { separator: '\0' }))) {
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
  const env = { ...seeing(dir, quarantine), GIT_LITERAL_PATHSPECS: '1' };
  const fields = gitLines(
    [...args, ...AS_FIELDS, after, `^${before}`, '--', ...paths],
    { dir, signal, env },
    { separator: '\0' },
  );
  for await (const one of changesIn(fields)) if (typeof one !== 'string') yield one;
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
  const args = ['log', '--stdin', '--format=', '-m', ...AS_FIELDS, '--root', '--not', '--all'];
  const input = tips.map((tip) => `${tip}\n`).join('');
  const options = { dir, signal, env: seeing(dir, quarantine), input };
  const fields = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  const paths = new Map<string, Set<string>>();
  if (oids.size === 0) return paths;
  for await (const one of changesIn(fields)) {
    if (typeof one === 'string') continue;
    const oid = one.to.slice(one.to.indexOf(' ') + 1);
    if (oids.has(oid)) paths.set(oid, (paths.get(oid) ?? new Set()).add(one.path));
  }
  return paths;
}

/** The changes that git lists, and the text of each header as it is. */
async function* changesIn(fields: AsyncIterable<string>): AsyncGenerator<FileChange | string> {
  let states: FileState[] | undefined;
  for await (const field of fields) {
    if (states) {
      yield { path: field, from: states.slice(0, -1), to: states.at(-1) as FileState };
      states = undefined;
      continue;
    }
    // A header is followed by a line feed.
    const text = field.trimStart();
    if (text.startsWith(':')) states = statesOf(text);
    else if (text) yield text;
  }
}

/** `:<modes> <ids> <status>`, with a colon for each state before the change, and the state after it as the last. */
function statesOf(text: string): FileState[] {
  const all = text.replace(/^:+/, '').split(' ');
  const count = text.length - text.replace(/^:+/, '').length + 1;
  return Array.from({ length: count }, (_, i) => `${all[i]} ${all[count + i]}`);
}
