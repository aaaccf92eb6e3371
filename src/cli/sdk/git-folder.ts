/** Names that a file system takes for `.git`, by the rules with which git itself refuses paths of a tree. */

/** Characters that HFS+ ignores in names: the list of git's `utf8.c`. */
const IGNORED = /[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]/g;
/** NTFS has short names such as `GIT~1`, ignores dots and spaces at the end, and names streams after a colon. */
const GIT = /^(?:\.git|git~\d+)[. ]*(?::|$)/i;

/** Git treats a folder as a repository only if it has this file. NTFS ignores dots and spaces at its end, too. */
const HEAD = /^head[. ]*(?::|$)/i;

/**
 * Whether git could use the file as its own: it is in a `.git`, or it makes its folder a repository without one, with a `config`
 * beside it whose programs run at `git status`.
 */
export function isOfGit(path: string): boolean {
  const name = path.split(/[/\\]/).at(-1) as string;
  return entersGitFolder(path) || HEAD.test(name.replace(IGNORED, ''));
}

/** Whether a path leads into a `.git` on any file system. A backslash separates folders on some of them. */
function entersGitFolder(path: string): boolean {
  return path.split(/[/\\]/).some((part) => GIT.test(part.replace(IGNORED, '')));
}
