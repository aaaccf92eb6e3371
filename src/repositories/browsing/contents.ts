/** Contents of a repository: directories, files and numbered pages of commits. */

import { stat } from 'node:fs/promises';
import { invalid, notFound } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import type { ObjectReader } from '../../git/objects/cat-file.ts';
import type { Commit } from '../../git/objects/commit.ts';
import { readHistory } from '../../git/objects/history.ts';
import {
  INLINE_BYTES,
  looksLikeText,
  MAX_TREE_BYTES,
  readText,
  readTree,
  SMALL_TREE_BYTES,
  type TreeEntry,
} from '../../git/objects/read.ts';
import { type Located, locate, locateInBranch, resolveCommit } from '../../git/objects/resolve.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import {
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../../platform/database/paging.ts';
import { type Allowance, takeAllGitBytes } from '../../platform/limits/reads.ts';
import { defineFolderTask, type RepositoryReadDeps } from '../folder.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { createBlobLink, createLargeFileLink } from './downloads.ts';
import {
  addLargeFileSizes,
  type ContentsRow,
  findLargeFile,
  hasLargeFiles,
} from './large-files.ts';

/** `commit` is null if the repository has no commits. */
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
  /** Missing for binary files, large files and files over 1 MiB, which have a `downloadUrl` instead. */
  content?: string;
  downloadUrl?: string;
  /** Like `downloadUrl`, but always set. */
  rawUrl: string;
  isLargeFile: boolean;
};

const DIRECTORY_TOO_LARGE =
  'is a directory of more than 4 MiB (some 100,000 entries), which cannot be listed; clone the repository to see it';

/**
 * Files up to this size are read while they are located. Longer files are read after the response allowance was
 * charged.
 */
const EAGER_BYTES = 64 * 1024;

export type ContentsPath = { path: string; ref?: string | null };

/** Reads a directory. @throws AppError 400 for an invalid path or a directory that is too large, 401, 403, 404, 503. */
export async function readDirectory(
  services: RepositoryReadDeps & { largeFiles: LargeFiles },
  viewer: Viewer,
  repository: ContentsRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<Tree> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const normalizedPath = normalizePath(path);
  const { id, defaultBranch } = repository;
  const pointers = hasLargeFiles(repository);
  const found = await locateTree(services, id, {
    defaultBranch,
    ref,
    path: normalizedPath,
    pointers,
  });
  if (!found) return { path, ref: defaultBranch, commit: null, entries: [], repository };
  const { ref: used, commit, oid, size } = found;
  await takeAllGitBytes(allowance, size);
  const entries = found.entries ?? (await readWideTree(services, id, { oid, pointers }));
  const sized = await addLargeFileSizes(services, id, entries);
  return { path, ref: used, commit, entries: sized, repository };
}

/** A ref as an operation on the server of the repository gets it; without `ref`, see `locateAtRef`. */
export type RefAt = { defaultBranch: string; ref?: string | null };
export type PathAt = RefAt & { path: string };
type TreeAt = PathAt & { pointers: boolean };

/** Null for the root of a repository without commits. Includes the entries unless the directory is large. */
const locateTree = defineFolderTask('locateTree', async ({ git }, dir, at: TreeAt) => {
  const found = await git.objects.use(dir, async (objects) => {
    const located = await locateAtRef(objects, at, at.ref, at.path);
    if (!located && (at.ref || at.path)) throw notFound('Ref', at.ref);
    if (!located) return null;
    const directory = located.object;
    if (directory?.type !== 'tree') throw notFound('Directory', at.path);
    const { oid, size } = directory;
    if (size > MAX_TREE_BYTES) throw invalid('path', DIRECTORY_TOO_LARGE);
    const entries =
      size <= SMALL_TREE_BYTES ? await readTree(objects, oid, { withPointers: at.pointers }) : null;
    return { ref: located.ref, commit: located.commit, oid, size, entries };
  });
  // Without commits, the root exists and is empty. `stat` fails if the folder is missing.
  if (!found) await stat(dir);
  return found;
});

type WideTree = { oid: string; pointers: boolean };

const readWideTree = defineFolderTask('readWideTree', ({ git }, dir, { oid, pointers }: WideTree) =>
  git.objects.useForLargeObjects(dir, (objects) =>
    readTree(objects, oid, { withPointers: pointers }),
  ),
);

/**
 * Reads a file. @throws AppError 400 for an invalid path, 401, 403, 404 for an unknown ref or a path that is not a
 * file.
 */
export async function readFile(
  services: RepositoryReadDeps & { signer: Signer; urls: Urls; largeFiles: LargeFiles },
  viewer: Viewer,
  repository: ContentsRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<File> {
  demand(viewer, 'repository.read', accessTarget(repository));
  checkPath(path);
  const { id, defaultBranch } = repository;
  const {
    ref: used,
    oid,
    size,
    eagerText,
  } = await locateFile(services, id, {
    defaultBranch,
    ref,
    path,
  });
  const large =
    hasLargeFiles(repository) && eagerText ? await findLargeFile(services, id, eagerText) : null;
  if (large) {
    const url = createLargeFileLink(services, id, large.oid, path);
    return {
      path,
      ref: used,
      sizeBytes: large.size,
      encoding: large.isText ? 'utf-8' : 'binary',
      downloadUrl: url,
      rawUrl: url,
      isLargeFile: true,
    };
  }
  const isInline = size <= INLINE_BYTES;
  if (isInline) await takeAllGitBytes(allowance, size);
  const readNow = isInline && eagerText === undefined;
  const text = readNow ? await readTextOnServer(services, id, oid) : eagerText;
  const rawUrl = createBlobLink(services, id, oid, path);
  const found = { path, ref: used, sizeBytes: size, rawUrl, isLargeFile: false };
  if (typeof text === 'string') return { ...found, encoding: 'utf-8', content: text };
  const isText = text === undefined && (await isTextOnServer(services, id, oid));
  return {
    ...found,
    encoding: isText ? 'utf-8' : 'binary',
    downloadUrl: rawUrl,
  };
}

/** Finds a file. `eagerText`: the text of a short file; null if it is binary, undefined if the file is longer. */
const locateFile = defineFolderTask('locateFile', ({ git }, dir, at: PathAt) =>
  git.objects.use(dir, async (objects) => {
    const located = await locateAtRef(objects, at, at.ref, at.path);
    if (!located) throw notFound('Ref', at.ref);
    const blob = located.object;
    if (blob?.type !== 'blob') throw notFound('File', at.path);
    const { oid, size } = blob;
    const eagerText = size <= EAGER_BYTES ? await readText(objects, oid) : undefined;
    return { ref: located.ref, oid, size, eagerText };
  }),
);

const readTextOnServer = defineFolderTask('readText', ({ git }, dir, oid: string) =>
  git.objects.use(dir, (objects) => readText(objects, oid)),
);

const isTextOnServer = defineFolderTask('looksLikeText', ({ git }, dir, oid: string) =>
  git.readSlots.run(() => looksLikeText(dir, oid), { key: dir }),
);

/** A commit and its repository. */
export type RepositoryCommit = Commit & { repository: AccessRow };

/** Lists commits by page, newest first. @throws AppError 400, 401, 403, 404 for an unknown revision. */
export async function listCommits(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  { revision, page, perPage }: OffsetPageRequest & { revision: string },
  allowance: Allowance,
): Promise<OffsetPage<RepositoryCommit>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const range = toOffset({ page, perPage });
  const { commits, total } = await historyOnServer(services, repository.id, { revision, range });
  await chargeCommits(allowance, commits);
  const nodes = commits.map((commit) => ({ ...commit, repository }));
  return { nodes, page, perPage, total };
}

type HistoryInput = { revision: string; range: ReturnType<typeof toOffset> };

const historyOnServer = defineFolderTask(
  'historyOf',
  async ({ git: { objects, history } }, dir, { revision, range }: HistoryInput) => {
    const sha = hasNoNul(revision) ? await resolveCommit(objects, dir, revision) : null;
    if (!sha) throw notFound('Revision');
    return readHistory(objects, history, dir, sha, range);
  },
);

/**
 * Charges commits to the response allowance. Commits have at most 64 KiB each, so they are read before they are
 * charged.
 * @throws as `takeAllGitBytes`
 */
export function chargeCommits(
  allowance: Allowance,
  commits: readonly (Pick<Commit, 'message'> | null)[],
): Promise<void> {
  return takeAllGitBytes(
    allowance,
    commits.reduce((sum, commit) => sum + (commit?.message.length ?? 0), 0),
  );
}

/** Locates a path at a ref. If `ref` is empty, uses `main` if that branch exists, else the default branch. */
export async function locateAtRef(
  objects: ObjectReader,
  { defaultBranch }: Pick<AccessRow, 'defaultBranch'>,
  ref: string | null | undefined,
  path: string,
): Promise<Located | null> {
  if (ref) return hasNoNul(ref) ? locate(objects, ref, path) : null;
  const main = await locateInBranch(objects, 'main', path);
  return main ?? locateInBranch(objects, defaultBranch, path);
}

function hasNoNul(ref: string): boolean {
  return !ref.includes('\0');
}

/** Maps `/` to the root and checks any other path. @throws AppError 400 naming `path`. */
export function normalizePath(path: string): string {
  if (path === '/' || path === '') return '';
  checkPath(path);
  return path;
}

/** @throws AppError 400 naming `path`. */
export function checkPath(path: string): void {
  if (path.includes('\0')) throw invalid('path', 'must not contain a NUL character');
  const parts = path.split('/');
  if (parts.includes('')) throw invalid('path', 'must not have an empty segment');
  if (parts.includes('..')) throw invalid('path', 'must not have a ".." segment');
}
