import { useState } from 'react';

type Answer = { data?: unknown };

/**
 * What was chosen shows at once, and again what is known when the server refuses it.
 * @returns what to show, and what to call with a choice and the change that it begins
 */
export function useMeanwhile<T>(
  known: T,
): [shown: T, choose: (value: T, change: Promise<Answer>) => Promise<void>] {
  const [chosen, setChosen] = useState<{ value: T; from: T } | null>(null);
  // As soon as the server says something else than when it was chosen, that counts.
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
