import { useEffect, useRef } from 'react';

/** Returns a function that coalesces bursts of events: however many arrive within `ms`, `refetch` runs once. */
export function useCoalescedRefetch(refetch: () => void, ms: number): () => void {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const current = useRef(refetch);
  current.current = refetch;
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      current.current();
    }, ms);
  };
}
