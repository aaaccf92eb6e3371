/** From what people call a commit to the commit, and to what lies at a path of it. */

import { isCommitId, isRefName } from '../names.ts';
import type { CatFilePool, ObjectInfo, Objects } from './cat-file.ts';

export type Located = {
  /** The one of the names asked for that was found. */
  ref: string;
  commit: string;
  /** What the path leads to; null when it leads nowhere. */
  object: ObjectInfo | null;
};

/**
 * The commit that a branch, a tag or a commit id names, in that order, but 40 hexadecimal digits are always
 * the commit; a branch may also be given as `refs/heads/…`, and an id shortened to seven digits or more when
 * it is unambiguous.
 */
export async function resolveCommit(
  pool: CatFilePool,
  dir: string,
  ref: string,
): Promise<string | null> {
  const at = await pool.use(dir, (objects) => locate(objects, ref, ''));
  return at?.commit ?? null;
}

/** The commit at the tip of a branch. */
export async function branchTip(
  pool: CatFilePool,
  dir: string,
  branch: string,
): Promise<string | null> {
  const at = await pool.use(dir, (objects) => locateInBranch(objects, branch, ''));
  return at?.commit ?? null;
}

/** `path` (empty: the root) in what `ref` names; null when it names no commit. */
export async function locate(objects: Objects, ref: string, path: string): Promise<Located | null> {
  if (isCommitId(ref)) {
    const found = await lookUp(objects, ref, path);
    return found && { ref, ...found };
  }
  const inBranch = await locateInBranch(objects, ref, path);
  if (inBranch) return inBranch;
  const names = isRefName(ref) ? [`refs/tags/${ref}`] : [];
  if (names.length && /^refs\/(heads|tags)\/./.test(ref)) names.push(ref);
  if (ref === 'HEAD' || /^[0-9a-f]{7,39}$/i.test(ref)) names.push(ref);
  for (const name of names) {
    const found = await lookUp(objects, name, path);
    if (found) return { ref, ...found };
  }
  return null;
}

/** As `locate`, for a branch alone. */
export async function locateInBranch(
  objects: Objects,
  branch: string,
  path: string,
): Promise<Located | null> {
  const found = isRefName(branch) ? await lookUp(objects, `refs/heads/${branch}`, path) : null;
  return found && { ref: branch, ...found };
}

/** Both at once: a round trip costs as much as an answer. */
async function lookUp(objects: Objects, name: string, path: string) {
  const wanted = path ? `${name}:${path}` : `${name}^{tree}`;
  const asked = canBePath(path) ? [wanted] : [];
  const [commit, object = null] = await objects.info([`${name}^{commit}`, ...asked]);
  return commit ? { commit: commit.oid, object } : null;
}

/** Git takes a leading `./` for a path from the working tree, and ends when there is none. */
function canBePath(path: string): boolean {
  return !path.split('/').includes('.');
}
