import { Clock, Download, Maximize, WrapText } from 'lucide-react';
import { type ReactNode, useState } from 'react';
import { useClient } from 'urql';
import { Button } from '../../../ui/button.tsx';
import { LiveDot } from '../../../ui/live-dot.tsx';
import { notify } from '../../../ui/notices.tsx';
import { LogDownload } from './queries.ts';
import type { Times } from './row.tsx';
import type { LogOf, LogStore } from './store.ts';

/** How lines are shown; kept for the next log. */
export type Look = { wraps: boolean; times: Times };

const KEY = 'loam-log-look';
const NEXT: Record<Times, Times> = { none: 'clock', clock: 'elapsed', elapsed: 'none' };
const NAMES: Record<Times, string> = {
  none: 'No times',
  clock: 'Time of day',
  elapsed: 'Since the start',
};

export function useLook(): [Look, (look: Look) => void] {
  const [look, setLook] = useState<Look>(() => ({ wraps: true, times: 'none', ...kept() }));
  return [
    look,
    (next) => {
      localStorage.setItem(KEY, JSON.stringify(next));
      setLook(next);
    },
  ];
}

function kept(): Partial<Look> {
  try {
    const { wraps, times } = JSON.parse(localStorage.getItem(KEY) ?? '{}');
    return { ...(typeof wraps === 'boolean' && { wraps }), ...(times in NEXT && { times }) };
  } catch {
    return {};
  }
}

export function Toolbar({
  job,
  store,
  look,
  onLook,
  onFullScreen,
  children,
}: {
  job: LogOf;
  store: LogStore;
  look: Look;
  onLook: (look: Look) => void;
  onFullScreen: () => void;
  children: ReactNode;
}) {
  const client = useClient();
  /** The link works for a quarter of an hour, so it is asked for when it is needed. */
  async function download(): Promise<void> {
    const { data, error } = await client.query(LogDownload, job, { requestPolicy: 'network-only' });
    if (data?.job) location.assign(data.job.logDownloadUrl);
    else notify(error?.message ?? 'There is no such job any more');
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
          aria-pressed={look.wraps}
          title="Wrap long lines (w)"
          onClick={() => onLook({ ...look, wraps: !look.wraps })}
        >
          <WrapText size={16} aria-hidden className={look.wraps ? 'text-accent' : ''} />
        </Button>
        <Button
          look="quiet"
          className="px-1.5"
          aria-label={`Times: ${NAMES[look.times]}`}
          title={`Times: ${NAMES[look.times]} (t)`}
          onClick={() => onLook({ ...look, times: NEXT[look.times] })}
        >
          <Clock size={16} aria-hidden className={look.times === 'none' ? '' : 'text-accent'} />
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
