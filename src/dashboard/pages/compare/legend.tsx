import type { ColourScale } from './colours.ts';
import { describeRow, type Row } from './table-model.ts';

/** What the colours mean; without a column, the names of the jobs. */
export function Legend({ colours, rows }: { colours: ColourScale; rows: readonly Row[] }) {
  const entries =
    colours.legend.length > 0
      ? colours.legend.map((entry) => ({ ...entry, key: entry.colour }))
      : rows
          .slice(0, 20)
          .map((row) => ({ key: row.key, text: describeRow(row), colour: colours.of(row) }));
  return (
    <ul aria-label="Colours" className="flex flex-wrap gap-x-4 gap-y-1 text-sm">
      {entries.map(({ key, text, colour }, at) => (
        <li key={key} className="flex min-w-0 items-center gap-1.5">
          <span
            aria-hidden
            className="size-3 shrink-0 rounded-full"
            style={{ background: colour }}
          />
          <span className="min-w-0 font-mono break-all">
            {colours.isRange && entries.length > 1 && (at === 0 ? 'lowest ' : 'highest ')}
            {text === '' ? '(empty)' : text}
          </span>
        </li>
      ))}
    </ul>
  );
}
