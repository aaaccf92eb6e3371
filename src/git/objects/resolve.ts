/** Resolves a revision given by a user to a commit, and a path in the commit to an object. */

import { isCommitId, isRefName } from '../names.ts';
import type { CatFilePool, ObjectInfo, ObjectReader } from './cat-file.ts';

export type Located = {
  /** The given revision. */
  ref: string;
  commit: string;
  /** The object at the path; null when the path does not exist. */
  object: ObjectInfo | null;
};

/**
 * Resolves a branch, a tag or a commit id, in that order, except that 40 hexadecimal digits are always a commit id.
 * Also accepts full names such as `refs/heads/main`, `HEAD`, and unambiguous ids of at least seven digits.
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

/** The commit at a ref with this full name, which may be a hidden one. */
export async function refTip(
  pool: CatFilePool,
  dir: string,
  fullName: string,
): Promise<string | null> {
  const at = await pool.use(dir, (objects) => lookUp(objects, fullName, ''));
  return at?.commit ?? null;
}

/** Finds `path` (empty for the root) in the commit that `ref` names; null when `ref` names no commit. */
export async function locate(
  objects: ObjectReader,
  ref: string,
  path: string,
): Promise<Located | null> {
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

/** Like `locate`, for branches only. */
export async function locateInBranch(
  objects: ObjectReader,
  branch: string,
  path: string,
): Promise<Located | null> {
  const found = isRefName(branch) ? await lookUp(objects, `refs/heads/${branch}`, path) : null;
  return found && { ref: branch, ...found };
}

/** Requests commit and object together, because a round trip costs as much as an answer. */
async function lookUp(objects: ObjectReader, name: string, path: string) {
  const wanted = path ? `${name}:${path}` : `${name}^{tree}`;
  const asked = canBePath(path) ? [wanted] : [];
  const [commit, object = null] = await objects.info([`${name}^{commit}`, ...asked]);
  return commit ? { commit: commit.oid, object } : null;
}

/** Git reads a leading `./` as a path in the working tree, and exits when there is no working tree. */
function canBePath(path: string): boolean {
  return !path.split('/').includes('.');
}
