/**
 * What the command writes: data on stdout, messages on stderr. Text of the server reaches a terminal only through
 * `safeLine` (logs, keeps colours) or `safeText` (names), so that it cannot move the cursor, set the title of the window
 * or write to the clipboard.
 */
import { eastAsianWidth } from 'get-east-asian-width';

/** A file or a pipe gets data without colours, headings and relative times. */
export const isTerminal = process.stdout.isTTY === true;
/** Whether a person reads the messages and can be asked. */
export const isInteractive = process.stderr.isTTY === true && process.stdin.isTTY === true;

const hasColours = (stream: NodeJS.WriteStream) =>
  stream.isTTY === true && !process.env.NO_COLOR && process.env.TERM !== 'dumb';

export type Colour = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'blue' | 'cyan';
const CODES: Record<Colour, [number, number]> = {
  bold: [1, 22],
  dim: [2, 22],
  red: [31, 39],
  green: [32, 39],
  yellow: [33, 39],
  blue: [34, 39],
  cyan: [36, 39],
};

/** Colours a text for stdout, if stdout is a terminal with colours. The text must be safe already. */
export function paint(
  colour: Colour,
  text: string,
  stream: NodeJS.WriteStream = process.stdout,
): string {
  if (!hasColours(stream)) return text;
  const [on, off] = CODES[colour];
  return `\x1b[${on}m${text}\x1b[${off}m`;
}

/**
 * All control sequences (ECMA-48): operating system commands and other strings up to their terminator, CSI sequences, and
 * escapes of two characters, each also with its one-character introducer in C1.
 */
const SEQUENCES = new RegExp(
  [
    // OSC, DCS, SOS, PM, APC. Without a terminator, the rest of the line is the string.
    '(?:\\x1b[\\]PX^_]|[\\x90\\x98\\x9d-\\x9f])[^\\x07\\x1b\\x9c]*(?:\\x07|\\x1b\\\\|\\x9c|(?=\\x1b)|$)',
    '(?:\\x1b\\[|\\x9b)[0-?]*[ -/]*[@-~]?',
    '\\x1b[ -/]*[0-~]?',
    // Other control characters but the tab.
    '[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f]',
  ].join('|'),
  'g',
);
// biome-ignore lint/suspicious/noControlCharactersInRegex: the sequence of colours begins with one.
const COLOURS = /^\x1b\[[0-9;:]*m$/;

/**
 * One line of a log for a terminal: only colours are left of its control sequences, and they end with the line. Of a line
 * that rewrites itself with carriage returns, as progress bars do, the last state is left.
 */
export function safeLine(line: string, keepColours = hasColours(process.stdout)): string {
  const states = line.split('\r').filter((state) => state !== '');
  let coloured = false;
  const text = (states.at(-1) ?? '').replace(SEQUENCES, (sequence) => {
    if (!keepColours || !COLOURS.test(sequence)) return '';
    coloured = true;
    return sequence;
  });
  return coloured ? `${text}\x1b[0m` : text;
}

/** Control characters, line separators, and the marks with which bidirectional text reorders what follows. */
const UNSAFE = /[\p{Cc}\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/gu;

/** A name or message of the server on one line: characters that act on the terminal are written as `\u{…}`. */
export function safeText(text: string): string {
  return text.replace(UNSAFE, (char) => `\\u{${char.codePointAt(0)?.toString(16)}}`);
}

/** Writes a line of data to stdout. The text must be safe for a terminal. */
export function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** @param indent 0: on one line. Characters that act on the terminal are escaped, which JSON allows within texts. */
export function printJson(value: unknown, indent = 2): void {
  const escaped = (char: string) =>
    char === '\n' ? char : `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
  print(JSON.stringify(value, null, indent).replace(UNSAFE, escaped));
}

/** Writes a message for people to stderr. It may contain text of the server. */
export function note(message: string): void {
  process.stderr.write(`${safeLines(message)}\n`);
}

function safeLines(text: string): string {
  return text.split('\n').map(safeText).join('\n');
}

type Row = readonly (string | { text: string; colour: Colour })[];

/**
 * Prints a table. On a terminal it has headings, aligned columns and lines cut to the width; otherwise it has one line of
 * tab-separated values for each row and no headings. Cells may contain any text.
 */
export function printTable(headings: readonly string[], rows: readonly Row[]): void {
  const textOf = (cell: Row[number]) => safeText(typeof cell === 'string' ? cell : cell.text);
  if (!isTerminal) {
    for (const row of rows) print(row.map(textOf).join('\t'));
    return;
  }
  const cells = rows.map((row) => row.map(textOf));
  const widths = headings.map((heading, column) =>
    Math.max(...[heading, ...cells.map((row) => row[column] ?? '')].map(widthOf)),
  );
  let room = process.stdout.columns || 80;
  const shown = widths.map((width, column) => {
    const own = column === widths.length - 1 ? Math.max(room, 10) : width;
    room -= width + 2;
    return own;
  });
  const line = (texts: readonly string[], colourOf: (column: number) => Colour | undefined) =>
    texts
      .map((text, column) => {
        const isLast = column === texts.length - 1;
        const cut = cutTo(text, shown[column] ?? 10);
        const padding = isLast ? '' : ' '.repeat(Math.max(0, (shown[column] ?? 0) - widthOf(cut)));
        const colour = colourOf(column);
        return (colour ? paint(colour, cut) : cut) + padding;
      })
      .join('  ');
  print(line(headings, () => 'dim'));
  for (const [index, texts] of cells.entries())
    print(
      line(texts, (column) => {
        const cell = rows[index]?.[column];
        return typeof cell === 'object' ? cell.colour : undefined;
      }),
    );
}

const INVISIBLE = /[\p{Mn}\p{Me}\p{Cf}]/u;

/**
 * The columns of a safe text on a terminal. Emoji of several characters may be narrower. Exact libraries load the Unicode
 * tables of `Intl.Segmenter`, which takes longer than the rest of the start.
 */
function widthOf(text: string): number {
  let width = 0;
  for (const char of text)
    if (!INVISIBLE.test(char)) width += eastAsianWidth(char.codePointAt(0) ?? 0);
  return width;
}

/** Cuts a safe text to a width in terminal columns. */
function cutTo(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let cut = '';
  let used = 1;
  for (const char of text) {
    used += widthOf(char);
    if (used > width) break;
    cut += char;
  }
  return `${cut}…`;
}

/** Prints names and values, one pair per line; pairs without a value are left out. */
export function printFields(
  fields: readonly (readonly [string, string | null | undefined])[],
): void {
  const given = fields.filter(([, value]) => value !== null && value !== undefined && value !== '');
  const width = Math.max(0, ...given.map(([name]) => name.length));
  for (const [name, value] of given)
    print(
      isTerminal
        ? `${paint('dim', name.padEnd(width))}  ${safeText(value ?? '')}`
        : `${name}\t${safeText(value ?? '')}`,
    );
}

const UNITS: readonly [string, number][] = [
  ['d', 86_400],
  ['h', 3_600],
  ['m', 60],
  ['s', 1],
];

/** A time for people: "5 m ago" on a terminal, the time itself otherwise. */
export function ago(time: string | null | undefined): string {
  if (!time) return '';
  return isTerminal ? `${duration((Date.now() - Date.parse(time)) / 1_000)} ago` : time;
}

/** A length of time in its largest unit that fits, such as `90 s` as "1m 30s". */
export function duration(seconds: number): string {
  let rest = Math.max(0, Math.round(seconds));
  const parts: string[] = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    if (count === 0) continue;
    parts.push(`${count}${unit}`);
    rest -= count * size;
    if (parts.length === 2) break;
  }
  return parts.join(' ') || '0s';
}

/** @param noun in the singular; its plural ends in `s` */
export function formatCount(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

export function fileCount(count: number): string {
  return formatCount(count, 'file');
}

/** A size for people, in binary units, as the server counts. */
export function size(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  const value = bytes / 1_024 ** power;
  return `${power === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[power]}`;
}

/**
 * Asks on the terminal. The question may contain text of the server. Ctrl-C is a signal as usual.
 * @returns the answer without its newline @throws when the signal is aborted
 */
export async function ask(question: string, signal?: AbortSignal): Promise<string> {
  const { createInterface } = await import('node:readline/promises');
  const reader = createInterface({
    input: process.stdin,
    output: process.stderr,
    terminal: false,
  });
  try {
    return await reader.question(safeLines(question), signal ? { signal } : {});
  } finally {
    reader.close();
  }
}

/** Asks on the terminal, without showing the answer. @returns the answer without its newline */
export async function askHidden(question: string): Promise<string> {
  const { createInterface } = await import('node:readline/promises');
  const { Writable } = await import('node:stream');
  const hidden = new Writable({ write: (_chunk, _encoding, done) => done() });
  // With `terminal`, the terminal itself shows no keys, and the interface writes them to `hidden`.
  const reader = createInterface({ input: process.stdin, output: hidden, terminal: true });
  reader.on('SIGINT', () => {
    reader.close();
    process.kill(process.pid, 'SIGINT');
  });
  // After that, so that no key is shown that the user presses at once.
  process.stderr.write(safeLines(question));
  try {
    return await reader.question('');
  } finally {
    reader.close();
    process.stderr.write('\n');
  }
}

/** One line on stderr that changes in place; on no terminal, a line for each text. */
export class StatusLine {
  #shown = '';

  /** The text may contain text of the server. */
  show(text: string): void {
    if (text === this.#shown) return;
    this.#shown = text;
    if (process.stderr.isTTY === true) {
      const cut = cutTo(safeText(text), (process.stderr.columns || 80) - 1);
      process.stderr.write(`\r\x1b[2K${paint('dim', cut, process.stderr)}`);
    } else note(text);
  }

  clear(): void {
    if (this.#shown !== '' && process.stderr.isTTY === true) process.stderr.write('\r\x1b[2K');
    this.#shown = '';
  }
}

const REDRAW_MS = 100;

/** The progress of downloads on one line of a terminal; nothing elsewhere. */
export class ProgressBar {
  readonly #line = new StatusLine();
  readonly #begin = performance.now();
  #bytes = 0;
  #files = 0;
  #drawn = 0;
  /** Of each file that is being transferred: the bytes that have arrived. */
  readonly #current = new Map<string, number>();

  advance(path: string, bytes: number, total: number): void {
    this.#bytes += bytes;
    const arrived = (this.#current.get(path) ?? 0) + bytes;
    this.#current.set(path, arrived);
    if (arrived >= total) this.#current.delete(path);
    const now = performance.now();
    if (process.stderr.isTTY !== true || now - this.#drawn < REDRAW_MS) return;
    this.#drawn = now;
    const speed = size(this.#bytes / Math.max((now - this.#begin) / 1_000, 0.001));
    // A server may list a file twice.
    const share = Math.min(Math.max(arrived / Math.max(total, 1), 0), 1);
    const part = Math.floor(share * 20);
    const bar = `[${'#'.repeat(part)}${' '.repeat(20 - part)}]`;
    this.#line.show(`${bar} ${size(this.#bytes)}, ${fileCount(this.#files)}, ${speed}/s  ${path}`);
  }

  fileDone(): void {
    this.#files++;
  }

  clear(): void {
    this.#line.clear();
  }
}

/** Everything on stdin, for `--token -`. @throws Error beyond 64 KiB */
export async function readStdin(): Promise<string> {
  let text = '';
  for await (const chunk of process.stdin) {
    text += chunk;
    if (text.length > 65_536) throw new Error('stdin is longer than 64 KiB');
  }
  return text;
}
