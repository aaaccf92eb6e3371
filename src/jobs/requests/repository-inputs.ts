/**
 * Inputs of a job from repositories: files of a commit that are copied into its working directory before each attempt. The commit
 * is chosen when the job is created, and a rerun keeps it. The creator must be able to read the repository then, and again when
 * an attempt starts.
 */
import { posix } from 'node:path';
import type pg from 'pg';
import { AppError, inJob, invalid } from '../../base/errors.ts';
import { readUserRights } from '../../identity/authenticate.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { locateFiles } from '../../repositories/commit-files.ts';
import {
  accessColumns,
  findCommitSource,
  getRepository,
  isVisible,
  parseFullName,
  type RepositoryReadDeps,
} from '../../repositories/repositories.ts';
import { Unstartable } from '../../runners/runner.ts';
import { overlaps } from '../volumes/volumes.ts';
import type { InputPaths, RepositoryInputPaths } from './request.ts';

/** As stored with the job. `repo` is the name as it was requested, and may be that of another repository now. */
export type RepositoryInput = RepositoryInputPaths & {
  repositoryId: string;
  ref: string;
  commitSha: string;
  /** The id of the tree of a folder; null for a file. */
  tree: string | null;
};

export function readRepositoryInputs({
  repositoryInputs,
}: {
  repositoryInputs: unknown;
}): RepositoryInput[] {
  return repositoryInputs as RepositoryInput[];
}

/** The inputs of one request, of which there are several in a run. */
type Requested = {
  /** The name of the job in the file of a run: errors name it. */
  runJob?: string;
  repositoryInputs: readonly RepositoryInputPaths[];
  inputs: readonly InputPaths[];
};

/**
 * Finds the commits of repository inputs, each of them once.
 * @returns the inputs of each request
 * @throws AppError 400, 404 naming the field `inputs`, 401
 */
export async function resolveRepositoryInputs(
  services: RepositoryReadDeps,
  viewer: Viewer,
  requests: readonly Requested[],
): Promise<RepositoryInput[][]> {
  const found = new Map<string, Promise<ResolvedInput>>();
  const resolved: RepositoryInput[][] = [];
  const resolve = (source: Source) =>
    found.getOrInsertComputed(JSON.stringify(source), () => resolveOne(services, viewer, source));
  for (const { runJob, ...request } of requests)
    try {
      resolved.push(await resolveRequest(request, resolve));
    } catch (error) {
      throw runJob === undefined ? error : inJob(runJob, error);
    }
  return resolved;
}

async function resolveRequest(
  { repositoryInputs, inputs }: Requested,
  resolve: (source: Source) => Promise<ResolvedInput>,
): Promise<RepositoryInput[]> {
  const places = new Set(inputs.map(({ to }) => to.replace(/\/$/, '')));
  const resolved: RepositoryInput[] = [];
  const mounted: string[] = [];
  for (const { to, readOnly, ...source } of repositoryInputs) {
    const one = await resolve(source);
    const isInFolder = one.tree === null && (to === '' || to.endsWith('/'));
    const place = isInFolder ? `${to}${posix.basename(one.path)}` : to.replace(/\/$/, '');
    if (places.has(place))
      throw invalid(
        'inputs',
        `two of them have the same place: ${place || 'the working directory'}`,
      );
    places.add(place);
    if (readOnly) mounted.push(place);
    resolved.push({ ...one, to, readOnly });
  }
  // One of them would be hidden.
  for (const place of mounted)
    for (const other of places)
      if (other !== place && overlaps(other, place))
        throw invalid('inputs', `${place} is read only, and overlaps ${other}`);
  return resolved;
}

type Source = Omit<RepositoryInputPaths, 'to' | 'readOnly'>;
type ResolvedInput = Omit<RepositoryInput, 'to' | 'readOnly'>;

async function resolveOne(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { repo, ref, path }: Source,
): Promise<ResolvedInput> {
  const missing = (what: string) =>
    new AppError('not_found', `inputs: there is no ${what}`, { field: 'inputs' });
  const key = parseFullName('inputs', repo);
  const { id, defaultBranch } = await getRepository(services, viewer, key, {}).catch((error) => {
    throw isNotFound(error) ? missing(`repository ${repo}`) : error;
  });
  const found = await locateFiles(services, id, { defaultBranch, ref, path }).catch((error) => {
    throw isNotFound(error) ? missing(`repository ${repo}`) : error;
  });
  if (!found && ref === null) throw invalid('inputs', `the repository ${repo} has no commits`);
  if (!found) throw missing(`branch, tag or commit ${ref} in ${repo}`);
  const { object, commitSha } = found;
  if (object?.type !== 'tree' && object?.type !== 'blob')
    throw missing(`file or folder ${path} in ${repo} at ${found.ref}`);
  const tree = object.type === 'tree' ? object.oid : null;
  return { repositoryId: id, repo, ref: found.ref, path, commitSha, tree };
}

function isNotFound(error: unknown): boolean {
  return error instanceof AppError && error.code === 'not_found';
}

/**
 * Checks that the viewer may run a job again with the commits of another job.
 * @throws AppError 404, 409 naming the field `inputs`
 */
export async function demandRepositoryInputs(
  services: RepositoryReadDeps,
  viewer: Viewer,
  inputs: readonly RepositoryInput[],
): Promise<void> {
  for (const { repo, repositoryId, commitSha } of inputs) {
    const { isThere } = await findCommitSource(services, viewer, { repositoryId, commitSha }).catch(
      (error) => {
        if (!isNotFound(error)) throw error;
        const message = `inputs: the repository ${repo} was deleted, or you may not read it`;
        throw new AppError('not_found', message, { field: 'inputs' });
      },
    );
    if (!isThere)
      throw new AppError('conflict', `inputs: the commit ${commitSha} is no longer in ${repo}`, {
        field: 'inputs',
      });
  }
}

/**
 * Checks that the creator of a job may still read its repository inputs.
 * @throws Unstartable
 */
export async function demandReadableInputs(
  { db, pool }: { db: Db; pool: pg.Pool },
  job: { createdById: string | null; repositoryInputs: unknown },
): Promise<void> {
  const inputs = readRepositoryInputs(job);
  if (inputs.length === 0) return;
  const creator = job.createdById && (await readUserRights(pool, job.createdById));
  const rows = await db.repository.findMany({
    where: { id: { in: inputs.map(({ repositoryId }) => repositoryId) } },
    select: accessColumns,
  });
  const byId = new Map(rows.map((row) => [row.id, row]));
  for (const { repo, repositoryId } of inputs) {
    const row = byId.get(repositoryId);
    if (!row) throw new Unstartable(`The repository ${repo} is an input, and was deleted`);
    if (!creator || !isVisible(creator, row))
      throw new Unstartable(
        `The repository ${repo} is an input, and the creator of the job may not read it any more`,
      );
  }
}
