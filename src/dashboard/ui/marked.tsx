import type { ReactNode } from 'react';

/** Wraps each case-insensitive match of a `find` string in `<mark>`. */
export function highlightMatches(text: string, find: string | readonly string[]): ReactNode {
  const words = [find].flat().filter(Boolean);
  if (words.length === 0) return text;
  // Longest first: an alternation takes the first word that matches.
  words.sort((one, other) => other.length - one.length);
  const pattern = words.map((word) => word.replace(/[$()*+.?[\\\]^{|}]/g, '\\$&')).join('|');
  return (
    text
      .split(new RegExp(`(${pattern})`, 'giu'))
      // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text never move.
      .map((part, at) => (at % 2 === 1 ? <mark key={at}>{part}</mark> : part))
  );
}
