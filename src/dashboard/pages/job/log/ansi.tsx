/** A line as a terminal would show it: with its colours, and of a line that was written over, what was written last. */
import Anser from 'anser';
import type { CSSProperties, ReactNode } from 'react';

/** A line may have megabytes, and a browser lays out all of it. The rest is in the download. */
const SHOWN = 20_000;

const ESCAPE = '\u001b';

export function plainText(message: string): string {
  return message.includes(ESCAPE) ? Anser.ansiToText(message) : message;
}

/** `find`: what is marked in it, in any case. */
export function renderLine(message: string, find: string): ReactNode {
  // Progress bars return to the beginning of their line and write over it.
  const text = message.replace(/\r+$/, '');
  const visible = text.slice(text.lastIndexOf('\r') + 1);
  const isCut = visible.length > SHOWN;
  const shown = isCut ? visible.slice(0, SHOWN) : visible;
  const body = shown.includes(ESCAPE)
    ? Anser.ansiToJson(shown, { json: true, use_classes: true, remove_empty: true }).map(
        (part, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a line never change their order.
          <span key={index} className={classOf(part)} style={styleOf(part)}>
            {marked(part.content, find)}
          </span>
        ),
      )
    : marked(shown, find);
  return (
    <>
      {body}
      {isCut && (
        <em className="text-dim"> … {visible.length - SHOWN} more characters: see the download</em>
      )}
    </>
  );
}

function classOf({ fg, bg, decorations }: Anser.AnserJsonEntry): string {
  return [
    fg && `${fg}-fg`,
    bg && `${bg}-bg`,
    ...decorations.map((decoration) => `ansi-${decoration}`),
  ]
    .filter(Boolean)
    .join(' ');
}

function styleOf(part: Anser.AnserJsonEntry): CSSProperties | undefined {
  const color = rgbOf(part.fg, part.fg_truecolor);
  const backgroundColor = rgbOf(part.bg, part.bg_truecolor);
  return color || backgroundColor ? { color, backgroundColor } : undefined;
}

/** Colours beyond the sixteen that have a class. */
function rgbOf(name: string | null, rgb: string | null): string | undefined {
  if (name === 'ansi-truecolor' && rgb) return `rgb(${rgb})`;
  const number = Number(/^ansi-palette-(\d+)$/.exec(name ?? '')?.[1] ?? Number.NaN);
  if (!(number >= 16 && number <= 255)) return undefined;
  if (number >= 232)
    return `rgb(${Array(3)
      .fill(8 + (number - 232) * 10)
      .join(' ')})`;
  const level = (step: number) => (step === 0 ? 0 : 55 + step * 40);
  const cube = number - 16;
  const levels = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map(level);
  return `rgb(${levels.join(' ')})`;
}

function marked(text: string, find: string): ReactNode {
  if (!find) return text;
  const parts: ReactNode[] = [];
  const lower = text.toLowerCase();
  const sought = find.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(sought); at >= 0; at = lower.indexOf(sought, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + find.length)}</mark>);
    from = at + find.length;
  }
  parts.push(text.slice(from));
  return parts;
}
