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
