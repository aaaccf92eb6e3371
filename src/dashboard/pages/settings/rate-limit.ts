/** How many requests this session may make, as each answer of the server says it in its headers. */
import { useEffect, useState } from 'react';

export type RateLimit = { perMinute: number; remaining: number };

/** The largest number there is: nothing is limited. */
const UNLIMITED = 1_000_000;

/** @returns null before it is known; `'none'` without a limit */
export function useRateLimit(): RateLimit | 'none' | null {
  const [limit, setLimit] = useState<RateLimit | 'none' | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    // The client of GraphQL does not show headers of answers.
    fetch('/graphql', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Accept: 'application/json' },
      body: JSON.stringify({ query: '{ __typename }' }),
      signal: stop.signal,
    })
      .then(({ headers }) => {
        const perMinute = Number(headers.get('x-ratelimit-limit') ?? UNLIMITED);
        const remaining = Number(headers.get('x-ratelimit-remaining'));
        setLimit(perMinute >= UNLIMITED ? 'none' : { perMinute, remaining });
      })
      // It stays unknown, and what else the page asks tells that the server is away.
      .catch(() => {});
    return () => stop.abort();
  }, []);
  return limit;
}
