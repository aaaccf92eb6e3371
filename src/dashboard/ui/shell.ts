/** Lines for a POSIX shell. */

const SAFE_WORD = /^[\w./:@+,-][\w./:@%+=,-]*$/;

/** Control characters except line feed, and characters that change the direction of text. */
const INVISIBLE = /[^\P{Cc}\n]|[\u202a-\u202e\u2066-\u2069]/u;

/**
 * Quotes text as one word. Pasted control characters could interrupt the line and run the rest of it, so text with them is
 * escaped as `$'…'`, which bash, zsh and ksh read.
 */
export function quoteForShell(text: string): string {
  if (SAFE_WORD.test(text)) return text;
  if (!INVISIBLE.test(text)) return `'${text.replaceAll("'", String.raw`'\''`)}'`;
  const escaped = Array.from(text, (character) => {
    // An interactive bash expands `!` after an escaped quote.
    if (!INVISIBLE.test(character) && !"\\'!".includes(character)) return character;
    // Bytes of UTF-8, because the meaning of \u depends on the locale.
    const bytes = new TextEncoder().encode(character);
    return Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('');
  });
  return `$'${escaped.join('')}'`;
}

/** In characters. Longer lines do not fit into the boxes beside forms. */
const MAX_LINE_LENGTH = 44;

/** Joins the parts of a command line, in several lines if it is long. The words of a part stay together. */
export function joinCommand(parts: readonly string[]): string {
  const [first = '', ...more] = parts;
  const lines = [first];
  for (const part of more) {
    const line = lines.at(-1) ?? '';
    if (line.length + part.length < MAX_LINE_LENGTH) lines[lines.length - 1] = `${line} ${part}`;
    else lines.push(`  ${part}`);
  }
  return lines.join(' \\\n');
}

/** A request to the REST interface; with a body a POST request. */
export function formatCurl(url: string, body?: string): string {
  const parts = [`curl -H "Authorization: Bearer $LOAM_TOKEN"`];
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`);
  parts.push(quoteForShell(url));
  if (body !== undefined) parts.push(`-d ${quoteForShell(body)}`);
  return joinCommand(parts);
}
