/** Checks a push against file locks (`src/repositories/lfs/locks.ts`). */
import { REF_PREFIX } from '../../git/objects/refs.ts';
import {
  diffRefMoves,
  type FileChange,
  type FileState,
  listChangedPaths,
  listFileChanges,
  type RefMove,
  type RepositoryWithQuarantine,
} from '../../git/objects/walk.ts';
import { type ReceivedRefUpdate, type Verdict, ZERO_ID } from '../../git/transport/hooks.ts';
import { type IncomingPush, reject } from './incoming-push.ts';

/** Locked files listed in the message. */
const MAX_SHOWN = 5;
/** Maximum number of branches that a push may delete, because each is a command-line argument of git. */
const MAX_DELETED = 500;
/** Paths per git command line: at most 100 KiB. */
const MAX_PATHS = 100;

/**
 * Rejects changes to files that other users have locked.
 *
 * Commits that the repository already has were checked when they were pushed, so merging the work of a lock's owner is
 * allowed. But a merge can take the file from an older commit, and a ref can be moved back: then no new commit changes
 * the file, yet the branch loses the owner's work. So the old and the new tip of the branch are compared as well. A
 * deleted branch could be recreated from an old commit, so it may be deleted only if other refs contain its changes to
 * locked files.
 */
export async function checkLocks(
  locks: ReadonlyMap<string, string>,
  { commands, tips, quarantined }: Pick<IncomingPush, 'commands' | 'tips' | 'quarantined'>,
): Promise<Verdict> {
  if (locks.size === 0) return { accepted: true };
  const found = new Set<string>();
  const add = (path: string) => {
    const owner = locks.get(path);
    if (owner) found.add(`  ${path} is locked by ${owner}`);
    return found.size >= MAX_SHOWN;
  };
  if (tips.length > 0)
    for await (const path of listChangedPaths(quarantined, tips)) if (add(path)) break;
  const updates = commands.filter(
    ({ ref, before, after }) =>
      ref.startsWith(REF_PREFIX.branch) &&
      before !== ZERO_ID &&
      after !== ZERO_ID &&
      before !== after,
  );
  if (found.size === 0 && updates.length > 0)
    for await (const path of revertedPaths(quarantined, updates, (path) => locks.has(path)))
      if (add(path)) break;
  const deleted = commands.filter(
    ({ ref, after }) => ref.startsWith(REF_PREFIX.branch) && after === ZERO_ID,
  );
  if (deleted.length > MAX_DELETED)
    return reject(
      `The repository has locked files: a push may delete at most ${MAX_DELETED} branches, and this one deletes ${deleted.length}`,
    );
  if (found.size === 0 && deleted.length > 0)
    for await (const path of lostPaths(quarantined, deleted, tips)) if (add(path)) break;
  if (found.size === 0) return { accepted: true };
  return reject(
    'The push changes files that other users have locked:',
    ...found,
    'Ask them to push their work and unlock the files (git lfs unlock).',
  );
}

/**
 * Returns the paths changed by commits that are reachable only from the deleted branches, not from other refs or
 * `tips`.
 */
function lostPaths(
  quarantined: RepositoryWithQuarantine,
  deleted: readonly ReceivedRefUpdate[],
  tips: readonly string[],
): AsyncGenerator<string> {
  const refs = deleted.map(({ ref }) => ref);
  return listChangedPaths(quarantined, [...refs, ...tips.map((tip) => `^${tip}`)], refs);
}

/**
 * Returns the paths of locked files whose state differs after the update, although the commits between the two tips do
 * not lead step by step from the old state to the new one.
 */
async function* revertedPaths(
  quarantined: RepositoryWithQuarantine,
  updates: readonly RefMove[],
  isLocked: (path: string) => boolean,
): AsyncGenerator<string> {
  let move: RefMove | undefined;
  let changes: FileChange[] = [];
  for await (const next of diffRefMoves(quarantined, updates)) {
    if (!isLocked(next.change.path)) continue;
    const isNextUpdate = next.move.before !== move?.before || next.move.after !== move.after;
    if (move && (isNextUpdate || changes.length === MAX_PATHS)) {
      yield* unexplainedPaths(quarantined, move, changes);
      changes = [];
    }
    move = next.move;
    changes.push(next.change);
  }
  if (move) yield* unexplainedPaths(quarantined, move, changes);
}

/** File state → the states that commits changed it into. */
type Transitions = Map<FileState, Set<FileState>>;

/** Returns the paths of changes that no chain of commits between the two tips explains. */
async function* unexplainedPaths(
  quarantined: RepositoryWithQuarantine,
  move: RefMove,
  changes: readonly FileChange[],
): AsyncGenerator<string> {
  const transitionsByPath = new Map<string, Transitions>(
    changes.map(({ path }) => [path, new Map()]),
  );
  for await (const { path, from, to } of listFileChanges(quarantined, move, [
    ...transitionsByPath.keys(),
  ])) {
    const transitions = transitionsByPath.get(path);
    for (const state of transitions ? from : [])
      transitions?.set(state, (transitions.get(state) ?? new Set()).add(to));
  }
  for (const { path, from, to } of changes)
    if (!isReachable(from, to, transitionsByPath.get(path) ?? new Map())) yield path;
}

function isReachable(from: readonly FileState[], to: FileState, transitions: Transitions): boolean {
  const seen = new Set(from);
  // A `Set` also iterates over elements added during the loop.
  for (const state of seen) for (const next of transitions.get(state) ?? []) seen.add(next);
  return seen.has(to);
}
