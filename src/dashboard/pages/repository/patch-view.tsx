import { useMemo } from 'react';
import { languageOf } from './highlight.ts';
import { findChangedWords, type PatchLine, parsePatch } from './patch.ts';
import { HighlightedLine, useTokens } from './tokens.tsx';

const STYLES: Record<PatchLine['kind'], [mark: string, className: string, word: string]> = {
  hunk: ['', 'bg-run-soft text-dim', ''],
  added: ['+', 'bg-good-soft', 'added'],
  removed: ['-', 'bg-bad-soft', 'removed'],
  same: ['', '', ''],
  note: ['', 'text-dim italic', ''],
};

const LINE_NUMBER = 'w-px px-2 text-right align-top text-dim tabular-nums select-none';

/** The unified diff of a file; long lines scroll inside it. */
export function PatchView({
  text,
  path,
  oldPath,
}: {
  text: string;
  path: string;
  oldPath: string | null;
}) {
  const { lines, marks, before, after } = useMemo(() => readPatch(text), [text]);
  const tokensBefore = useTokens(languageOf(oldPath ?? path), before.text);
  const tokensAfter = useTokens(languageOf(path), after.text);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
    <section tabIndex={0} aria-label={`Changes of ${path}`} className="overflow-x-auto">
      <table className="w-full border-collapse font-mono text-[13px] leading-5">
        <thead className="sr-only">
          <tr>
            <th scope="col">Line before</th>
            <th scope="col">Line after</th>
            <th scope="col">Change</th>
            <th scope="col">Text</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line, index) => {
            const [mark, className, word] = STYLES[line.kind];
            const tokens =
              line.kind === 'removed'
                ? tokensBefore?.[before.numbers.get(index) ?? -1]
                : tokensAfter?.[after.numbers.get(index) ?? -1];
            return (
              // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a patch are never reordered.
              <tr key={index} className={className}>
                <td className={LINE_NUMBER}>{line.before}</td>
                <td className={LINE_NUMBER}>{line.after}</td>
                <td className="w-px pl-1 align-top select-none">
                  <span aria-hidden>{mark}</span>
                  <span className="sr-only">{word}</span>
                </td>
                <td className="px-2 whitespace-pre">
                  <HighlightedLine
                    text={line.text}
                    tokens={tokens}
                    marks={marks.get(index)}
                    markClass={line.kind === 'removed' ? 'word-removed' : 'word-added'}
                  />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

/** Each side of the diff is highlighted as one text, because grammars need the context of the lines around. */
function readPatch(text: string) {
  const lines = parsePatch(text);
  return {
    lines,
    marks: findChangedWords(lines),
    before: sideOf(lines, 'removed'),
    after: sideOf(lines, 'added'),
  };
}

/** The text of one side. `numbers` maps the index of a line in the patch to its index in that text. */
function sideOf(lines: readonly PatchLine[], kind: 'removed' | 'added') {
  const numbers = new Map<number, number>();
  const texts: string[] = [];
  for (const [index, line] of lines.entries()) {
    if (line.kind !== kind && line.kind !== 'same') continue;
    numbers.set(index, texts.length);
    texts.push(line.text);
  }
  return { text: texts.join('\n'), numbers };
}
