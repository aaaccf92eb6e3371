/**
 * The log viewer: follows the end until the user scrolls up, jumps to any line, and searches the whole log. Only visible
 * lines are in the document.
 */
import { ArrowDownToLine } from 'lucide-react';
import {
  type CSSProperties,
  useEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore,
} from 'react';
import { useClient } from 'urql';
import { Virtualizer } from 'virtua';
import { useShortcuts } from '../../../layout/shortcuts.ts';
import { Button } from '../../../ui/button.tsx';
import { Empty } from '../../../ui/empty.tsx';
import type { JobStatus } from '../../../ui/status.tsx';
import { Row } from './row.tsx';
import { type LineRange, ROW_PX, useLogScroll } from './scroll.ts';
import { LogSearch } from './search.tsx';
import { type JobKey, LogStore } from './store.ts';
import { Toolbar, useDisplayOptions } from './toolbar.tsx';

/** Rendered beyond the viewport. Less while following the end: nobody scrolls then, and layout costs time per line. */
const BUFFER_PX = 400;
const FOLLOWED_BUFFER_PX = 4 * ROW_PX;

export function LogView({
  job,
  status,
  startedAt,
}: {
  job: JobKey;
  status: JobStatus;
  startedAt: string | null;
}) {
  const client = useClient();
  const { namespace, name } = job;
  const store = useMemo(() => new LogStore(client, { namespace, name }), [client, namespace, name]);
  const version = useSyncExternalStore(store.subscribe, store.read);
  useEffect(() => store.open(), [store]);

  const frame = useRef<HTMLDivElement>(null);
  const [display, setDisplay] = useDisplayOptions();
  const [markedRange, setMarkedRange] = useState<LineRange | null>(parseHash);
  const [find, setFind] = useState('');
  const {
    list,
    scroller,
    windowStart,
    length,
    minWidth,
    follows,
    goTo,
    goToEnd,
    stopFollowing,
    stayAtEnd,
    measureWidth,
    onScroll,
  } = useLogScroll({ store, version, wraps: display.wraps, markedRange });

  useEffect(() => {
    const changed = () => {
      const range = parseHash();
      setMarkedRange(range);
      if (range) goTo(range.from);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  });

  function select(seq: number, extend: boolean): void {
    const range =
      extend && markedRange
        ? { from: Math.min(markedRange.from, seq), to: Math.max(markedRange.from, seq) }
        : { from: seq, to: seq };
    history.replaceState(history.state, '', formatHash(range));
    stopFollowing();
    setMarkedRange(range);
  }

  useShortcuts({
    f: goToEnd,
    w: () => setDisplay({ ...display, wraps: !display.wraps }),
    t: () => setDisplay({ ...display, times: display.times === 'none' ? 'clock' : 'none' }),
    Home: () => goTo(1),
    End: goToEnd,
  });

  const begin = Date.parse(startedAt ?? '') || 0;
  return (
    <section
      ref={frame}
      aria-label="Log"
      style={{ '--lines': `${store.last * ROW_PX}px` } as CSSProperties}
      className="card flex h-[clamp(14rem,var(--lines)+4rem,70vh)] flex-col overflow-hidden bg-card [&:fullscreen]:h-screen [&:fullscreen]:rounded-none"
    >
      <Toolbar
        job={job}
        store={store}
        display={display}
        onDisplayChange={setDisplay}
        onFullScreen={() =>
          document.fullscreenElement
            ? document.exitFullscreen()
            : frame.current?.requestFullscreen()
        }
      >
        <LogSearch
          job={job}
          store={store}
          onFind={setFind}
          onMatch={(seq) => {
            setMarkedRange({ from: seq, to: seq });
            goTo(seq);
          }}
        />
      </Toolbar>
      {store.problem && (
        <p role="alert" className="border-b border-line bg-bad-soft px-3 py-1.5 text-sm">
          {store.problem}
        </p>
      )}
      <div className="relative min-h-0 flex-1">
        {store.isOpen && store.last === 0 ? (
          <EmptyLog status={status} />
        ) : (
          <div
            ref={scroller}
            role="log"
            aria-label="Lines"
            aria-live="off"
            // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
            tabIndex={0}
            data-log-lines={store.last}
            className="h-full overflow-auto [contain:strict] [overflow-anchor:none]"
          >
            <div style={display.wraps ? undefined : { minWidth }}>
              <Virtualizer
                ref={list}
                scrollRef={scroller}
                data={{ length }}
                itemSize={ROW_PX}
                bufferSize={follows ? FOLLOWED_BUFFER_PX : BUFFER_PX}
                onScroll={onScroll}
                onResize={stayAtEnd}
                onScrollEnd={measureWidth}
              >
                {(_: unknown, index: number) => {
                  const seq = windowStart + index + 1;
                  return (
                    <Row
                      key={seq}
                      seq={seq}
                      entry={store.entry(seq)}
                      wraps={display.wraps}
                      times={display.times}
                      begin={begin}
                      find={find}
                      isMarked={
                        markedRange !== null && seq >= markedRange.from && seq <= markedRange.to
                      }
                      onPress={stopFollowing}
                      onSelect={select}
                    />
                  );
                }}
              </Virtualizer>
            </div>
          </div>
        )}
        {!follows && store.last > 0 && (
          <Button className="absolute right-5 bottom-4 shadow-md" onClick={goToEnd}>
            <ArrowDownToLine size={16} aria-hidden />{' '}
            {store.state === 'over' ? 'Jump to end' : 'Follow'}
          </Button>
        )}
      </div>
    </section>
  );
}

function EmptyLog({ status }: { status: JobStatus }) {
  const title = { QUEUED: 'The job has not started yet', RUNNING: 'No output yet' }[
    status as string
  ];
  return (
    <div className="p-6">
      <Empty title={title ?? 'The job printed no output'} level={3}>
        {(status === 'QUEUED' || status === 'RUNNING') && (
          <p>Output appears here as soon as the job prints it.</p>
        )}
      </Empty>
    </div>
  );
}

/** Reads the lines of a shared link: `#L12` or `#L12-L20`. */
function parseHash(): LineRange | null {
  const [, from, to] = /^#L(\d{1,15})(?:-L(\d{1,15}))?$/.exec(location.hash) ?? [];
  if (!from || Number(from) < 1) return null;
  return { from: Number(from), to: Math.max(Number(to ?? from), Number(from)) };
}

function formatHash({ from, to }: LineRange): string {
  return from === to ? `#L${from}` : `#L${from}-L${to}`;
}
