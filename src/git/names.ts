/** What git accepts as a name; asked before a name reaches a command line or a protocol. */

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

/** Whether git takes `name` for the id of a commit before it looks for a branch or a tag of that name. */
export function isCommitId(name: string): boolean {
  return /^[0-9a-f]{40}$/i.test(name);
}

/** 40 hexadecimal digits in lower case. */
export function isObjectId(text: string): boolean {
  return /^[0-9a-f]{40}$/.test(text);
}

/** A loose ref is a file: its name and `.lock` must fit in a path. */
export const MAX_REF_BYTES = 240;
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is refused.
const FORBIDDEN = /[\x00-\x20\x7f~^:?*[\\]|\.\.|@\{|\.$/;

function isComponent(part: string): boolean {
  return part !== '' && !part.startsWith('.') && !part.endsWith('.lock');
}
