/** What the server refuses (`src/repositories/names.ts`), said before it does. The server decides all the same. */

export function nameProblem(name: string): string | null {
  if (!/^[A-Za-z0-9._-]{1,100}$/.test(name))
    return 'must be 1 to 100 letters, digits, hyphens, underscores and dots';
  if (name === '.' || name === '..' || /\.(git|lock)$/i.test(name))
    return 'must not be "." or "..", nor end in ".git" or ".lock"';
  return null;
}

export function descriptionProblem(description: string): string | null {
  const over = [...description].length - 512;
  return over > 0 ? `must be at most 512 characters: ${over} too many` : null;
}

/** The rules of `git check-ref-format` for the name of a branch or tag. */
export function branchProblem(name: string): string | null {
  const bad =
    name === '' ||
    name === '@' ||
    name === 'HEAD' ||
    name.length > 200 ||
    /[\s~^:?*[\\\p{Cc}]|\.\.|@\{|\/\/|^[-/]|[/.]$/u.test(name) ||
    name.split('/').some((part) => part.startsWith('.') || part.endsWith('.lock'));
  if (bad) return 'must be a name that git accepts for a branch';
  if (/^[0-9a-f]{40}$/i.test(name)) return 'must not be 40 hexadecimal digits, which name a commit';
  return null;
}
