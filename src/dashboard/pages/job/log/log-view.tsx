/**
 * A log on screen: it follows the end until one scrolls up, leads to any line, and finds text in all of it. Only what is
 * in sight is in the document.
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
import { linesOf, type Range, readHash } from './hash.ts';
import { Row } from './row.tsx';
import { LogSearch } from './search.tsx';
import { type LogOf, LogStore } from './store.ts';
import { Toolbar, useLook } from './toolbar.tsx';

/** As high as a finger is wide (WCAG 2.5.8): its number is a link. */
const ROW_PX = 24;
/** Nearer to the end than this is the end: a wheel does not stop at a pixel. */
const END_PX = 40;
/**
 * Browsers end an element at some 17 to 33 million pixels. A longer log is shown in windows of this many lines, which
 * move as one comes to their edge.
 */
const WINDOW = 500_000;
const STEP = 100_000;
const EDGE = 1_000;

/** Beyond what is in sight; who follows the end does not scroll, and each line there would be laid out for nobody. */
const BUFFER_PX = 400;
const FOLLOWED_BUFFER_PX = 4 * ROW_PX;

type Place = { seq: number; align: 'center' | 'start' };

export function LogView({
  job,
  status,
  startedAt,
}: {
  job: LogOf;
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
  const [look, setLook] = useLook();
  const [marked, setMarked] = useState<Range | null>(readHash);
  const [follows, setFollows] = useState(marked === null);
  const [find, setFind] = useState('');
  // Of the widest line that was shown, in pixels.
  const [wide, setWide] = useState(0);
  // The first line of the window, less one.
  const [base, setBase] = useState(0);
  const length = Math.min(store.last - base, WINDOW);
  const atNewest = base + length >= store.last;
  const lastOffset = useRef(0);
  const lastHeight = useRef(0);
  /** Where to scroll as soon as that line is in the window. */
  const wanted = useRef<Place | null>(marked && { seq: marked.from, align: 'center' });

  function goTo(seq: number): void {
    setFollows(false);
    wanted.current = { seq, align: 'center' };
    place();
  }

  function place(): void {
    const { seq, align } = wanted.current ?? { seq: 0 };
    if (seq < 1 || !store.isOpen) return;
    const line = Math.min(seq, store.last);
    const isInside = line > base && line <= base + length;
    const centred = Math.min(Math.max(0, line - WINDOW / 2), Math.max(0, store.last - WINDOW));
    // At the edge it would move at once, away from what was asked for.
    const isAtEdge = (line - base < EDGE && base > 0) || (base + length - line < EDGE && !atNewest);
    if (align === 'center' && (!isInside || isAtEdge) && centred !== base) setBase(centred);
    else {
      wanted.current = null;
      list.current?.scrollToIndex(line - base - 1, { align });
    }
  }

  /**
   * Set at once: the list's own way waits for lines to be measured, and they come faster than that. The list is told in
   * the same frame; the browser tells it in the next, and until then there would be no lines where one looks.
   */
  function stayAtEnd(): void {
    const { current } = scroller;
    if (!current || !follows) return;
    const before = current.scrollTop;
    current.scrollTop = current.scrollHeight;
    // Lines that got lower since the last event have moved the end up: nobody scrolled.
    lastOffset.current = current.scrollTop;
    if (current.scrollTop !== before) current.dispatchEvent(new Event('scroll'));
  }

  /** The list keeps what sticks out of its lines to itself, so that it could not be scrolled to. */
  function widen(): void {
    if (look.wraps) return;
    const rows = [...(scroller.current?.querySelectorAll('[data-seq]') ?? [])];
    const widest = Math.max(0, ...rows.map((row) => row.scrollWidth));
    if (widest > wide) setWide(widest);
  }

  function goToEnd(): void {
    setBase(Math.max(0, store.last - WINDOW));
    setFollows(true);
  }

  // Another size of the window moves the end, and scrolls where nobody has scrolled; a picture of the whole page too, which leaves the size as it was.
  const atEnd = useRef(stayAtEnd);
  atEnd.current = stayAtEnd;
  const isEmpty = store.last === 0;
  useEffect(() => {
    if (isEmpty || !scroller.current) return;
    const observer = new ResizeObserver(() => atEnd.current());
    observer.observe(scroller.current);
    // Lines that wrap have their height only after they are drawn.
    if (scroller.current.firstElementChild) observer.observe(scroller.current.firstElementChild);
    const resized = () => atEnd.current();
    addEventListener('resize', resized);
    return () => {
      observer.disconnect();
      removeEventListener('resize', resized);
    };
  }, [isEmpty]);

  // The end is where it is after the new lines are laid out.
  useLayoutEffect(() => {
    if (follows && store.last > 0) {
      if (!atNewest) setBase(Math.ceil((store.last - WINDOW + STEP) / STEP) * STEP - STEP);
      stayAtEnd();
    } else place();
    widen();
  }, [version, follows, base, look.wraps]);

  useEffect(() => {
    const changed = () => {
      const range = readHash();
      setMarked(range);
      if (range) goTo(range.from);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  });

  function scrolled(offset: number): void {
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
      // Lines that were laid out just now are below until they are scrolled to; who scrolls, scrolls up.
      if (follows && offset < lastOffset.current) setFollows(false);
    } else if (atNewest && wanted.current === null && !marked) setFollows(true);
    lastOffset.current = offset;
    if (offset < ROW_PX && base > 0) moveWindow(Math.max(0, base - STEP));
    else if (left < ROW_PX && !atNewest) moveWindow(base + STEP);
  }

  /** What is in sight stays where it is. */
  function moveWindow(next: number): void {
    const { current } = list;
    if (!current) return;
    wanted.current = {
      seq: base + current.findItemIndex(current.scrollOffset) + 1,
      align: 'start',
    };
    setBase(Math.min(next, Math.max(0, store.last - WINDOW)));
  }

  const stopFollowing = useCallback(() => setFollows(false), []);

  function select(seq: number, extend: boolean): void {
    const range =
      extend && marked
        ? { from: Math.min(marked.from, seq), to: Math.max(marked.from, seq) }
        : { from: seq, to: seq };
    history.replaceState(history.state, '', linesOf(range));
    setFollows(false);
    setMarked(range);
  }

  useShortcuts({
    f: goToEnd,
    w: () => setLook({ ...look, wraps: !look.wraps }),
    t: () => setLook({ ...look, times: look.times === 'none' ? 'clock' : 'none' }),
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
        look={look}
        onLook={setLook}
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
            setMarked({ from: seq, to: seq });
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
          <NothingYet status={status} />
        ) : (
          <div
            ref={scroller}
            role="log"
            aria-label="Lines"
            aria-live="off"
            // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
            tabIndex={0}
            data-log-lines={store.last}
            className="h-full overflow-auto [contain:strict] [overflow-anchor:none]"
          >
            <div style={look.wraps ? undefined : { minWidth: wide }}>
              <Virtualizer
                ref={list}
                scrollRef={scroller}
                data={{ length }}
                itemSize={ROW_PX}
                bufferSize={follows ? FOLLOWED_BUFFER_PX : BUFFER_PX}
                onScroll={scrolled}
                onResize={stayAtEnd}
                onScrollEnd={widen}
              >
                {(_: unknown, index: number) => {
                  const seq = base + index + 1;
                  return (
                    <Row
                      key={seq}
                      seq={seq}
                      entry={store.entry(seq)}
                      wraps={look.wraps}
                      times={look.times}
                      begin={begin}
                      find={find}
                      isMarked={marked !== null && seq >= marked.from && seq <= marked.to}
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
            {store.state === 'over' ? 'To the end' : 'Follow'}
          </Button>
        )}
      </div>
    </section>
  );
}

function NothingYet({ status }: { status: JobStatus }) {
  const title = { QUEUED: 'The job has not started yet', RUNNING: 'Nothing was printed yet' }[
    status as string
  ];
  return (
    <div className="p-6">
      <Empty title={title ?? 'The job printed nothing'} level={3}>
        {(status === 'QUEUED' || status === 'RUNNING') && (
          <p>Lines show here as soon as they are printed.</p>
        )}
      </Empty>
    </div>
  );
}
