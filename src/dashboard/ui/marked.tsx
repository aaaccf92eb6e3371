import type { ReactNode } from 'react';

/** Text in which each place that has one of `find`, in any case, is marked. */
export function marked(text: string, find: string | readonly string[]): ReactNode {
  const words = [find].flat().filter(Boolean);
  if (words.length === 0) return text;
  // Of words that begin alike the longest is marked.
  words.sort((one, other) => other.length - one.length);
  const pattern = words.map((word) => word.replace(/[$()*+.?[\\\]^{|}]/g, '\\$&')).join('|');
  return (
    text
      .split(new RegExp(`(${pattern})`, 'giu'))
      // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text never move.
      .map((part, at) => (at % 2 === 1 ? <mark key={at}>{part}</mark> : part))
  );
}
