/** A CSV or TSV file as a table. The first row has the column names. */
import { formatCount } from '../../ui/format.ts';
import { parseTable } from './parse-table.ts';

/** More cells would block the browser. */
const MAX_ROWS = 500;
const MAX_COLUMNS = 100;

export default function Table({ text, path }: { text: string; path: string }) {
  const rows = parseTable(text, /\.tsv$/i.test(path) ? '\t' : ',', MAX_ROWS + 2);
  const [head = [], ...body] = rows;
  const width = Math.min(Math.max(...rows.map((row) => row.length)), MAX_COLUMNS);
  const columns = Array.from({ length: width }, (_, column) => column);
  const isTruncated = body.length > MAX_ROWS || rows.some((row) => row.length > MAX_COLUMNS);
  return (
    <>
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
        tabIndex={0}
        aria-label={path}
        className="max-h-[75vh] overflow-auto"
      >
        <table className="border-separate border-spacing-0 text-sm">
          <thead>
            <tr>
              <td className={`${CELL} sticky top-0 bg-sunken`} />
              {columns.map((column) => (
                <th key={column} scope="col" className={`${CELL} sticky top-0 bg-sunken text-left`}>
                  {head[column]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {body.slice(0, MAX_ROWS).map((row, index) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: the rows of a file are never reordered.
              <tr key={index}>
                <td className={`${CELL} text-right text-dim tabular-nums select-none`}>
                  {index + 1}
                </td>
                {columns.map((column) => (
                  <td key={column} className={CELL}>
                    <div className="w-max max-w-md break-words whitespace-pre-wrap">
                      {row[column]}
                    </div>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {isTruncated && (
        <p className="border-t border-line px-3 py-2 text-sm text-dim">
          At most {formatCount(MAX_ROWS, 'row')} and {formatCount(MAX_COLUMNS, 'column')} are shown.
          The "Code" view has the whole file.
        </p>
      )}
    </>
  );
}

const CELL = 'border-r border-b border-line px-3 py-1 align-top';
