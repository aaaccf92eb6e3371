/** Locks of files (`src/repositories/lfs/locks.ts`), as the judge of pushes heeds them. */
import {
  changesBetween,
  type FileChange,
  type FileState,
  type Move,
  movedFiles,
} from '../../git/objects/file-changes.ts';
import { PREFIX } from '../../git/objects/refs.ts';
import { changedPaths, type Quarantined } from '../../git/objects/walk.ts';
import { type Command, NONE, type Verdict } from '../../git/transport/hooks.ts';
import { type Brought, refused } from './brought.ts';

/** Shown of what a push changes in spite of a lock. */
const MAX_SHOWN = 5;
/** Branches deleted at once: each is an argument of git. */
const MAX_DELETED = 500;
/** Given to git in one command line: 100 KiB at most. */
const MAX_PATHS = 100;

/**
 * Refuses what changes files that others have locked.
 *
 * A commit that is here already was judged when it came, so that merging the work of a lock's owner is no change. But a
 * merge can take the file as an old commit has it, and a ref can be moved back to one: then no new commit changes the
 * file, and the branch loses the owner's work. So the branch is compared as a whole, too. A branch that is deleted could be
 * made again from an old commit, so it may go only while other refs keep the changes of such files.
 */
export async function judgeLocks(
  locks: ReadonlyMap<string, string>,
  { commands, tips, place }: Pick<Brought, 'commands' | 'tips' | 'place'>,
): Promise<Verdict> {
  if (locks.size === 0) return { accepted: true };
  const found = new Set<string>();
  const add = (path: string) => {
    const owner = locks.get(path);
    if (owner) found.add(`  ${path} is locked by ${owner}`);
    return found.size >= MAX_SHOWN;
  };
  if (tips.length > 0) for await (const path of changedPaths(place, tips)) if (add(path)) break;
  const moves = commands.filter(
    ({ ref, before, after }) =>
      ref.startsWith(PREFIX.branch) && before !== NONE && after !== NONE && before !== after,
  );
  if (found.size === 0 && moves.length > 0)
    for await (const path of takenBack(place, moves, (path) => locks.has(path)))
      if (add(path)) break;
  const deleted = commands.filter(
    ({ ref, after }) => ref.startsWith(PREFIX.branch) && after === NONE,
  );
  if (deleted.length > MAX_DELETED)
    return refused(
      `Files are locked, and the push deletes ${deleted.length} branches: delete at most ${MAX_DELETED} at once`,
    );
  if (found.size === 0 && deleted.length > 0)
    for await (const path of lostWith(place, deleted, tips)) if (add(path)) break;
  if (found.size === 0) return { accepted: true };
  return refused(
    'The push changes files that others have locked:',
    ...found,
    'Ask them to push their work and to unlock the files (git lfs unlock).',
  );
}

/** The paths that commits change which only the branches `deleted` lead to, and no other ref or `tips`. */
function lostWith(
  place: Quarantined,
  deleted: readonly Command[],
  tips: readonly string[],
): AsyncGenerator<string> {
  const refs = deleted.map(({ ref }) => ref);
  return changedPaths(place, [...refs, ...tips.map((tip) => `^${tip}`)], refs);
}

/**
 * Of the files that `isLocked` names: those that a branch has otherwise afterwards, and not because it gets commits that
 * made it so, one after the other, out of what it had.
 */
async function* takenBack(
  place: Quarantined,
  moves: readonly Move[],
  isLocked: (path: string) => boolean,
): AsyncGenerator<string> {
  let move: Move | undefined;
  let changes: FileChange[] = [];
  for await (const next of movedFiles(place, moves)) {
    if (!isLocked(next.change.path)) continue;
    const isOther = next.move.before !== move?.before || next.move.after !== move.after;
    if (move && (isOther || changes.length === MAX_PATHS)) {
      yield* withoutHistory(place, move, changes);
      changes = [];
    }
    move = next.move;
    changes.push(next.change);
  }
  if (move) yield* withoutHistory(place, move, changes);
}

/** State of a file → those that commits made out of it. */
type Steps = Map<FileState, Set<FileState>>;

/** The paths of those changes that no row of commits between the two leads through. */
async function* withoutHistory(
  place: Quarantined,
  move: Move,
  changes: readonly FileChange[],
): AsyncGenerator<string> {
  const stepsOf = new Map<string, Steps>(changes.map(({ path }) => [path, new Map()]));
  for await (const { path, from, to } of changesBetween(place, move, [...stepsOf.keys()])) {
    const steps = stepsOf.get(path);
    for (const state of steps ? from : [])
      steps?.set(state, (steps.get(state) ?? new Set()).add(to));
  }
  for (const { path, from, to } of changes)
    if (!leadsTo(from, to, stepsOf.get(path) ?? new Map())) yield path;
}

function leadsTo(from: readonly FileState[], to: FileState, steps: Steps): boolean {
  const seen = new Set(from);
  // What is added meanwhile is visited too.
  for (const state of seen) for (const next of steps.get(state) ?? []) seen.add(next);
  return seen.has(to);
}
