import { memo } from 'react';
import { formatEnum } from '../../../ui/format.ts';
import { isFailed, type JobStatus } from '../../../ui/status.tsx';
import { formatExactTime } from '../../../ui/time.tsx';
import { renderLine } from './ansi.tsx';
import type { Entry } from './store.ts';

export type Times = 'none' | 'clock' | 'elapsed';

type RowProps = {
  seq: number;
  /** Undefined while it is being loaded. */
  entry: Entry | undefined;
  wraps: boolean;
  times: Times;
  /** When the job started, as Unix time in milliseconds. */
  begin: number;
  find: string;
  /** The address links to this line, or it is the current search match. */
  isMarked: boolean;
  /** Pointer down on the number: the log must stop scrolling, so that pointer up hits the same line. */
  onPress: () => void;
  onSelect: (seq: number, extend: boolean) => void;
};

/** One log entry; its number links to it. */
export const Row = memo(function Row({
  seq,
  entry,
  wraps,
  times,
  begin,
  find,
  isMarked,
  onPress,
  onSelect,
}: RowProps) {
  return (
    // The list disables pointer events while it scrolls, and a followed log scrolls all the time.
    <div
      data-seq={seq}
      className={`pointer-events-auto flex min-h-6 font-mono text-[12.5px] leading-6 ${isMarked ? 'bg-warn-soft' : 'bg-card hover:bg-hover'}`}
    >
      <a
        href={`#L${seq}`}
        tabIndex={-1}
        aria-label={`Line ${seq}`}
        onPointerDown={onPress}
        onClick={(event) => {
          event.preventDefault();
          onSelect(seq, event.shiftKey);
        }}
        className="sticky left-0 min-w-[8ch] shrink-0 bg-inherit pr-3 text-right text-dim tabular-nums select-none hover:text-ink"
      >
        {seq}
      </a>
      {times !== 'none' && entry && 'timestamp' in entry && (
        <time
          dateTime={entry.timestamp}
          title={formatExactTime(entry.timestamp)}
          className="shrink-0 pr-3 text-dim tabular-nums select-none"
        >
          {times === 'clock'
            ? formatClock(entry.timestamp)
            : formatElapsed(Date.parse(entry.timestamp) - begin)}
        </time>
      )}
      <Text entry={entry} wraps={wraps} find={find} />
    </div>
  );
});

function Text({ entry, wraps, find }: Pick<RowProps, 'entry' | 'wraps' | 'find'>) {
  if (!entry) return <span className="text-dim">…</span>;
  if (entry.__typename === 'LogLine')
    return (
      <span
        className={wraps ? 'min-w-0 pr-4 break-all whitespace-pre-wrap' : 'pr-4 whitespace-pre'}
      >
        {renderLine(entry.message, find)}
      </span>
    );
  return (
    <span className={`font-semibold ${statusColor(entry.status)}`} data-log-status={entry.status}>
      {formatEnum(entry.status)}
    </span>
  );
}

function statusColor(status: JobStatus): string {
  if (isFailed(status)) return 'text-bad';
  return status === 'SUCCEEDED' ? 'text-good' : 'text-run';
}

function formatClock(at: string): string {
  const time = new Date(at);
  const two = (value: number) => String(value).padStart(2, '0');
  const ms = String(time.getMilliseconds()).padStart(3, '0');
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${ms}`;
}

function formatElapsed(ms: number): string {
  return `${(ms / 1_000).toFixed(3).padStart(9, ' ')}s`;
}
