import { Clock, Download, Maximize, WrapText } from 'lucide-react';
import { type ReactNode, useState } from 'react';
import { useClient } from 'urql';
import { Button } from '../../../ui/button.tsx';
import { LiveDot } from '../../../ui/live-dot.tsx';
import { notify } from '../../../ui/notices.tsx';
import { LogDownload } from './queries.ts';
import type { Times } from './row.tsx';
import type { JobKey, LogStore } from './store.ts';

/** How lines are shown; stored in the browser for the next log. */
type DisplayOptions = { wraps: boolean; times: Times };

const STORAGE_KEY = 'loam-log-look';
const NEXT_TIMES: Record<Times, Times> = { none: 'clock', clock: 'elapsed', elapsed: 'none' };
const TIMES_LABELS: Record<Times, string> = {
  none: 'No times',
  clock: 'Time of day',
  elapsed: 'Since the start',
};

export function useDisplayOptions(): [DisplayOptions, (display: DisplayOptions) => void] {
  const [display, setDisplay] = useState<DisplayOptions>(() => ({
    wraps: true,
    times: 'none',
    ...readStored(),
  }));
  return [
    display,
    (next) => {
      localStorage.setItem(STORAGE_KEY, JSON.stringify(next));
      setDisplay(next);
    },
  ];
}

function readStored(): Partial<DisplayOptions> {
  try {
    const { wraps, times } = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? '{}');
    return { ...(typeof wraps === 'boolean' && { wraps }), ...(times in NEXT_TIMES && { times }) };
  } catch {
    return {};
  }
}

export function Toolbar({
  job,
  store,
  display,
  onDisplayChange,
  onFullScreen,
  children,
}: {
  job: JobKey;
  store: LogStore;
  display: DisplayOptions;
  onDisplayChange: (display: DisplayOptions) => void;
  onFullScreen: () => void;
  children: ReactNode;
}) {
  const client = useClient();
  /** Download links expire after 15 minutes, so the link is requested on click. */
  async function download(): Promise<void> {
    const { data, error } = await client.query(LogDownload, job, { requestPolicy: 'network-only' });
    if (data?.job) location.assign(data.job.logDownloadUrl);
    else notify(error?.message ?? 'The job no longer exists');
  }
  return (
    <div className="flex flex-wrap items-center gap-1 border-b border-line px-2 py-1.5">
      {children}
      <span className="ml-auto flex items-center gap-1">
        <LiveDot state={store.state} />
        <Button
          look="quiet"
          className="px-1.5"
          aria-label="Wrap long lines"
          aria-pressed={display.wraps}
          title="Wrap long lines (w)"
          onClick={() => onDisplayChange({ ...display, wraps: !display.wraps })}
        >
          <WrapText size={16} aria-hidden className={display.wraps ? 'text-accent' : ''} />
        </Button>
        <Button
          look="quiet"
          className="px-1.5"
          aria-label={`Times: ${TIMES_LABELS[display.times]}`}
          title={`Times: ${TIMES_LABELS[display.times]} (t)`}
          onClick={() => onDisplayChange({ ...display, times: NEXT_TIMES[display.times] })}
        >
          <Clock size={16} aria-hidden className={display.times === 'none' ? '' : 'text-accent'} />
        </Button>
        <Button look="quiet" className="px-1.5" title="Download the log" onClick={download}>
          <Download size={16} aria-hidden />
        </Button>
        <Button look="quiet" className="px-1.5" title="Full screen" onClick={onFullScreen}>
          <Maximize size={16} aria-hidden />
        </Button>
      </span>
    </div>
  );
}
