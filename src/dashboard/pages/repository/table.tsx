/** A file of values between commas or tabs, as a table: its first line has the names of the columns. */
import { count } from '../../ui/format.ts';
import { parseTable } from './parse-table.ts';

/** More cells would hold the browser up. */
const ROWS = 500;
const COLUMNS = 100;

export default function Table({ text, path }: { text: string; path: string }) {
  const rows = parseTable(text, /\.tsv$/i.test(path) ? '\t' : ',', ROWS + 2);
  const [head = [], ...body] = rows;
  const width = Math.min(Math.max(...rows.map((row) => row.length)), COLUMNS);
  const columns = Array.from({ length: width }, (_, column) => column);
  const isCut = body.length > ROWS || rows.some((row) => row.length > COLUMNS);
  return (
    <>
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
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
            {body.slice(0, ROWS).map((row, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: the rows of a file never move.
              <tr key={at}>
                <td className={`${CELL} text-right text-dim tabular-nums select-none`}>{at + 1}</td>
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
      {isCut && (
        <p className="border-t border-line px-3 py-2 text-sm text-dim">
          At most {count(ROWS, 'row')} and {count(COLUMNS, 'column')} are shown. "Code" has the
          whole file.
        </p>
      )}
    </>
  );
}

const CELL = 'border-r border-b border-line px-3 py-1 align-top';
