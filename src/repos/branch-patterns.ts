/**
 * Patterns of branch names. `*` stands for any number of characters but slashes, `**` for any number of any, `?` for one
 * but a slash; all else for itself.
 */
import { isRefName } from '../git/names.ts';

/** Of a rule: its length, and its stars, because each is tried at each character of a name. */
export const MAX_PATTERN = 240;
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

/** In time that grows with the product of both lengths, whatever they are. */
export function matches(pattern: string, name: string): boolean {
  const literal = pattern.search(/[*?]/);
  if (literal < 0) return pattern === name;
  if (!name.startsWith(pattern.slice(0, literal))) return false;
  /** Whether what was read of the pattern can stand for the first `at` characters. */
  let reached = Array.from({ length: name.length + 1 }, (_, at) => at === literal);
  for (const [token] of pattern.slice(literal).matchAll(/\*\*?|[^*]/g)) {
    const next = new Array<boolean>(name.length + 1).fill(false);
    for (let at = 0; at <= name.length; at++) {
      if (token.startsWith('*')) {
        const goesOn = at > 0 && next[at - 1] && (token === '**' || name[at - 1] !== '/');
        next[at] = reached[at] || goesOn === true;
      } else if (at > 0 && reached[at - 1]) {
        next[at] = token === '?' ? name[at - 1] !== '/' : name[at - 1] === token;
      }
    }
    reached = next;
  }
  return reached[name.length] === true;
}
