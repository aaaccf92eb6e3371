/** Checks names against git's rules before they reach a command line or a protocol. */

/** Whether `refs/heads/<name>` is a well-formed ref (git-check-ref-format, rules 1 to 10). */
export function isRefName(name: string): boolean {
  return (
    name.length > 0 &&
    Buffer.byteLength(name) <= MAX_REF_BYTES &&
    name !== '@' &&
    !name.startsWith('-') &&
    !FORBIDDEN.test(name) &&
    name.split('/').every(isComponent)
  );
}

/** Whether git reads `name` as a commit id, which takes precedence over a branch or a tag of that name. */
export function isCommitId(name: string): boolean {
  return /^[0-9a-f]{40}$/i.test(name);
}

/**
 * Whether git takes a branch or tag of this name for another ref: beside `refs/heads/refs/heads/main`, it refuses every push to
 * `main` as ambiguous.
 */
export function looksLikeFullName(name: string): boolean {
  return name.startsWith('refs/');
}

/** Whether `text` is 40 hexadecimal digits in lower case. */
export function isObjectId(text: string): boolean {
  return /^[0-9a-f]{40}$/.test(text);
}

/** A loose ref is a file: its name and the suffix `.lock` must fit in a path. */
export const MAX_REF_BYTES = 240;
// biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern rejects control characters.
const FORBIDDEN = /[\x00-\x20\x7f~^:?*[\\]|\.\.|@\{|\.$/;

function isComponent(part: string): boolean {
  return part !== '' && !part.startsWith('.') && !part.endsWith('.lock');
}

/** Characters that HFS+ ignores in names: the list of git's `utf8.c`. */
const IGNORED_BY_HFS = /[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]/g;
/** NTFS has short names such as `GIT~1`, ignores dots and spaces at the end, and names streams after a colon. */
const GIT_FOLDER = /^(?:\.git|git~\d+)[. ]*(?::|$)/i;
const HEAD = /^head[. ]*(?::|$)/i;

/** Whether a path leads into a `.git` on any file system. A backslash separates folders on some of them. */
export function entersGitFolder(path: string): boolean {
  return path.split(/[/\\]/).some((part) => GIT_FOLDER.test(part.replace(IGNORED_BY_HFS, '')));
}

/**
 * Whether git takes a file of this path for the `HEAD` of a repository. Git treats a folder without a `.git` as a repository only
 * if it has this file, and then runs the programs that a `config` beside it names.
 */
export function isHeadFile(path: string): boolean {
  const name = path.split(/[/\\]/).at(-1) as string;
  return HEAD.test(name.replace(IGNORED_BY_HFS, ''));
}
