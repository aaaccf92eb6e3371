/** The lines of a unified diff, each with its number before and after. */
import { diffWordsWithSpace } from 'diff';

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

/* Which words changed in the lines of a patch that replace each other. */

/** Characters of a line, from `from` to before `to`. */
export type Span = { from: number; to: number };

/** A longer line is compared with nothing, and lines that differ in more words are other lines. */
const MAX_LENGTH = 1_000;
const MAX_EDITS = 100;
/** Lines that have less in common, of the longer one, would be marked nearly all over. */
const LEAST_COMMON = 0.4;

/** By the number of the line in the patch. */
export function changedWords(lines: readonly PatchLine[]): Map<number, Span[]> {
  const marks = new Map<number, Span[]>();
  for (let at = 0; at < lines.length; ) {
    const removed = runOf(lines, at, 'removed');
    const added = runOf(lines, at + removed, 'added');
    // What became more lines, or fewer, has no pairs.
    if (removed === added)
      for (let i = at; i < at + removed; i++) {
        const spans = compare(lines[i]?.text ?? '', lines[i + removed]?.text ?? '');
        if (!spans) continue;
        marks.set(i, spans.before);
        marks.set(i + removed, spans.after);
      }
    at += Math.max(removed + added, 1);
  }
  return marks;
}

function runOf(lines: readonly PatchLine[], from: number, kind: PatchLine['kind']): number {
  let end = from;
  while (lines[end]?.kind === kind) end++;
  return end - from;
}

function compare(before: string, after: string): { before: Span[]; after: Span[] } | null {
  const longest = Math.max(before.length, after.length);
  if (longest > MAX_LENGTH) return null;
  const parts = diffWordsWithSpace(before, after, { maxEditLength: MAX_EDITS });
  if (!parts) return null;
  const spans = { before: [] as Span[], after: [] as Span[] };
  let [old, fresh, common] = [0, 0, 0];
  for (const { value, added, removed } of parts) {
    const { length } = value;
    if (removed) spans.before.push({ from: old, to: old + length });
    else if (added) spans.after.push({ from: fresh, to: fresh + length });
    else common += value.trim().length;
    if (!added) old += length;
    if (!removed) fresh += length;
  }
  return common >= longest * LEAST_COMMON ? spans : null;
}
