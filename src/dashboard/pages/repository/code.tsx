import { useLocation, useNavigate } from '@tanstack/react-router';
import { useEffect } from 'react';
import { languageOf } from './highlight.ts';
import { HighlightedLine, useTokens } from './tokens.tsx';

/** With `content-visibility` the browser lays out visible blocks only, and its text search still finds every line. */
const BLOCK_LINES = 100;
const LINE_PX = 24;

type LineRange = { from: number; to: number };

function rangeOf(hash: string): LineRange | null {
  const [, from, to] = /^L(\d{1,9})(?:-L(\d{1,9}))?$/.exec(hash) ?? [];
  return from ? { from: Number(from), to: Math.max(Number(to ?? from), Number(from)) } : null;
}

/** A text file with numbered lines that can be linked: `#L3`, `#L3-L7`. */
export function CodeView({ path, content }: { path: string; content: string }) {
  const navigate = useNavigate();
  const { hash } = useLocation();
  const selected = rangeOf(hash);
  const tokens = useTokens(languageOf(path), content);
  useEffect(() => {
    if (selected)
      document.getElementById(`line-${selected.from}`)?.scrollIntoView({ block: 'center' });
  }, [selected?.from, path]);
  const lines = content.replace(/\n$/, '').split('\n');
  const blocks = Array.from(
    { length: Math.ceil(lines.length / BLOCK_LINES) },
    (_, index) => index * BLOCK_LINES,
  );

  function select(line: number, extend: boolean): void {
    const to =
      extend && selected
        ? `L${Math.min(selected.from, line)}-L${Math.max(selected.from, line)}`
        : `L${line}`;
    void navigate({ to: '.', search: true, hash: to, replace: true, resetScroll: false });
  }

  return (
    <section
      // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
      tabIndex={0}
      aria-label={path}
      className="overflow-x-auto py-2 font-mono text-[12.5px] leading-6"
    >
      {blocks.map((first) => (
        <div
          key={first}
          className="[content-visibility:auto]"
          style={{
            containIntrinsicSize: `auto ${Math.min(BLOCK_LINES, lines.length - first) * LINE_PX}px`,
          }}
        >
          {lines.slice(first, first + BLOCK_LINES).map((text, index) => {
            const line = first + index + 1;
            const isSelected = selected !== null && line >= selected.from && line <= selected.to;
            return (
              <div
                key={line}
                id={`line-${line}`}
                className={`flex w-max min-w-full ${isSelected ? 'bg-warn-soft' : ''}`}
              >
                <a
                  href={`#L${line}`}
                  // Not a tab stop: a file may have thousands of lines.
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
                  <HighlightedLine text={text} tokens={tokens?.[line - 1]} />
                </span>
              </div>
            );
          })}
        </div>
      ))}
    </section>
  );
}
