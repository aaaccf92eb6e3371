/**
 * The binary form of a tree: `<mode> <name>\0<20 bytes>`, again and again. isomorphic-git parses what it reads from the disk
 * itself, not bytes from `cat-file`, and in another order.
 */

export type RawEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits, as git shows it; the object leaves out the leading zero. */
  mode: string;
  sha: string;
};

const SPACE = 32;
const ID_BYTES = 20;

/** Names are UTF-8 by convention; other bytes become U+FFFD, and such a file cannot be asked for by path. */
export function parseTree(data: Buffer): RawEntry[] {
  const entries: RawEntry[] = [];
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(SPACE, at);
    const end = data.indexOf(0, space);
    if (space < 0 || end < 0) throw new Error('a tree object is malformed');
    const mode = data.toString('latin1', at, space).padStart(6, '0');
    entries.push({
      name: data.toString('utf8', space + 1, end),
      type: mode === '040000' ? 'directory' : 'file',
      mode,
      sha: data.toString('hex', end + 1, end + 1 + ID_BYTES),
    });
    at = end + 1 + ID_BYTES;
  }
  return entries;
}
