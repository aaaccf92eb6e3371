/** Validation of repository names, descriptions and default branch names. */
import { invalid } from '../base/errors.ts';
import { isCommitId, isRefName, looksLikeFullName, MAX_REF_BYTES } from '../git/names.ts';

const NAME = /^[A-Za-z0-9._-]{1,100}$/;
const MAX_DESCRIPTION = 512;

/** Names are unique in their namespace, case-insensitively. */
export function nameKey(name: string): string {
  return name.toLowerCase();
}

/** Lookups skip the database for names that no repository can have. */
export function isRepositoryName(name: string): boolean {
  return NAME.test(name) && name !== '.' && name !== '..' && !/\.(git|lock)$/i.test(name);
}

/** @throws AppError 400 naming `name`. */
export function checkName(name: string): void {
  if (!NAME.test(name))
    throw invalid('name', 'must be 1 to 100 letters, digits, hyphens, underscores and dots');
  if (!isRepositoryName(name))
    throw invalid('name', 'must not be "." or "..", nor end in ".git" or ".lock"');
}

/** @throws AppError 400 naming `description`. */
export function checkDescription(description: string): void {
  // The limit counts Unicode characters, not UTF-16 code units.
  if (description.length > MAX_DESCRIPTION && [...description].length > MAX_DESCRIPTION)
    throw invalid('description', `must be at most ${MAX_DESCRIPTION} characters`);
  if (description.includes('\0')) throw invalid('description', 'must not contain a NUL character');
}

/** @throws AppError 400 naming `defaultBranch`. */
export function checkBranch(branch: string): void {
  if (!isRefName(branch) || branch === 'HEAD')
    throw invalid(
      'defaultBranch',
      `must be a name that git accepts for a branch, at most ${MAX_REF_BYTES} bytes`,
    );
  if (looksLikeFullName(branch))
    throw invalid('defaultBranch', 'must be a name without refs/ in front, such as main');
  if (isCommitId(branch))
    throw invalid('defaultBranch', 'must not be 40 hexadecimal digits, which name a commit');
}
