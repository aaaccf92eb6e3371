/**
 * Records of CSV (RFC 4180), or of values between tabs; empty lines are none. A quotation mark that is never closed takes
 * the rest of the text.
 * @param most how many records are read
 */
export function parseTable(text: string, separator: ',' | '\t', most: number): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  while (at < text.length && rows.length < most) {
    let value = '';
    if (text[at] === '"') [value, at] = quotedAt(text, at + 1);
    const end = endOf(text, at, separator);
    row.push(value + text.slice(at, end));
    at = end + 1;
    if (text[end] === separator) {
      if (at === text.length) row.push('');
      else continue;
    }
    if (text[end] === '\r' && text[at] === '\n') at++;
    if (row.length > 1 || row[0] !== '') rows.push(row);
    row = [];
  }
  if (row.length > 0 && rows.length < most) rows.push(row);
  return rows;
}

/** What stands from `at` to the quotation mark that ends it, and where that is left behind. */
function quotedAt(text: string, at: number): [value: string, at: number] {
  let value = '';
  for (;;) {
    const quote = text.indexOf('"', at);
    if (quote < 0) return [value + text.slice(at), text.length];
    value += text.slice(at, quote);
    if (text[quote + 1] !== '"') return [value, quote + 1];
    value += '"';
    at = quote + 2;
  }
}

function endOf(text: string, at: number, separator: string): number {
  const end = separator === ',' ? /[,\r\n]/g : /[\t\r\n]/g;
  end.lastIndex = at;
  return end.exec(text)?.index ?? text.length;
}
