/** What is in a repository: directories, files, history, branches and tags (spec section 4.1). */

import { stat } from 'node:fs/promises';
import { invalid, notFound } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
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
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import { type OffsetPage, type PageRequest, toOffset } from '../../platform/database/paging.ts';
import { type Allowance, takeWhole } from '../../platform/limits/reads.ts';
import { folderWork, type Reads } from '../folder.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { type AccessRow, target } from '../repositories.ts';
import { downloadUrl, largeFileUrl } from './downloads.ts';
import { type ContentsRow, hasLargeFiles, largeFileOf, withLargeSizes } from './large-files.ts';

/** `commit`: null where nothing was committed yet. */
export type Tree = {
  path: string;
  ref: string;
  commit: string | null;
  entries: TreeEntry[];
  repository: AccessRow;
};

export type File = {
  path: string;
  ref: string;
  sizeBytes: number;
  encoding: 'utf-8' | 'binary';
  /** Absent for binary and large files and those over 1 MiB, which have a `downloadUrl` instead. */
  content?: string;
  downloadUrl?: string;
  /** As `downloadUrl`, and always there. */
  rawUrl: string;
};

const TOO_WIDE =
  'names a directory of more than 4 MiB (some 100,000 entries), which cannot be listed; clone the repository to see it';

/** Read together with the answer where it is; of a longer file the answer's allowance is asked first. */
const SHORT_BYTES = 64 * 1024;

export type ContentsPath = { path: string; ref?: string | null };

/** @throws AppError 400 for a bad path or a directory that is too large, 401, 403, 404, 503. */
export async function tree(
  services: Reads & { largeFiles: LargeFiles },
  viewer: Viewer,
  repository: ContentsRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<Tree> {
  demand(viewer, 'repository.read', target(repository));
  const inside = path === '/' ? '' : path;
  if (inside) checkPath(inside);
  const { id, defaultBranch } = repository;
  const pointers = hasLargeFiles(repository);
  const found = await locateTree(services, id, { defaultBranch, ref, path: inside, pointers });
  if (!found) return { path, ref: defaultBranch, commit: null, entries: [], repository };
  const { ref: used, commit, oid, size } = found;
  await takeWhole(allowance, size);
  const entries = found.entries ?? (await readWideTree(services, id, { oid, pointers }));
  const sized = await withLargeSizes(services, id, entries);
  return { path, ref: used, commit, entries: sized, repository };
}

type TreeAt = At & { pointers: boolean };
type At = { defaultBranch: string; ref?: string | null; path: string };

/** Null for the root of a repository without a commit. The entries come with it unless they are many. */
const locateTree = folderWork('locateTree', async ({ git }, dir, at: TreeAt) => {
  const found = await git.objects.use(dir, async (objects) => {
    const located = await find(objects, at, at.ref, at.path);
    if (!located && (at.ref || at.path)) throw notFound('Ref');
    if (!located) return null;
    const directory = located.object;
    if (directory?.type !== 'tree') throw notFound('Directory');
    const { oid, size } = directory;
    if (size > MAX_TREE_BYTES) throw invalid('path', TOO_WIDE);
    const entries = size <= LIGHT_TREE_BYTES ? await readTree(objects, oid, at) : null;
    return { ref: located.ref, commit: located.commit, oid, size, entries };
  });
  // Nothing was committed yet: the root is there all the same, and empty. Or nothing is there at all.
  if (!found) await stat(dir);
  return found;
});

type WideTree = { oid: string; pointers: boolean };

const readWideTree = folderWork('readWideTree', ({ git }, dir, { oid, pointers }: WideTree) =>
  git.objects.useHeavily(dir, (objects) => readTree(objects, oid, { pointers })),
);

/** @throws AppError 400 for a bad path, 401, 403, 404 for an unknown ref or what is no file. */
export async function file(
  services: Reads & { signer: Signer; urls: Urls; largeFiles: LargeFiles },
  viewer: Viewer,
  repository: ContentsRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<File> {
  demand(viewer, 'repository.read', target(repository));
  checkPath(path);
  const { id, defaultBranch } = repository;
  const {
    ref: used,
    oid,
    size,
    early,
  } = await locateFile(services, id, {
    defaultBranch,
    ref,
    path,
  });
  const large = hasLargeFiles(repository) && early ? await largeFileOf(services, id, early) : null;
  if (large) {
    const url = largeFileUrl(services, id, large.oid, path);
    return {
      path,
      ref: used,
      sizeBytes: large.size,
      encoding: large.isText ? 'utf-8' : 'binary',
      downloadUrl: url,
      rawUrl: url,
    };
  }
  const isInline = size <= INLINE_BYTES;
  if (isInline) await takeWhole(allowance, size);
  const late = isInline && early === undefined;
  const text = late ? await readWhole(services, id, oid) : early;
  const rawUrl = downloadUrl(services, id, oid, path);
  const found = { path, ref: used, sizeBytes: size, rawUrl };
  if (typeof text === 'string') return { ...found, encoding: 'utf-8', content: text };
  const isText = text === undefined && (await beginsAsText(services, id, oid));
  return {
    ...found,
    encoding: isText ? 'utf-8' : 'binary',
    downloadUrl: rawUrl,
  };
}

/** The text of a short file comes with it: null when it is none. */
const locateFile = folderWork('locateFile', ({ git }, dir, at: At) =>
  git.objects.use(dir, async (objects) => {
    const located = await find(objects, at, at.ref, at.path);
    if (!located) throw notFound('Ref');
    const blob = located.object;
    if (blob?.type !== 'blob') throw notFound('File');
    const { oid, size } = blob;
    const early = size <= SHORT_BYTES ? await readText(objects, oid) : undefined;
    return { ref: located.ref, oid, size, early };
  }),
);

const readWhole = folderWork('readText', ({ git }, dir, oid: string) =>
  git.objects.use(dir, (objects) => readText(objects, oid)),
);

const beginsAsText = folderWork('looksLikeText', ({ git }, dir, oid: string) =>
  git.turns.take(() => looksLikeText(dir, oid), { key: dir }),
);

/** A commit, and where its changes are to be read. */
export type CommitHere = Commit & { repository: AccessRow };

/** Newest first. @throws AppError 400, 401, 403, 404 for an unknown revision. */
export async function commits(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { revision, page, perPage }: PageRequest & { revision: string },
  allowance: Allowance,
): Promise<OffsetPage<CommitHere>> {
  demand(viewer, 'repository.read', target(repository));
  const range = toOffset({ page, perPage });
  const { commits, total } = await historyOf(services, repository.id, { revision, range });
  await takeCommits(allowance, commits);
  const nodes = commits.map((commit) => ({ ...commit, repository }));
  return { nodes, page, perPage, total };
}

type HistoryOf = { revision: string; range: ReturnType<typeof toOffset> };

const historyOf = folderWork(
  'historyOf',
  async ({ git: { objects, history } }, dir, { revision, range }: HistoryOf) => {
    const sha = isSafe(revision) ? await resolveCommit(objects, dir, revision) : null;
    if (!sha) throw notFound('Revision');
    return readHistory(objects, history, dir, sha, range);
  },
);

/** Commits are at most 64 KiB each, so they are read before they are counted. @throws as `takeWhole` */
export function takeCommits(
  allowance: Allowance,
  commits: readonly (Pick<Commit, 'message'> | null)[],
): Promise<void> {
  return takeWhole(
    allowance,
    commits.reduce((sum, commit) => sum + (commit?.message.length ?? 0), 0),
  );
}

/** A ref that was not given is `main` where that branch exists, else the default branch. */
export async function find(
  objects: Objects,
  { defaultBranch }: Pick<AccessRow, 'defaultBranch'>,
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
export function checkPath(path: string): void {
  if (path.includes('\0')) throw invalid('path', 'must not hold a NUL character');
  const parts = path.split('/');
  if (parts.includes('')) throw invalid('path', 'must not have an empty segment');
  if (parts.includes('..')) throw invalid('path', 'must not have a ".." segment');
}
