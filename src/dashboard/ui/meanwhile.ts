import { useState } from 'react';

type Answer = { data?: unknown };

/**
 * Optimistic update: shows a chosen value at once, and the known value again if the mutation fails.
 * @returns the value to show, and a function that takes the chosen value and its pending mutation
 */
export function useOptimisticValue<T>(
  known: T,
): [shown: T, choose: (value: T, change: Promise<Answer>) => Promise<void>] {
  const [chosen, setChosen] = useState<{ value: T; from: T } | null>(null);
  // A newer value from the server replaces the chosen value.
  const shown = chosen && Object.is(chosen.from, known) ? chosen.value : known;
  return [
    shown,
    async (value, change) => {
      setChosen({ value, from: known });
      const { data } = await change;
      if (!data) setChosen(null);
    },
  ];
}
