/** The lines that a patch adds. */

/** `path` and `text` as Latin-1, which keeps every byte. */
export type AddedLine = { commit: string; path: string; line: number; text: string };

/**
 * The added lines of a patch without context (`git log --patch --cc --unified=0`). Lines within a hunk are
 * counted off by its header, so a file's content cannot pass for a header.
 */
export async function* addedLines(patch: AsyncIterable<string>): AsyncGenerator<AddedLine> {
  let commit = '';
  let path = '';
  let line = 0;
  /** Lines of the new file that the hunk still holds, and the number of parents it is compared with. */
  let left = 0;
  let removed: number[] = [];
  let parents = 1;
  for await (const text of patch) {
    const inHunk = left > 0 || removed.some((count) => count > 0);
    if (inHunk && !text.startsWith('\\')) {
      const marks = text.slice(0, parents);
      if (marks.includes('-')) {
        removed = removed.map((count, i) => count - (marks[i] === '-' ? 1 : 0));
        continue;
      }
      left--;
      // A line that one parent has is that parent's, and was looked at there.
      if (!marks.includes(' ')) yield { commit, path, line, text: text.slice(parents) };
      removed = removed.map((count, i) => count - (marks[i] === ' ' ? 1 : 0));
      line++;
      continue;
    }
    const hunk = /^(@{2,})((?: -\d+(?:,\d+)?)+) \+(\d+)(?:,(\d+))? \1/.exec(text);
    if (hunk) {
      const [, marks = '', olds = '', start, count] = hunk;
      parents = marks.length - 1;
      removed = olds
        .trim()
        .split(' ')
        .map((old) => Number(old.split(',')[1] ?? 1));
      line = Number(start);
      left = Number(count ?? 1);
    } else if (text.startsWith('commit ')) {
      commit = text.slice('commit '.length);
    } else if (text.startsWith('+++ ')) {
      path = unquoted(text.slice('+++ '.length));
    }
  }
}

/** A path as git shows it: with a tab after it when it holds spaces, in quotes when it holds special characters. */
function unquoted(shown: string): string {
  const path = shown.replace(/\t$/, '');
  if (!path.startsWith('"')) return path;
  return path.slice(1, -1).replace(/\\([0-7]{3}|.)/g, (_, escaped: string) => {
    if (escaped.length === 3) return String.fromCharCode(Number.parseInt(escaped, 8));
    return ESCAPES[escaped] ?? escaped;
  });
}

const ESCAPES: Record<string, string> = {
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
