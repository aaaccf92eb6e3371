/** Highlighted source code, one line at a time, so that each page can arrange the lines in its own way. */
import { type CSSProperties, type ReactNode, useEffect, useState } from 'react';
import type { ThemedToken } from 'shiki/core';
import { highlight } from './highlight.ts';
import type { Span } from './patch.ts';

/** The tokens of each line of `code`; null while they load, and for code without highlighting. */
export function useTokens(language: string | undefined, code: string): ThemedToken[][] | null {
  const [tokens, setTokens] = useState<ThemedToken[][] | null>(null);
  useEffect(() => {
    let isStale = false;
    setTokens(null);
    // The code is readable without colours, so a failure to load them is ignored.
    highlight(language, code).then(
      (loaded) => !isStale && setTokens(loaded),
      () => {},
    );
    return () => {
      isStale = true;
    };
  }, [language, code]);
  return tokens;
}

/** One line of code. `marks`, in ascending order, get the class `markClass` in addition to their colours. */
export function HighlightedLine({
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
  // After the text changes, `tokens` may still belong to the old text.
  const isCurrent = tokens?.map(({ content }) => content).join('') === shown;
  const parts = isCurrent && tokens ? tokens : [{ content: shown, htmlStyle: undefined }];
  const pieces: ReactNode[] = [];
  let at = 0;
  for (const { content, htmlStyle } of parts) {
    const end = at + content.length;
    const cuts = marks.flatMap(({ from, to }) => [from, to]).filter((cut) => cut > at && cut < end);
    for (const [i, from] of [at, ...cuts].entries()) {
      const to = cuts[i] ?? end;
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
