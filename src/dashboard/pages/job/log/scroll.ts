/** Scrolling of the log viewer: following the end, jumping to a line, and the window of rendered lines. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from 'react';
import type { VirtualizerHandle } from 'virtua';
import type { LogStore } from './store.ts';

/** The lines of a shared link or of the current search match. */
export type LineRange = { from: number; to: number };

/** The minimum target size (WCAG 2.5.8), because the line number is a link. */
export const ROW_PX = 24;
/** Closer than this counts as the end, because a mouse wheel does not stop at an exact pixel. */
const END_PX = 40;
/**
 * Browsers limit the height of an element to 17 to 33 million pixels. A longer log is shown in windows of this many
 * lines; the window moves when the user scrolls to its edge.
 */
const WINDOW_LINES = 500_000;
const WINDOW_STEP_LINES = 100_000;
const WINDOW_EDGE_LINES = 1_000;

type ScrollTarget = { seq: number; align: 'center' | 'start' };

export function useLogScroll({
  store,
  version,
  wraps,
  markedRange,
}: {
  store: LogStore;
  version: number;
  wraps: boolean;
  markedRange: LineRange | null;
}) {
  const list = useRef<VirtualizerHandle>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const [follows, setFollows] = useState(markedRange === null);
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
    if (align === 'center' && (!isInside || isAtEdge) && centred !== windowStart)
      setWindowStart(centred);
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
    if (wraps) return;
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
  }, [version, follows, windowStart, wraps]);

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
    if (offset < ROW_PX && windowStart > 0)
      moveWindow(Math.max(0, windowStart - WINDOW_STEP_LINES));
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

  return {
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
  };
}
