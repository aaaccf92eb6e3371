import { useMemo } from 'react';
import { languageOf } from './highlight.ts';
import { changedWords, linesOf, type PatchLine } from './patch.ts';
import { Line, useTokens } from './tokens.tsx';

const LOOKS: Record<PatchLine['kind'], [mark: string, className: string, word: string]> = {
  hunk: ['', 'bg-run-soft text-dim', ''],
  added: ['+', 'bg-good-soft', 'added'],
  removed: ['-', 'bg-bad-soft', 'removed'],
  same: ['', '', ''],
  note: ['', 'text-dim italic', ''],
};

const NUMBER = 'w-px px-2 text-right align-top text-dim tabular-nums select-none';

/** What changed in a file, line by line; long lines scroll within it. */
export function PatchView({
  text,
  path,
  oldPath,
}: {
  text: string;
  path: string;
  oldPath: string | null;
}) {
  const { lines, marks, before, after } = useMemo(() => read(text), [text]);
  const tokensBefore = useTokens(languageOf(oldPath ?? path), before.text);
  const tokensAfter = useTokens(languageOf(path), after.text);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
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
            const [mark, className, word] = LOOKS[line.kind];
            const tokens =
              line.kind === 'removed'
                ? tokensBefore?.[before.numbers.get(index) ?? -1]
                : tokensAfter?.[after.numbers.get(index) ?? -1];
            return (
              // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a patch never move.
              <tr key={index} className={className}>
                <td className={NUMBER}>{line.before}</td>
                <td className={NUMBER}>{line.after}</td>
                <td className="w-px pl-1 align-top select-none">
                  <span aria-hidden>{mark}</span>
                  <span className="sr-only">{word}</span>
                </td>
                <td className="px-2 whitespace-pre">
                  <Line
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

/** The lines, and what they say of the file before and after: a side is coloured as a whole. */
function read(text: string) {
  const lines = linesOf(text);
  return {
    lines,
    marks: changedWords(lines),
    before: sideOf(lines, 'removed'),
    after: sideOf(lines, 'added'),
  };
}

/** `numbers`: where a line of the patch stands in the text of the side. */
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
