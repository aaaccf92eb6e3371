/** Mirrors checks of the server (`src/repositories/names.ts`), so that forms report problems before they submit. */

export function checkRepositoryName(name: string): string | null {
  if (!/^[A-Za-z0-9._-]{1,100}$/.test(name))
    return 'must be 1 to 100 letters, digits, hyphens, underscores and dots';
  if (name === '.' || name === '..' || /\.(git|lock)$/i.test(name))
    return 'must not be "." or "..", nor end in ".git" or ".lock"';
  return null;
}

export function checkDescription(description: string): string | null {
  const excess = [...description].length - 512;
  return excess > 0 ? `must be at most 512 characters: ${excess} too many` : null;
}

/** The rules of `git check-ref-format` for the name of a branch or tag. */
export function checkRefName(name: string): string | null {
  const isInvalid =
    name === '' ||
    name === '@' ||
    name === 'HEAD' ||
    name.length > 200 ||
    /[\s~^:?*[\\\p{Cc}]|\.\.|@\{|\/\/|^[-/]|[/.]$/u.test(name) ||
    name.split('/').some((part) => part.startsWith('.') || part.endsWith('.lock'));
  if (isInvalid) return 'must be a name that git accepts for a branch';
  if (/^[0-9a-f]{40}$/i.test(name)) return 'must not be 40 hexadecimal digits, which name a commit';
  return null;
}
