/** Parses a unified diff into lines with their numbers on both sides, and finds the words that changed in them. */
import { diffWordsWithSpace } from 'diff';

export type PatchLine = {
  kind: 'hunk' | 'added' | 'removed' | 'same' | 'note';
  text: string;
  before?: number;
  after?: number;
};

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

export function parsePatch(patch: string): PatchLine[] {
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

/** A range of characters in a line; `to` is exclusive. */
export type Span = { from: number; to: number };

/** Longer lines, and lines with more edits, are not compared. */
const MAX_LENGTH = 1_000;
const MAX_EDITS = 100;
/** The part of the longer line that must be unchanged; below it nearly the whole line would be marked. */
const MIN_COMMON = 0.4;

/** Pairs removed lines with the added lines that replace them. Returns changed words by index of the line in the patch. */
export function findChangedWords(lines: readonly PatchLine[]): Map<number, Span[]> {
  const marks = new Map<number, Span[]>();
  for (let at = 0; at < lines.length; ) {
    const removed = countLines(lines, at, 'removed');
    const added = countLines(lines, at + removed, 'added');
    // Blocks with different numbers of lines cannot be paired.
    if (removed === added)
      for (let i = at; i < at + removed; i++) {
        const spans = compareLines(lines[i]?.text ?? '', lines[i + removed]?.text ?? '');
        if (!spans) continue;
        marks.set(i, spans.before);
        marks.set(i + removed, spans.after);
      }
    at += Math.max(removed + added, 1);
  }
  return marks;
}

function countLines(lines: readonly PatchLine[], from: number, kind: PatchLine['kind']): number {
  let end = from;
  while (lines[end]?.kind === kind) end++;
  return end - from;
}

function compareLines(before: string, after: string): { before: Span[]; after: Span[] } | null {
  const longest = Math.max(before.length, after.length);
  if (longest > MAX_LENGTH) return null;
  const parts = diffWordsWithSpace(before, after, { maxEditLength: MAX_EDITS });
  if (!parts) return null;
  const spans = { before: [] as Span[], after: [] as Span[] };
  let [oldAt, newAt, common] = [0, 0, 0];
  for (const { value, added, removed } of parts) {
    const { length } = value;
    if (removed) spans.before.push({ from: oldAt, to: oldAt + length });
    else if (added) spans.after.push({ from: newAt, to: newAt + length });
    else common += value.trim().length;
    if (!added) oldAt += length;
    if (!removed) newAt += length;
  }
  return common >= longest * MIN_COMMON ? spans : null;
}
