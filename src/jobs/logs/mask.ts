/**
 * Masks secrets in log lines: as they are, and as base64, hexadecimal, URL-encoded and JSON text.
 *
 * Base64 of a text that contains a secret depends on where the secret begins, modulo three bytes. So the characters that depend
 * on the secret alone are masked, for each of the three positions. Long encodings are masked in short overlapping parts, so that
 * lines are masked that are wrapped at any multiple of four characters, as `base64`, `openssl` and `xxd` do.
 *
 * This protects against accidents. It cannot stop a program that wants to reveal a secret in another form.
 */

const MASK = '***';

/** Encodings shorter than this are not masked: they would hide ordinary words and numbers. */
const MIN_ENCODED = 6;
/** Length and distance of the parts of a long encoding, and the length of the shortest part at its ends. */
const WINDOW = 16;
const STEP = 4;
const MIN_WINDOW = 8;
/** Longer texts are masked in parts of this length, which bounds the time for a line. */
const MAX_PATTERN = 64;

/** Returns a function that replaces every secret in a text by `***`. Each line of a multi-line secret is masked. */
export function createMask(secrets: Record<string, string>): (text: string) => string {
  const patterns = new Set<string>();
  for (const secret of Object.values(secrets)) {
    for (const form of escapedForms(secret)) addParts(patterns, form);
    for (const text of new Set([secret, ...secret.split(/\r?\n/)])) {
      addParts(patterns, text);
      addEncodedForms(patterns, Buffer.from(text));
    }
  }
  patterns.delete('');
  if (patterns.size === 0) return (text) => text;
  const findPattern = createFinder([...patterns]);
  return (text) => {
    let masked = '';
    let end = -1;
    let copied = 0;
    for (let at = 0; at < text.length; at++) {
      const length = findPattern(text, at);
      if (length === 0) continue;
      // Occurrences that overlap or touch become one mask.
      if (at > end) masked += text.slice(copied, at) + MASK;
      end = Math.max(end, at + length);
      copied = end;
    }
    return masked + text.slice(copied);
  };
}

/** As a JSON string, and percent-encoded by the rules of JavaScript, of RFC 3986, of paths and of forms. */
function escapedForms(secret: string): string[] {
  const uri = encodeURIComponent(secret);
  const strict = uri.replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
  const encoded = [uri, strict, strict.replaceAll('%2F', '/')];
  const form = new URLSearchParams([['', secret]]).toString().slice('='.length);
  const forms = [form, ...encoded.flatMap((text) => [text, text.replaceAll('%20', '+')])];
  const lower = forms.map((text) => text.replace(/%../g, (code) => code.toLowerCase()));
  return [JSON.stringify(secret).slice(1, -1), ...forms, ...lower];
}

function addParts(patterns: Set<string>, text: string): void {
  for (let at = 0; at < text.length; at += MAX_PATTERN) {
    const from = Math.max(0, Math.min(at, text.length - MAX_PATTERN));
    patterns.add(text.slice(from, from + MAX_PATTERN));
  }
}

/** Index: how many bytes before the secret are in its first group of three. Value: how many characters depend on them. */
const DEPENDENT_CHARACTERS = [0, 2, 3] as const;

function addEncodedForms(patterns: Set<string>, bytes: Buffer): void {
  const hex = bytes.toString('hex');
  addWindows(patterns, hex, 0);
  addWindows(patterns, hex.toUpperCase(), 0);
  for (const [before, dependent] of DEPENDENT_CHARACTERS.entries()) {
    const base64 = Buffer.concat([Buffer.alloc(before), bytes]).toString('base64');
    // Whatever follows the secret, and where it is the end of the text, with and without padding.
    const lengths = [Math.floor(((before + bytes.length) * 8) / 6), base64.indexOf('='), undefined];
    for (const length of lengths) {
      if (length === -1) continue;
      const form = base64.slice(dependent, length);
      const phase = (STEP - dependent) % STEP;
      addWindows(patterns, form, phase);
      addWindows(patterns, form.replaceAll('+', '-').replaceAll('/', '_'), phase);
    }
  }
}

/** @param phase the distance from the beginning of `form` to the first position at which a line may be wrapped */
function addWindows(patterns: Set<string>, form: string, phase: number): void {
  if (form.length >= MIN_ENCODED && form.length <= WINDOW) patterns.add(form);
  for (let at = phase - WINDOW; at < form.length; at += STEP) {
    const part = form.slice(Math.max(0, at), Math.max(0, at + WINDOW));
    if (part.length >= MIN_WINDOW) patterns.add(part);
  }
}

/**
 * Returns a function that finds the length of the longest pattern at a position; 0 if there is none. The time depends on the
 * length of a line, and hardly on the number of patterns.
 */
function createFinder(patterns: string[]): (text: string, at: number) => number {
  const sorted = patterns.sort();
  /** For each pattern, the longest other pattern that it begins with, by index; -1 if there is none. */
  const prefixes: number[] = [];
  for (const [index, pattern] of sorted.entries()) {
    let prefix = index - 1;
    while (prefix >= 0 && !pattern.startsWith(sorted[prefix] as string))
      prefix = prefixes[prefix] as number;
    prefixes.push(prefix);
  }
  // Most positions of a line are dismissed by their first two characters.
  const isSingle = new Uint8Array(256);
  const isPair = new Uint8Array(65_536);
  const pairOf = (first: number, second: number) => ((first & 255) << 8) | (second & 255);
  for (const pattern of sorted)
    if (pattern.length === 1) isSingle[pattern.charCodeAt(0) & 255] = 1;
    else isPair[pairOf(pattern.charCodeAt(0), pattern.charCodeAt(1))] = 1;

  return (text, at) => {
    const first = text.charCodeAt(at);
    if (!isSingle[first & 255] && !isPair[pairOf(first, text.charCodeAt(at + 1))]) return 0;
    const rest = text.slice(at, at + MAX_PATTERN);
    // The last pattern that is not after `rest` in the order: all patterns at this position are it, or prefixes of it.
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((sorted[middle] as string) <= rest) low = middle + 1;
      else high = middle;
    }
    let found = low - 1;
    while (found >= 0 && !rest.startsWith(sorted[found] as string))
      found = prefixes[found] as number;
    return found < 0 ? 0 : (sorted[found] as string).length;
  };
}
