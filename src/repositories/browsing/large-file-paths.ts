/** Finds the files of the default branch that are pointers to given large files. */
import { canBePointer } from '../../git/objects/pointer.ts';
import { readPointers } from '../../git/objects/read.ts';
import { locateInBranch } from '../../git/objects/resolve.ts';
import { walkTree } from '../../git/objects/walk.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { RepositoryReadDeps } from '../folder.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { defineBoundedFolderTask } from './changes.ts';

const TIMEOUT_MS = 10_000;
/** Files of the size of a pointer that are read; more are ignored. */
const MAX_CANDIDATES = 20_000;
/** Paths per large file. */
const MAX_PATHS = 20;

/**
 * @returns the paths of each large file on the default branch, by SHA-256
 * @throws AppError 401, 403, 404, 422 if it takes too long
 */
export async function findLargeFilePaths(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  oids: readonly string[],
): Promise<ReadonlyMap<string, string[]>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  if (oids.length === 0) return new Map();
  const { id, defaultBranch } = repository;
  return new Map(await findOnServer(services, id, { defaultBranch, oids }));
}

type Input = { defaultBranch: string; oids: readonly string[] };

const findOnServer = defineBoundedFolderTask(
  'largeFilePaths',
  'The repository has too many files to find the paths of its large files in time',
  ({ git }, dir, { defaultBranch, oids }: Input, aborted): Promise<[string, string[]][]> =>
    git.readSlots.run(
      async () => {
        const branch = await git.objects.use(dir, (all) => locateInBranch(all, defaultBranch, ''));
        if (!branch) return [];
        const timeout = AbortSignal.timeout(TIMEOUT_MS);
        const signal = aborted ? AbortSignal.any([aborted, timeout]) : timeout;
        const candidates: { path: string; sha: string }[] = [];
        for await (const { path, sha, size } of walkTree(dir, branch.commit, signal)) {
          if (canBePointer(size)) candidates.push({ path, sha });
          if (candidates.length >= MAX_CANDIDATES) break;
        }
        const pointers = await git.objects.use(dir, (all) => readPointers(all, candidates));
        const paths = new Map(oids.map((oid): [string, string[]] => [oid, []]));
        for (const { path, sha } of candidates) {
          const found = paths.get(pointers.get(sha)?.oid ?? '');
          if (found && found.length < MAX_PATHS) found.push(path);
        }
        return [...paths];
      },
      { key: dir },
    ),
);
