import { useLocation, useNavigate } from '@tanstack/react-router';
import { useEffect } from 'react';
import { languageOf } from './highlight.ts';
import { Line, useTokens } from './tokens.tsx';

/** The browser lays out what is in sight alone, and still finds text in all of it. */
const PIECE = 100;
const LINE_PX = 24;

type Range = { from: number; to: number };

function rangeOf(hash: string): Range | null {
  const [, from, to] = /^L(\d{1,9})(?:-L(\d{1,9}))?$/.exec(hash) ?? [];
  return from ? { from: Number(from), to: Math.max(Number(to ?? from), Number(from)) } : null;
}

/** A file of text, with numbered lines that can be linked: `#L3`, `#L3-L7`. */
export function Code({ path, content }: { path: string; content: string }) {
  const navigate = useNavigate();
  const { hash } = useLocation();
  const marked = rangeOf(hash);
  const tokens = useTokens(languageOf(path), content);
  useEffect(() => {
    if (marked) document.getElementById(`line-${marked.from}`)?.scrollIntoView({ block: 'center' });
  }, [marked?.from, path]);
  const lines = content.replace(/\n$/, '').split('\n');
  const pieces = Array.from(
    { length: Math.ceil(lines.length / PIECE) },
    (_, index) => index * PIECE,
  );

  function select(line: number, extend: boolean): void {
    const to =
      extend && marked
        ? `L${Math.min(marked.from, line)}-L${Math.max(marked.from, line)}`
        : `L${line}`;
    void navigate({ to: '.', search: true, hash: to, replace: true, resetScroll: false });
  }

  return (
    <section
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
      tabIndex={0}
      aria-label={path}
      className="overflow-x-auto py-2 font-mono text-[12.5px] leading-6"
    >
      {pieces.map((first) => (
        <div
          key={first}
          className="[content-visibility:auto]"
          style={{
            containIntrinsicSize: `auto ${Math.min(PIECE, lines.length - first) * LINE_PX}px`,
          }}
        >
          {lines.slice(first, first + PIECE).map((text, index) => {
            const line = first + index + 1;
            const isMarked = marked !== null && line >= marked.from && line <= marked.to;
            return (
              <div
                key={line}
                id={`line-${line}`}
                className={`flex w-max min-w-full ${isMarked ? 'bg-warn-soft' : ''}`}
              >
                <a
                  href={`#L${line}`}
                  // One stop for the whole block: a file has thousands of lines.
                  tabIndex={-1}
                  aria-label={`Line ${line}`}
                  onClick={(event) => {
                    event.preventDefault();
                    select(line, event.shiftKey);
                  }}
                  className="w-14 shrink-0 pr-3 text-right text-dim select-none hover:text-ink"
                >
                  {line}
                </a>
                <span className="pr-4 whitespace-pre">
                  <Line text={text} tokens={tokens?.[line - 1]} />
                </span>
              </div>
            );
          })}
        </div>
      ))}
    </section>
  );
}
