/** Renders a log line as a terminal would: colours, links, and only the text after the last carriage return. */
import Anser from 'anser';
import { type CSSProperties, Fragment, type ReactNode } from 'react';
import { highlightMatches } from '../../../ui/marked.tsx';

/** Longer lines are cut, because the browser would lay out megabytes. The download has the full line. */
const MAX_LINE_LENGTH = 20_000;

const ESCAPE = '\u001b';

/** Highlights case-insensitive matches of `find`. */
export function renderLine(message: string, find: string): ReactNode {
  // Progress bars return to the start of the line and overwrite it.
  const text = message.replace(/\r+$/, '');
  const visible = text.slice(text.lastIndexOf('\r') + 1);
  const isCut = visible.length > MAX_LINE_LENGTH;
  const shown = isCut ? visible.slice(0, MAX_LINE_LENGTH) : visible;
  const body = shown.includes(ESCAPE)
    ? Anser.ansiToJson(shown, { json: true, use_classes: true, remove_empty: true }).map(
        (part, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a line never change their order.
          <span key={index} className={classOf(part)} style={styleOf(part)}>
            {linkify(part.content, find)}
          </span>
        ),
      )
    : linkify(shown, find);
  return (
    <>
      {body}
      {isCut && (
        <em className="text-dim">
          {' '}
          … {visible.length - MAX_LINE_LENGTH} more characters: see the download
        </em>
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

/** RGB of colours beyond the 16 that have a class. */
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

const URL_PATTERN = /\bhttps?:\/\/[^\s<>"'`]+/gi;
/** Longer URLs are not linked. */
const MAX_URL_LENGTH = 2_000;
/** At the end of a URL these belong to the sentence around it, as do brackets that the URL does not open. */
const PUNCTUATION = '.,;:!?';
const BRACKETS: Record<string, string> = { ')': '(', ']': '[', '}': '{' };

function linkify(text: string, find: string): ReactNode {
  if (!text.includes('://')) return highlightMatches(text, find);
  const parts: ReactNode[] = [];
  let from = 0;
  for (const { 0: found, index } of text.matchAll(URL_PATTERN)) {
    if (found.length > MAX_URL_LENGTH) continue;
    const url = trimUrl(found);
    if (!URL.canParse(url)) continue;
    parts.push(
      <Fragment key={`before ${index}`}>
        {highlightMatches(text.slice(from, index), find)}
      </Fragment>,
      // In a new tab, so that the log stays open.
      <a
        key={index}
        href={url}
        target="_blank"
        rel="nofollow noreferrer noopener"
        className="underline"
      >
        {highlightMatches(url, find)}
      </a>,
    );
    from = index + url.length;
  }
  parts.push(<Fragment key="end">{highlightMatches(text.slice(from), find)}</Fragment>);
  return parts;
}

function trimUrl(url: string): string {
  let end = url.length;
  for (; end > 0; end--) {
    const last = url.charAt(end - 1);
    const opening = BRACKETS[last];
    const count = (character: string) => url.slice(0, end).split(character).length;
    if (opening ? count(opening) >= count(last) : !PUNCTUATION.includes(last)) break;
  }
  return url.slice(0, end);
}
