/**
 * Patterns of branch names. `*` stands for any number of characters but slashes, `**` for any number of any, `?` for one
 * but a slash; all else for itself.
 */
import { isRefName } from '../git/names.ts';

/** As long as a name may be. */
const MAX_PATTERN = 240;
const MAX_STARS = 8;

/** Why a text is no pattern; null: it is one. */
export function problemOfPattern(pattern: string): string | null {
  if (pattern.length > MAX_PATTERN) return `must have at most ${MAX_PATTERN} characters`;
  if (pattern.startsWith('refs/')) return 'is the name of a branch, without `refs/heads/`';
  if ((pattern.match(/\*+/g) ?? []).length > MAX_STARS)
    return `must have at most ${MAX_STARS} stars`;
  if (/\*{3}/.test(pattern)) return 'must not have three stars in a row';
  const branch = pattern.replaceAll(/[*?]/g, 'x');
  return branch !== '' && isRefName(branch) ? null : 'must be such that a branch could match it';
}

/**
 * Goes back to the last `*`, or else to the last `**`, where what follows does not match, and lets it stand for one
 * character more: never further, because what an earlier star could take a later one can take as well.
 */
export function matches(pattern: string, name: string): boolean {
  const literal = pattern.search(/[*?]/);
  if (literal < 0) return pattern === name;
  if (!name.startsWith(pattern.slice(0, literal))) return false;
  let star: Star | null = null;
  let globstar: Star | null = null;
  let at = literal;
  let read = literal;
  while (at < name.length) {
    const char = pattern[read];
    if (char === '*' && pattern[read + 1] === '*') {
      read += 2;
      globstar = { at, read };
      star = null;
    } else if (char === '*') {
      read++;
      star = { at, read };
    } else if (char !== undefined && (char === '?' ? name[at] !== '/' : char === name[at])) {
      at++;
      read++;
    } else if (star && name[star.at] !== '/') {
      star.at++;
      ({ at, read } = star);
    } else if (globstar) {
      globstar.at++;
      ({ at, read } = globstar);
      star = null;
    } else {
      return false;
    }
  }
  return /^\**$/.test(pattern.slice(read));
}

/** What it stands for ends before `at`; what follows it in the pattern begins at `read`. */
type Star = { at: number; read: number };
