/**
 * Parses CSV (RFC 4180) or tab-separated values, and skips empty lines. An unclosed quotation mark takes the rest of the text.
 * @param maxRows rows after this number are not read
 */
export function parseTable(text: string, separator: ',' | '\t', maxRows: number): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  while (at < text.length && rows.length < maxRows) {
    let value = '';
    if (text[at] === '"') [value, at] = readQuoted(text, at + 1);
    const end = findFieldEnd(text, at, separator);
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
  if (row.length > 0 && rows.length < maxRows) rows.push(row);
  return rows;
}

/** Reads from `at`, the position after an opening quotation mark. Returns the value and the position after the closing one. */
function readQuoted(text: string, at: number): [value: string, at: number] {
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

function findFieldEnd(text: string, at: number, separator: string): number {
  const end = separator === ',' ? /[,\r\n]/g : /[\t\r\n]/g;
  end.lastIndex = at;
  return end.exec(text)?.index ?? text.length;
}
