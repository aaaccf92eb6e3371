/**
 * Glob patterns for branch names: `*` matches any number of characters except `/`, `**` any number of any
 * characters, `?` one character except `/`.
 */
import { isRefName } from '../git/names.ts';

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

/**
 * On a mismatch, backtracks to the last `*`, or else to the last `**`, and lets it match one more character.
 * Backtracking further is never needed: what an earlier wildcard could match, a later one can match as well. So
 * the time is bounded.
 */
export function matchesPattern(pattern: string, name: string): boolean {
  const literal = pattern.search(/[*?]/);
  if (literal < 0) return pattern === name;
  if (!name.startsWith(pattern.slice(0, literal))) return false;
  let star: Wildcard | null = null;
  let globstar: Wildcard | null = null;
  let position = literal;
  let next = literal;
  while (position < name.length) {
    const char = pattern[next];
    if (char === '*' && pattern[next + 1] === '*') {
      next += 2;
      globstar = { position, next };
      star = null;
    } else if (char === '*') {
      next++;
      star = { position, next };
    } else if (
      char !== undefined &&
      (char === '?' ? name[position] !== '/' : char === name[position])
    ) {
      position++;
      next++;
    } else if (star && name[star.position] !== '/') {
      star.position++;
      ({ position, next } = star);
    } else if (globstar) {
      globstar.position++;
      ({ position, next } = globstar);
      star = null;
    } else {
      return false;
    }
  }
  return /^\**$/.test(pattern.slice(next));
}

/** A wildcard that has matched up to `position` in the name; the rest of the pattern starts at `next`. */
type Wildcard = { position: number; next: number };
