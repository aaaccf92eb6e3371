/**
 * Glob patterns for branch names: `*` matches any number of characters except `/`, `**` any number of any
 * characters, `?` one character except `/`.
 */
import { Pattern } from '../base/pattern.ts';
import { isRefName } from '../git/names.ts';

export { type MatchingWork, Pattern } from '../base/pattern.ts';

/** The maximum length of a branch name. */
const MAX_PATTERN = 240;
const MAX_STARS = 8;

/** Returns why a text is not a valid pattern, or null if it is valid. */
export function validatePattern(pattern: string): string | null {
  if (pattern.length > MAX_PATTERN) return `must have at most ${MAX_PATTERN} characters`;
  if (pattern.startsWith('refs/')) return 'must be a branch name without `refs/heads/`';
  if ((pattern.match(/\*+/g) ?? []).length > MAX_STARS)
    return `must have at most ${MAX_STARS} wildcards * or **`;
  if (/\*{3}/.test(pattern)) return 'must not contain ***';
  const branch = pattern.replaceAll(/[*?]/g, 'x');
  return branch !== '' && isRefName(branch) ? null : 'must match at least one valid branch name';
}

export function matchesPattern(pattern: string, name: string): boolean {
  return new Pattern(pattern).matches(name);
}
