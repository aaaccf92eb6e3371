/** Searches files by name and by content. */

import { invalid, notFound } from '../../base/errors.ts';
import type { Git } from '../../git/git.ts';
import { type FoundLines, InvalidPattern } from '../../git/objects/search.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import { checkFirst } from '../../platform/database/paging.ts';
import type { Caller } from '../../platform/limits/fair-semaphore.ts';
import { type Allowance, takeGitBytes } from '../../platform/limits/reads.ts';
import type { RepositoryReadDeps } from '../folder.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { defineBoundedFolderTask } from './changes.ts';
import { checkPath, locateAtRef, type RefAt } from './contents.ts';

/** Maximum length of the search text. */
const MAX_TEXT = 256;
const TOO_LONG = 'The search took too long: search in one directory, or for a rarer text';

export type FoundFiles = { ref: string; paths: string[]; isTruncated: boolean };
type FileQuery = { ref?: string | null; text: string; first: number };

/**
 * The client of a search. Callers share the search capacity fairly; `signal` ends the search when the client
 * disconnects.
 */
type Searcher = { viewer: Viewer; caller: Caller; signal?: AbortSignal };

/**
 * Finds paths that contain every word of `text`, case-insensitively; matches in the file name come first.
 * @throws AppError 400, 401, 403, 404 for an unknown ref, 422 if it takes too long
 */
export async function findFiles(
  services: RepositoryReadDeps,
  { viewer, caller, signal }: Searcher,
  repository: AccessRow,
  { first, ...search }: FileQuery,
  allowance: Allowance,
): Promise<FoundFiles> {
  demand(viewer, 'repository.read', accessTarget(repository));
  checkText(search.text);
  const limit = checkFirst(first);
  const { id, defaultBranch } = repository;
  const input = { ...search, defaultBranch, limit, caller };
  const found = await findFilesOnServer(services, id, input, signal);
  await takeGitBytes(allowance, found.paths.join('').length);
  return found;
}

type FindFilesInput = RefAt & { text: string; limit: number; caller: Caller };

const findFilesOnServer = defineBoundedFolderTask(
  'filesNamed',
  TOO_LONG,
  async ({ git }, dir, { text, limit, caller, ...at }: FindFilesInput, signal) => {
    const found = await resolveCommitAt(git, dir, at);
    if (!found) return { ref: at.defaultBranch, paths: [], isTruncated: false };
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const search = { commit: found.commit, words, limit };
    const paths = await git.searches.paths(dir, search, { caller, signal });
    return { ref: found.ref, paths: paths.slice(0, limit), isTruncated: paths.length > limit };
  },
);

type LineQuery = FileQuery & { path: string; isPattern: boolean; ignoresCase: boolean };

/**
 * Finds matching lines of text files; binary files are skipped, and at most 20 lines per file are returned.
 * @throws AppError 400, 401, 403, 404 for an unknown ref, 422 if it takes too long
 */
export async function findLines(
  services: RepositoryReadDeps,
  { viewer, caller, signal }: Searcher,
  repository: AccessRow,
  { first, ...search }: LineQuery,
  allowance: Allowance,
): Promise<FoundLines & { ref: string }> {
  demand(viewer, 'repository.read', accessTarget(repository));
  checkText(search.text);
  if (search.path !== '') checkPath(search.path);
  const limit = checkFirst(first);
  const { id, defaultBranch } = repository;
  const input = { ...search, defaultBranch, limit, caller };
  const found = await findLinesOnServer(services, id, input, signal);
  await takeGitBytes(
    allowance,
    found.lines.reduce((sum, { text, path }) => sum + text.length + path.length, 0),
  );
  return found;
}

type FindLinesInput = RefAt & Omit<LineQuery, 'first' | 'ref'> & { limit: number; caller: Caller };

const findLinesOnServer = defineBoundedFolderTask(
  'linesWith',
  TOO_LONG,
  async ({ git }, dir, { defaultBranch, ref, caller, ...search }: FindLinesInput, signal) => {
    const found = await resolveCommitAt(git, dir, { defaultBranch, ref });
    if (!found) return { ref: defaultBranch, lines: [], isTruncated: false };
    try {
      const within = { ...search, commit: found.commit };
      const lines = await git.searches.lines(dir, within, { caller, signal });
      return { ref: found.ref, ...lines };
    } catch (error) {
      throw error instanceof InvalidPattern
        ? invalid('text', 'must be a valid regular expression, and one that is not too expensive')
        : error;
    }
  },
);

/** Null if the repository has no commits. @throws AppError 404 for an unknown ref */
async function resolveCommitAt({ objects }: Git, dir: string, at: RefAt) {
  const found = await objects.use(dir, (objects) => locateAtRef(objects, at, at.ref, ''));
  if (!found && at.ref) throw notFound('Ref');
  return found && { ref: found.ref, commit: found.commit };
}

function checkText(text: string): void {
  if (text.trim() === '') throw invalid('text', 'must not be empty');
  if (text.length > MAX_TEXT) throw invalid('text', `must have at most ${MAX_TEXT} characters`);
  if (/[\0\n]/.test(text)) throw invalid('text', 'must be a single line without NUL characters');
}
