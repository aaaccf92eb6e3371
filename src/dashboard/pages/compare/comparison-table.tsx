import { Link } from '@tanstack/react-router';
import { ArrowDown, ArrowUp } from 'lucide-react';
import { useState } from 'react';
import { formatCount } from '../../ui/format.ts';
import { ShowMoreButton } from '../../ui/page.tsx';
import { JobStatusBadge } from '../../ui/status.tsx';
import type { ColourScale } from './colours.ts';
import { type Column, formatOrder, type Order, type Row } from './table-model.ts';

const PAGE_SIZE = 50;
const CELL = 'border-b border-line px-3 py-1.5';
/** Stays above the rows, which scroll. */
const HEADING = `${CELL} sticky top-0 z-1 bg-card text-left font-medium`;

/** A row for each job. A click on a heading sorts by it, another click in the other direction. */
export function ComparisonTable({
  namespace,
  rows,
  total,
  columns,
  order,
  colours,
  picked,
  onOrder,
  onPick,
}: {
  namespace: string;
  rows: readonly Row[];
  /** The number of jobs without the filter. */
  total: number;
  columns: readonly Column[];
  order: Order | null;
  colours: ColourScale;
  picked: ReadonlySet<string>;
  onOrder: (sort: string) => void;
  onPick: (keys: ReadonlySet<string>) => void;
}) {
  const [shown, setShown] = useState(PAGE_SIZE);
  if (rows.length === 0)
    return <p className="card px-4 py-3 text-sm text-dim">No jobs match the filter</p>;
  return (
    <>
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
        tabIndex={0}
        aria-label="Compared jobs"
        className="card sideways max-h-[75vh] overflow-y-auto"
      >
        <table className="w-full border-separate border-spacing-0 text-sm tabular-nums">
          <thead>
            <tr>
              <th scope="col" className={HEADING}>
                Job
              </th>
              {columns.map((column) => (
                <Heading key={column.id} column={column} order={order} onOrder={onOrder} />
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row) => (
              <tr key={row.key} data-job={row.job.name} className="hover:bg-hover">
                <th scope="row" className={`${CELL} text-left font-normal`}>
                  <div className="flex items-center gap-2">
                    <input
                      type="checkbox"
                      aria-label={`Select ${row.key}`}
                      checked={picked.has(row.key)}
                      onChange={({ target }) => {
                        const keys = new Set(picked);
                        if (target.checked) keys.add(row.key);
                        else keys.delete(row.key);
                        onPick(keys);
                      }}
                      className="size-4 shrink-0 accent-accent"
                    />
                    <span
                      aria-hidden
                      className="size-3 shrink-0 rounded-full"
                      style={{ background: colours.of(row) }}
                    />
                    <Link
                      to="/$namespace/-/jobs/$job"
                      params={{ namespace: row.job.namespace, job: row.job.name }}
                      className="whitespace-nowrap hover:underline"
                    >
                      {row.job.namespace !== namespace && (
                        <span className="text-dim">{row.job.namespace} / </span>
                      )}
                      {row.job.name}
                    </Link>
                  </div>
                </th>
                {columns.map((column) => (
                  <BodyCell key={column.id} column={column} row={row} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {rows.length < total && (
        <p role="status" className="text-sm text-dim">
          {rows.length} of {formatCount(total, 'job')} match the filter
        </p>
      )}
      <ShowMoreButton
        hasMore={rows.length > shown}
        left={rows.length - shown}
        onMore={() => setShown(shown + 4 * PAGE_SIZE)}
      />
    </>
  );
}

function Heading({
  column: { id, title, kind, isLowerBetter },
  order,
  onOrder,
}: {
  column: Column;
  order: Order | null;
  onOrder: (sort: string) => void;
}) {
  const isSorted = order?.id === id;
  const isDescending = isSorted ? !order.isDescending : kind === 'metric' && !isLowerBetter;
  const Arrow = order?.isDescending ? ArrowDown : ArrowUp;
  const direction = isSorted ? (order.isDescending ? 'descending' : 'ascending') : undefined;
  return (
    <th scope="col" aria-sort={direction} className={HEADING}>
      <button
        type="button"
        onClick={() => onOrder(formatOrder({ id, isDescending }))}
        className={`flex max-w-64 items-center gap-1 text-left whitespace-nowrap hover:underline ${kind === 'job' ? '' : 'font-mono'}`}
      >
        <span className="truncate" title={title}>
          {title}
        </span>
        {isSorted && <Arrow size={14} aria-hidden className="shrink-0" />}
      </button>
    </th>
  );
}

function BodyCell({ column, row }: { column: Column; row: Row }) {
  const { id, kind, read, format } = column;
  if (id === 'status')
    return (
      <td className={CELL}>
        <JobStatusBadge status={row.job.status} />
      </td>
    );
  const text = format(read(row));
  return (
    <td className={`${CELL} whitespace-nowrap ${kind === 'value' ? 'font-mono' : ''}`}>
      <div className="max-w-64 truncate" title={text.length > 30 ? text : undefined}>
        {text}
      </div>
    </td>
  );
}
