/** Source code in colours: a line at a time, so that each page lays lines out as it needs them. */
import { type CSSProperties, type ReactNode, useEffect, useState } from 'react';
import type { ThemedToken } from 'shiki/core';
import { highlight } from './highlight.ts';
import type { Span } from './patch.ts';

/** The tokens of each line of `code`; null until they are there, and where there are none. */
export function useTokens(language: string | undefined, code: string): ThemedToken[][] | null {
  const [tokens, setTokens] = useState<ThemedToken[][] | null>(null);
  useEffect(() => {
    let isLeft = false;
    setTokens(null);
    // Without colours it can be read as well: what fails there is no one's to mend here.
    highlight(language, code).then(
      (found) => !isLeft && setTokens(found),
      () => {},
    );
    return () => {
      isLeft = true;
    };
  }, [language, code]);
  return tokens;
}

/** A line; `marks`, which are in order, have the class `markClass` on top of the colours. */
export function Line({
  text,
  tokens,
  marks = [],
  markClass,
}: {
  text: string;
  tokens: readonly ThemedToken[] | null | undefined;
  marks?: readonly Span[];
  markClass?: string;
}) {
  const shown = text.replace(/\r$/, '');
  if (shown === '') return ' ';
  // Tokens of another text, which is being replaced, are none of this one.
  const fits = tokens?.map(({ content }) => content).join('') === shown;
  const parts = fits && tokens ? tokens : [{ content: shown, htmlStyle: undefined }];
  const pieces: ReactNode[] = [];
  let at = 0;
  for (const { content, htmlStyle } of parts) {
    const end = at + content.length;
    const inside = marks
      .flatMap(({ from, to }) => [from, to])
      .filter((cut) => cut > at && cut < end);
    for (const [i, from] of [at, ...inside].entries()) {
      const to = inside[i] ?? end;
      const isMarked = marks.some((mark) => mark.from <= from && to <= mark.to);
      pieces.push(
        <span
          key={from}
          style={htmlStyle as CSSProperties | undefined}
          className={isMarked ? markClass : undefined}
        >
          {shown.slice(from, to)}
        </span>,
      );
    }
    at = end;
  }
  return pieces;
}
