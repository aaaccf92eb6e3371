/** The lines of a unified diff, each with its number before and after. */

export type PatchLine = {
  kind: 'hunk' | 'added' | 'removed' | 'same' | 'note';
  text: string;
  before?: number;
  after?: number;
};

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

export function linesOf(patch: string): PatchLine[] {
  let before = 0;
  let after = 0;
  const lines = patch.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line): PatchLine => {
    const hunk = HUNK.exec(line);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      return { kind: 'hunk', text: line };
    }
    const text = line.slice(1);
    switch (line[0]) {
      case '+':
        return { kind: 'added', text, after: after++ };
      case '-':
        return { kind: 'removed', text, before: before++ };
      case '\\':
        return { kind: 'note', text: line.slice(2) };
      default:
        return { kind: 'same', text, before: before++, after: after++ };
    }
  });
}
