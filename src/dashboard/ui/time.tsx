import { useEffect, useRef, useSyncExternalStore } from 'react';

/**
 * One clock for all relative times, so that they change together and a page has one timer. It pauses while the tab is
 * hidden.
 */
const listeners = new Set<() => void>();
let second = Math.floor(Date.now() / 1_000);
let timer: ReturnType<typeof setInterval> | undefined;

function tick(): void {
  if (document.visibilityState === 'hidden') return;
  second = Math.floor(Date.now() / 1_000);
  for (const each of listeners) each();
}

function listen(listener: () => void): () => void {
  listeners.add(listener);
  if (timer === undefined) {
    timer = setInterval(tick, 1_000);
    document.addEventListener('visibilitychange', tick);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    document.removeEventListener('visibilitychange', tick);
    timer = undefined;
  };
}

/** The Unix time in seconds; re-renders the component each second. */
export function useUnixSeconds(): number {
  return useSyncExternalStore(listen, now);
}

/** The clock stops without subscribers, so the first subscriber must not get the time at which it stopped. */
function now(): number {
  if (timer === undefined) second = Math.floor(Date.now() / 1_000);
  return second;
}

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const relative = new Intl.RelativeTimeFormat('en', { numeric: 'auto', style: 'long' });
const STEPS: [unit: Intl.RelativeTimeFormatUnit, seconds: number][] = [
  ['year', 31_536_000],
  ['month', 2_592_000],
  ['week', 604_800],
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
];

export function formatExactTime(at: string): string {
  return exact.format(new Date(at));
}

const day = new Intl.DateTimeFormat('en', { dateStyle: 'long' });

/** The date in the reader's time zone: November 26, 2026. */
export function formatLongDate(at: string): string {
  return day.format(new Date(at));
}

/** A time relative to now, past or future. */
export function RelativeTime({ at }: { at: string | null | undefined }) {
  const now = useUnixSeconds();
  if (!at) return <>never</>;
  const ahead = Date.parse(at) / 1_000 - now;
  const [unit, seconds] = STEPS.find(([, size]) => Math.abs(ahead) >= size) ?? ['second', 1];
  const text =
    unit === 'second' && Math.abs(ahead) < 45
      ? ahead > 10
        ? 'in a moment'
        : 'just now'
      : relative.format(Math.trunc(ahead / seconds), unit);
  return (
    <time dateTime={at} title={formatExactTime(at)}>
      {text}
    </time>
  );
}

/** Calls `act` at an interval while the tab is visible. With `ms` null it is off. */
export function useInterval(ms: number | null, act: () => void): void {
  const current = useRef(act);
  current.current = act;
  useEffect(() => {
    if (ms === null) return;
    const timer = setInterval(() => {
      if (document.visibilityState === 'visible') current.current();
    }, ms);
    return () => clearInterval(timer);
  }, [ms]);
}
