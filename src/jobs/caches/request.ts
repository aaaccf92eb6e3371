/** The caches that a job names: folders that it finds as an earlier job of the repository has left them. */
import { posix } from 'node:path';
import { invalid } from '../../base/errors.ts';
import { entersGitFolder } from '../../git/names.ts';
import { MOUNTS, WORKING_DIR } from '../../runners/runner.ts';
import { overlaps } from '../volumes/volumes.ts';

export type CacheRequest = {
  /** Below the working directory, or below the home folder: `~/.npm`. */
  path: string;
  /** May contain variables, such as `npm-${hash:package-lock.json}`. */
  key: string;
  restoreKeys?: readonly string[] | null;
};

/** As stored with the job. */
export type JobCache = {
  /** Normalized. */
  path: string;
  key: string;
  restoreKeys: readonly string[];
  /** It is only restored, because whoever created the job may not write to the branch. */
  readOnly?: boolean;
};

export const CACHE_RULES = {
  maxEntries: 16,
  maxRestoreKeys: 10,
  /** Of a key, before and after its variables were replaced. */
  keyLength: 512,
  pathBytes: 1_024,
  /** Each is a process of git before the job starts. */
  maxHashPaths: 64,
} as const;

/** Values of the variables of keys. */
export type KeyVariables = {
  /** The branch or the tag of the job; empty for a snapshot. */
  branch: string;
  os: string;
  arch: string;
  /** Path of a file or folder of the commit → its git object id; `none` if it does not exist. */
  hashes: ReadonlyMap<string, string>;
};

const NO_HASH = 'none';
const HOME = '~/';
/** The folder, in the home folder, in which a cache is unpacked. */
export const UNPACKED = '.loam-cache';
const FOLDERS_OF_LOAM = ['.loam', UNPACKED];
const VARIABLE = /\$\{([^}]*)\}/g;
const HASH = 'hash:';
/** The texts that replace them are not longer; that of the branch is known when the commit is. */
const NAME_LENGTHS = { os: 16, arch: 16, branch: 0 } as const;
const HASH_LENGTH = 40;

export function readCaches({ cache }: { cache: unknown }): JobCache[] {
  return cache as JobCache[];
}

/**
 * @param request.hasRepository caches belong to a repository
 * @param request.mounts absolute paths at which something is mounted for the job
 * @throws AppError 400 naming the field `cache`
 */
export function checkCaches(
  caches: readonly CacheRequest[],
  { hasRepository, mounts }: { hasRepository: boolean; mounts: readonly string[] },
): JobCache[] {
  const { maxEntries, maxRestoreKeys } = CACHE_RULES;
  if (caches.length === 0) return [];
  if (!hasRepository) throw invalid('cache', 'can only be given with repo');
  if (caches.length > maxEntries)
    throw invalid('cache', `must not have more than ${maxEntries} entries`);
  const checked = caches.map(({ path, key, restoreKeys, ...rest }, index) => {
    const keys = restoreKeys ?? [];
    if (keys.length > maxRestoreKeys)
      throw invalid('cache', `[${index}].restoreKeys must not have more than ${maxRestoreKeys}`);
    checkKey(key, `[${index}].key`);
    for (const [at, one] of keys.entries()) checkKey(one, `[${index}].restoreKeys[${at}]`);
    return {
      path: checkPath(path, index),
      key,
      restoreKeys: [...keys],
      // Of a rerun.
      ...((rest as JobCache).readOnly && { readOnly: true }),
    };
  });
  const { maxHashPaths } = CACHE_RULES;
  if (listHashPaths(checked).length > maxHashPaths)
    throw invalid('cache', `keys must not have more than ${maxHashPaths} paths after hash:`);
  const places = checked.map(({ path }) => toAbsolutePath(path));
  for (const [index, place] of places.entries()) {
    const other = places.findIndex((one, i) => i < index && overlaps(one, place));
    if (other >= 0)
      throw invalid(
        'cache',
        `[${index}].path is the same as [${other}].path, or one is inside the other`,
      );
    const mount = mounts.find((to) => overlaps(to, place));
    if (mount !== undefined)
      throw invalid('cache', `[${index}].path overlaps what is mounted at ${mount}`);
  }
  return checked;
}

function checkKey(key: string, name: string): void {
  const refuse = (problem: string) => invalid('cache', `${name} ${problem}`);
  const { keyLength } = CACHE_RULES;
  if (!key) throw refuse('must not be empty');
  if (key.length > keyLength) throw refuse(`must not be longer than ${keyLength} characters`);
  if (!key.isWellFormed() || /\p{Cc}/u.test(key))
    throw refuse('must be well-formed Unicode without control characters');
  for (const [whole, variable = ''] of key.matchAll(VARIABLE)) {
    const isHash = variable.startsWith(HASH);
    if (isHash ? !variable.slice(HASH.length) : !Object.hasOwn(NAME_LENGTHS, variable))
      throw refuse(
        `has the unknown variable ${whole.slice(0, 100)}: use \${hash:path}, \${branch}, \${os} or \${arch}`,
      );
    if (isHash) checkHashPath(variable.slice(HASH.length), refuse);
  }
  if (key.replace(VARIABLE, '').includes('${')) throw refuse('must close each variable with "}"');
  if (longestLength(key, '') > keyLength)
    throw refuse(`must not be longer than ${keyLength} characters`);
}

/** The most characters that a key has after its variables were replaced. */
function longestLength(key: string, branch: string): number {
  let length = key.length;
  for (const [whole, variable = ''] of key.matchAll(VARIABLE)) {
    length -= whole.length;
    if (variable.startsWith(HASH)) length += HASH_LENGTH;
    else length += variable === 'branch' ? branch.length : NAME_LENGTHS.os;
  }
  return length;
}

/** @throws AppError 400 naming the field `cache` if a key is too long with this branch or tag */
export function checkKeyLengths(caches: readonly JobCache[], branch: string): void {
  const { keyLength } = CACHE_RULES;
  for (const [index, { key, restoreKeys }] of caches.entries())
    if ([key, ...restoreKeys].some((one) => longestLength(one, branch) > keyLength))
      throw invalid(
        'cache',
        `[${index}].key is longer than ${keyLength} characters with the branch`,
      );
}

function checkHashPath(path: string, refuse: (problem: string) => Error): void {
  if (path.startsWith('/') || path.split('/').includes('..'))
    throw refuse('must name files of the repository: a path without ".." and "/" at its beginning');
  if (/^[./]*$/.test(path))
    throw refuse('must name a file or folder of the repository after hash:');
}

/** @returns the normalized path */
function checkPath(path: string, index: number): string {
  const refuse = (problem: string) => invalid('cache', `[${index}].path ${problem}`);
  if (!path.isWellFormed() || /\p{Cc}/u.test(path))
    throw refuse('must be well-formed Unicode without control characters');
  if (Buffer.byteLength(path) > CACHE_RULES.pathBytes)
    throw refuse(`must not be longer than ${CACHE_RULES.pathBytes} bytes`);
  if (path.startsWith('/'))
    throw refuse('must be below the working directory, or begin with "~/" for the home folder');
  if (path.split('/').includes('..')) throw refuse('must not contain ".."');
  const normal = posix.normalize(path).replace(/\/$/, '');
  const isHome = normal === '~' || normal.startsWith(HOME);
  const inside = isHome ? normal.slice(HOME.length) : normal;
  if (inside === '' || inside === '.')
    throw refuse('must be a folder of its own, such as node_modules or ~/.npm');
  if (entersGitFolder(inside)) throw refuse('must not be inside .git');
  if (isHome && FOLDERS_OF_LOAM.includes(inside.split('/')[0] ?? ''))
    throw refuse('must not be a folder of Loam');
  return normal;
}

/** The path as the job sees it. */
export function toAbsolutePath(path: string): string {
  return path.startsWith(HOME)
    ? `${MOUNTS.home}/${path.slice(HOME.length)}`
    : `${WORKING_DIR}/${path}`;
}

/** Which folder of the job a cache is in, and where in it. */
export function placeOf(path: string): { folder: 'work' | 'home'; inside: string } {
  return path.startsWith(HOME)
    ? { folder: 'home', inside: path.slice(HOME.length) }
    : { folder: 'work', inside: path };
}

/** The paths whose hash the keys contain. */
export function listHashPaths(caches: readonly JobCache[]): string[] {
  const keys = caches.flatMap(({ key, restoreKeys }) => [key, ...restoreKeys]);
  const variables = keys.flatMap((key) => [...key.matchAll(VARIABLE)].map(([, name = '']) => name));
  const paths = variables.filter((name) => name.startsWith(HASH));
  return [...new Set(paths.map((name) => name.slice(HASH.length)))];
}

/** Replaces the variables of a key. */
export function expandKey(key: string, { hashes, ...names }: KeyVariables): string {
  return key.replace(VARIABLE, (_whole, name: string) =>
    name.startsWith(HASH)
      ? (hashes.get(name.slice(HASH.length)) ?? NO_HASH)
      : names[name as keyof typeof names],
  );
}
