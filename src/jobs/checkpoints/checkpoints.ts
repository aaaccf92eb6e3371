/**
 * Checkpoints: the content of a folder of a job, which its next attempt gets. It is stored while the job runs and when an
 * attempt ends after which the job runs again. A checkpoint is removed when its job has ended, because nothing can use it then.
 */
import { posix } from 'node:path';
import { invalid } from '../../base/errors.ts';
import { entersGitFolder, isHeadFile } from '../../git/names.ts';
import { WORKING_DIR } from '../../runners/runner.ts';
import { overlaps } from '../volumes/volumes.ts';

export const CHECKPOINT_RULES = {
  pathBytes: 1_024,
  nameBytes: 255,
  minutes: { min: 0, max: 1_440, default: 10 },
} as const;

type CheckpointRequest = { checkpointPath?: string | null; checkpointMinutes?: number | null };

/** What else lies in the working directory: paths relative to it. */
type OtherFolders = {
  inputs: readonly { to: string }[];
  volumes: readonly { to: string }[];
  cache: readonly { path: string }[];
};

/**
 * Validates where and how often a job is checkpointed.
 * @param others the checked inputs, volumes and caches of the job
 * @throws AppError 400
 */
export function checkCheckpoint(
  { checkpointPath, checkpointMinutes }: CheckpointRequest,
  others: OtherFolders,
): { checkpointPath: string | null; checkpointMinutes: number | null } {
  const { min, max, default: byDefault } = CHECKPOINT_RULES.minutes;
  if (checkpointPath == null) {
    if (checkpointMinutes != null)
      throw invalid('checkpointMinutes', 'can only be given with a path');
    return { checkpointPath: null, checkpointMinutes: null };
  }
  const minutes = checkpointMinutes ?? byDefault;
  if (minutes < min || minutes > max)
    throw invalid('checkpointMinutes', `must be from ${min} to ${max}`);
  return { checkpointPath: checkPath(checkpointPath, others), checkpointMinutes: minutes };
}

/** @returns the normalized path */
function checkPath(given: string, { inputs, volumes, cache }: OtherFolders): string {
  const refuse = (problem: string) => invalid('checkpointPath', problem);
  const { pathBytes, nameBytes } = CHECKPOINT_RULES;
  if (!given.isWellFormed() || /\p{Cc}/u.test(given))
    throw refuse('must be well-formed Unicode without control characters');
  if (Buffer.byteLength(given) > pathBytes)
    throw refuse(`must not be longer than ${pathBytes} bytes`);
  if (given.startsWith('/')) throw refuse('must be relative to the working directory');
  const parts = given.split('/');
  if (parts.includes('..')) throw refuse('must not contain ".."');
  if (parts.some((part) => Buffer.byteLength(part) > nameBytes))
    throw refuse(`must not have names of more than ${nameBytes} bytes`);
  const path = posix.normalize(given).replace(/\/$/, '');
  if (path === '.') throw refuse('must be a folder in the working directory, such as checkpoints');
  if (entersGitFolder(path)) throw refuse('must not be inside .git');
  if (isHeadFile(path)) throw refuse('would make its folder a git repository');
  const own = posix.join(WORKING_DIR, path);
  const hasInput = inputs.some(
    ({ to }) => to !== '' && overlaps(own, posix.resolve(WORKING_DIR, to)),
  );
  if (hasInput) throw refuse('overlaps with the "to" of an input');
  const volume = volumes.findIndex(({ to }) => overlaps(own, to));
  if (volume >= 0) throw refuse(`overlaps with volumes[${volume}].to`);
  const cached = cache.findIndex((one) => overlaps(own, posix.resolve(WORKING_DIR, one.path)));
  if (cached >= 0) throw refuse(`overlaps with cache[${cached}].path`);
  return path;
}
