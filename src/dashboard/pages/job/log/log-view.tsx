/**
 * The log viewer: follows the end until the user scrolls up, jumps to any line, and searches the whole log. Only visible
 * lines are in the document.
 */
import { ArrowDownToLine } from 'lucide-react';
import {
  type CSSProperties,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore,
} from 'react';
import { useClient } from 'urql';
import { Virtualizer, type VirtualizerHandle } from 'virtua';
import { useShortcuts } from '../../../layout/shortcuts.ts';
import { Button } from '../../../ui/button.tsx';
import { Empty } from '../../../ui/empty.tsx';
import type { JobStatus } from '../../../ui/status.tsx';
import { Row } from './row.tsx';
import { LogSearch } from './search.tsx';
import { type JobKey, LogStore } from './store.ts';
import { Toolbar, useDisplayOptions } from './toolbar.tsx';

/** The minimum target size (WCAG 2.5.8), because the line number is a link. */
const ROW_PX = 24;
/** Closer than this counts as the end, because a mouse wheel does not stop at an exact pixel. */
const END_PX = 40;
/**
 * Browsers limit the height of an element to 17 to 33 million pixels. A longer log is shown in windows of this many
 * lines; the window moves when the user scrolls to its edge.
 */
const WINDOW_LINES = 500_000;
const WINDOW_STEP_LINES = 100_000;
const WINDOW_EDGE_LINES = 1_000;

/** Rendered beyond the viewport. Less while following the end: nobody scrolls then, and layout costs time per line. */
const BUFFER_PX = 400;
const FOLLOWED_BUFFER_PX = 4 * ROW_PX;

type ScrollTarget = { seq: number; align: 'center' | 'start' };

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

  const list = useRef<VirtualizerHandle>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const frame = useRef<HTMLDivElement>(null);
  const [display, setDisplay] = useDisplayOptions();
  const [markedRange, setMarkedRange] = useState<LineRange | null>(parseHash);
  const [follows, setFollows] = useState(markedRange === null);
  const [find, setFind] = useState('');
  // The width of the widest line shown so far, in pixels.
  const [minWidth, setMinWidth] = useState(0);
  // Number of lines before the window.
  const [windowStart, setWindowStart] = useState(0);
  const length = Math.min(store.last - windowStart, WINDOW_LINES);
  const atNewest = windowStart + length >= store.last;
  const lastOffset = useRef(0);
  const lastHeight = useRef(0);
  /** The line to scroll to as soon as it is in the window. */
  const scrollTarget = useRef<ScrollTarget | null>(
    markedRange && { seq: markedRange.from, align: 'center' },
  );

  function goTo(seq: number): void {
    setFollows(false);
    scrollTarget.current = { seq, align: 'center' };
    scrollToTarget();
  }

  function scrollToTarget(): void {
    const { seq, align } = scrollTarget.current ?? { seq: 0 };
    if (seq < 1 || !store.isOpen) return;
    const line = Math.min(seq, store.last);
    const isInside = line > windowStart && line <= windowStart + length;
    const centred = Math.min(
      Math.max(0, line - WINDOW_LINES / 2),
      Math.max(0, store.last - WINDOW_LINES),
    );
    // At the edge, the window would move at once, away from the requested line.
    const isAtEdge =
      (line - windowStart < WINDOW_EDGE_LINES && windowStart > 0) ||
      (windowStart + length - line < WINDOW_EDGE_LINES && !atNewest);
    if (align === 'center' && (!isInside || isAtEdge) && centred !== windowStart) setWindowStart(centred);
    else {
      scrollTarget.current = null;
      list.current?.scrollToIndex(line - windowStart - 1, { align });
    }
  }

  /**
   * Sets `scrollTop` directly: `scrollToIndex` waits until lines are measured, and new lines arrive faster. The scroll
   * event is dispatched in the same frame; the browser's own comes a frame later, which would show an empty viewport.
   */
  function stayAtEnd(): void {
    const { current } = scroller;
    if (!current || !follows) return;
    const before = current.scrollTop;
    current.scrollTop = current.scrollHeight;
    // Record the offset: lines that became lower move the end up, which must not count as scrolling.
    lastOffset.current = current.scrollTop;
    if (current.scrollTop !== before) current.dispatchEvent(new Event('scroll'));
  }

  /** Widens the list to its widest line: it clips overflowing lines, which could not be scrolled to otherwise. */
  function measureWidth(): void {
    if (display.wraps) return;
    const rows = [...(scroller.current?.querySelectorAll('[data-seq]') ?? [])];
    const widest = Math.max(0, ...rows.map((row) => row.scrollWidth));
    if (widest > minWidth) setMinWidth(widest);
  }

  function goToEnd(): void {
    setWindowStart(Math.max(0, store.last - WINDOW_LINES));
    setFollows(true);
  }

  // A resize moves the end and scrolls without the user; a full-page screenshot does so without a change of size.
  const latestStayAtEnd = useRef(stayAtEnd);
  latestStayAtEnd.current = stayAtEnd;
  const isEmpty = store.last === 0;
  useEffect(() => {
    if (isEmpty || !scroller.current) return;
    const observer = new ResizeObserver(() => latestStayAtEnd.current());
    observer.observe(scroller.current);
    // Wrapped lines have their final height only after they are rendered.
    if (scroller.current.firstElementChild) observer.observe(scroller.current.firstElementChild);
    const resized = () => latestStayAtEnd.current();
    addEventListener('resize', resized);
    return () => {
      observer.disconnect();
      removeEventListener('resize', resized);
    };
  }, [isEmpty]);

  // The position of the end is known only after the layout of new lines.
  useLayoutEffect(() => {
    if (follows && store.last > 0) {
      if (!atNewest) {
        const steps = Math.ceil((store.last - WINDOW_LINES) / WINDOW_STEP_LINES);
        setWindowStart(steps * WINDOW_STEP_LINES);
      }
      stayAtEnd();
    } else scrollToTarget();
    measureWidth();
  }, [version, follows, windowStart, display.wraps]);

  useEffect(() => {
    const changed = () => {
      const range = parseHash();
      setMarkedRange(range);
      if (range) goTo(range.from);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  });

  function onScroll(offset: number): void {
    const height = scroller.current?.clientHeight ?? 0;
    if (height !== lastHeight.current) {
      lastHeight.current = height;
      lastOffset.current = offset;
      if (follows) {
        stayAtEnd();
        return;
      }
    }
    const { scrollSize = 0, viewportSize = 0 } = list.current ?? {};
    const left = scrollSize - offset - viewportSize;
    if (left > END_PX) {
      // New lines also increase the distance to the end, so only scrolling up stops following.
      if (follows && offset < lastOffset.current) setFollows(false);
    } else if (atNewest && scrollTarget.current === null && !markedRange) setFollows(true);
    lastOffset.current = offset;
    if (offset < ROW_PX && windowStart > 0) moveWindow(Math.max(0, windowStart - WINDOW_STEP_LINES));
    else if (left < ROW_PX && !atNewest) moveWindow(windowStart + WINDOW_STEP_LINES);
  }

  /** Moves the window; the visible lines stay in place. */
  function moveWindow(next: number): void {
    const { current } = list;
    if (!current) return;
    scrollTarget.current = {
      seq: windowStart + current.findItemIndex(current.scrollOffset) + 1,
      align: 'start',
    };
    setWindowStart(Math.min(next, Math.max(0, store.last - WINDOW_LINES)));
  }

  const stopFollowing = useCallback(() => setFollows(false), []);

  function select(seq: number, extend: boolean): void {
    const range =
      extend && markedRange
        ? { from: Math.min(markedRange.from, seq), to: Math.max(markedRange.from, seq) }
        : { from: seq, to: seq };
    history.replaceState(history.state, '', formatHash(range));
    setFollows(false);
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

/** A shareable range of lines in the address: `#L12` or `#L12-L20`. */
type LineRange = { from: number; to: number };

function parseHash(): LineRange | null {
  const [, from, to] = /^#L(\d{1,15})(?:-L(\d{1,15}))?$/.exec(location.hash) ?? [];
  if (!from || Number(from) < 1) return null;
  return { from: Number(from), to: Math.max(Number(to ?? from), Number(from)) };
}

function formatHash({ from, to }: LineRange): string {
  return from === to ? `#L${from}` : `#L${from}-L${to}`;
}
