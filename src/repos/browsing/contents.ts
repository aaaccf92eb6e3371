/** What is in a repository: directories, files, history, branches and tags (spec section 4.1). */
import { stat } from 'node:fs/promises';
import { demand, type Viewer } from '../../auth/permissions.ts';
import { type NumberedPage, type PageRequest, toOffset } from '../../database/paging.ts';
import { invalid, notFound } from '../../errors.ts';
import type { Objects } from '../../git/objects/cat-file.ts';
import type { Commit } from '../../git/objects/commit.ts';
import { readHistory } from '../../git/objects/history.ts';
import {
  INLINE_BYTES,
  LIGHT_TREE_BYTES,
  looksLikeText,
  MAX_TREE_BYTES,
  readText,
  readTree,
  type TreeEntry,
} from '../../git/objects/read.ts';
import { type Located, locate, locateInBranch, resolveCommit } from '../../git/objects/resolve.ts';
import { type Allowance, takeWhole } from '../../limits/reads.ts';
import type { Services } from '../../services.ts';
import { inFolder } from '../folder.ts';
import { type AccessRow, target } from '../repos.ts';
import { downloadUrl } from './downloads.ts';

type Reads = Pick<Services, 'db' | 'git' | 'log'>;

export type Tree = { path: string; ref: string; entries: TreeEntry[] };

export type File = {
  path: string;
  ref: string;
  sizeBytes: number;
  encoding: 'utf-8' | 'binary';
  /** Absent for binary files and those over 1 MiB, which have a `downloadUrl` instead. */
  content?: string;
  downloadUrl?: string;
};

const TOO_WIDE =
  'names a directory of more than 4 MiB (some 100,000 entries), which cannot be listed; clone the repository to see it';

/** Read together with the answer where it is; of a longer file the answer's allowance is asked first. */
const SHORT_BYTES = 64 * 1024;

export type Place = { path: string; ref?: string | null };

/** @throws AppError 400 for a bad path or a directory that is too large, 401, 403, 404, 503. */
export async function tree(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref }: Place,
  allowance: Allowance,
): Promise<Tree> {
  demand(viewer, 'repository.read', target(repository));
  const inside = path === '/' ? '' : path;
  if (inside) checkPath(inside);
  const pool = services.git.objects;
  return inFolder(services, repository.id, async (dir) => {
    const found = await pool.use(dir, async (objects) => {
      const at = await find(objects, repository, ref, inside);
      if (!at && (ref || inside)) throw notFound('Ref');
      if (!at) return null;
      const directory = at.object;
      if (directory?.type !== 'tree') throw notFound('Directory');
      const { oid, size } = directory;
      if (size > MAX_TREE_BYTES) throw invalid('path', TOO_WIDE);
      const entries = size <= LIGHT_TREE_BYTES ? await readTree(objects, oid) : null;
      return { ref: at.ref, oid, size, entries };
    });
    if (!found) {
      // Nothing was committed yet: the root is there all the same, and empty. Or nothing is there at all.
      await stat(dir);
      return { path, ref: repository.defaultBranch, entries: [] };
    }
    const { ref: used, oid, size } = found;
    await takeWhole(allowance, size);
    const entries =
      found.entries ?? (await pool.useHeavily(dir, (objects) => readTree(objects, oid)));
    return { path, ref: used, entries };
  });
}

/** @throws AppError 400 for a bad path, 401, 403, 404 for an unknown ref or what is no file. */
export async function file(
  services: Reads & Pick<Services, 'signer' | 'urls'>,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref }: Place,
  allowance: Allowance,
): Promise<File> {
  demand(viewer, 'repository.read', target(repository));
  checkPath(path);
  const pool = services.git.objects;
  return inFolder(services, repository.id, async (dir) => {
    const { at, blob, early } = await pool.use(dir, async (objects) => {
      const at = await find(objects, repository, ref, path);
      if (!at) throw notFound('Ref');
      const blob = at.object;
      if (blob?.type !== 'blob') throw notFound('File');
      const isShort = blob.size <= SHORT_BYTES;
      return { at, blob, early: isShort ? await readText(objects, blob.oid) : undefined };
    });
    const isInline = blob.size <= INLINE_BYTES;
    if (isInline) await takeWhole(allowance, blob.size);
    const late = isInline && early === undefined;
    const text = late ? await pool.use(dir, (objects) => readText(objects, blob.oid)) : early;
    const found = { path, ref: at.ref, sizeBytes: blob.size };
    if (typeof text === 'string') return { ...found, encoding: 'utf-8', content: text };
    const { turns } = services.git;
    const isText =
      text === undefined && (await turns.take(() => looksLikeText(dir, blob.oid), { key: dir }));
    return {
      ...found,
      encoding: isText ? 'utf-8' : 'binary',
      downloadUrl: downloadUrl(services, repository.id, blob.oid, path),
    };
  });
}

/** A commit, and where its changes are to be read. */
export type CommitHere = Commit & { repository: AccessRow };

/** Newest first. @throws AppError 400, 401, 403, 404 for an unknown revision. */
export async function commits(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { revision, page, perPage }: PageRequest & { revision: string },
  allowance: Allowance,
): Promise<NumberedPage<CommitHere>> {
  demand(viewer, 'repository.read', target(repository));
  const range = toOffset({ page, perPage });
  const { objects, history } = services.git;
  return inFolder(services, repository.id, async (dir) => {
    const sha = isSafe(revision) ? await resolveCommit(objects, dir, revision) : null;
    if (!sha) throw notFound('Revision');
    const { commits, total } = await readHistory(objects, history, dir, sha, range);
    await takeCommits(allowance, commits);
    const nodes = commits.map((commit) => ({ ...commit, repository }));
    return { nodes, page, perPage, total };
  });
}

/** Commits are at most 64 KiB each, so they are read before they are counted. @throws as `takeWhole` */
export function takeCommits(
  allowance: Allowance,
  commits: readonly (Commit | null)[],
): Promise<void> {
  return takeWhole(
    allowance,
    commits.reduce((sum, commit) => sum + (commit?.message.length ?? 0), 0),
  );
}

/** A ref that was not given is `main` where that branch exists, else the default branch. */
export async function find(
  objects: Objects,
  { defaultBranch }: AccessRow,
  ref: string | null | undefined,
  path: string,
): Promise<Located | null> {
  if (ref) return isSafe(ref) ? locate(objects, ref, path) : null;
  const main = await locateInBranch(objects, 'main', path);
  return main ?? locateInBranch(objects, defaultBranch, path);
}

function isSafe(ref: string): boolean {
  return !ref.includes('\0');
}

/** @throws AppError 400 naming `path`. */
function checkPath(path: string): void {
  if (path.includes('\0')) throw invalid('path', 'must not hold a NUL character');
  const parts = path.split('/');
  if (parts.includes('')) throw invalid('path', 'must not have an empty segment');
  if (parts.includes('..')) throw invalid('path', 'must not have a ".." segment');
}
