import { useEffect, useRef } from 'react';

/** Does it again and again while the page is in sight. `ms` null: not now. */
export function useEvery(ms: number | null, act: () => void): void {
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
