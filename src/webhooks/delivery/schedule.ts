/** Retry schedule of deliveries. */

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** Milliseconds between the previous attempt and each attempt: ten attempts in about three days. */
export const DELAYS: readonly number[] = [
  0,
  5 * SECOND,
  5 * MINUTE,
  30 * MINUTE,
  2 * HOUR,
  5 * HOUR,
  10 * HOUR,
  14 * HOUR,
  20 * HOUR,
  24 * HOUR,
];

/** Maximum random part that is added to a delay, so that deliveries that failed together are not retried together. */
const JITTER = 0.2;
/** Upper limit of `Retry-After`, so that no endpoint postpones its deliveries forever. */
const MAX_RETRY_AFTER = 24 * HOUR;

/**
 * Milliseconds until the next attempt; null after the last one.
 * @param attempts number of attempts so far
 * @param retryAfter milliseconds of the response's `Retry-After`; it makes a delay longer, never shorter
 * @param random returns a number from 0 up to 1
 */
export function nextDelay(
  attempts: number,
  retryAfter: number | null,
  random: () => number,
): number | null {
  const delay = DELAYS[attempts];
  if (delay === undefined) return null;
  const least = Math.min(retryAfter ?? 0, MAX_RETRY_AFTER);
  return Math.round(Math.max(delay, least) * (1 + JITTER * random()));
}

/** Parses `Retry-After`, a number of seconds or a date (RFC 9110, 10.2.3), into milliseconds from `now`; null if invalid. */
export function readRetryAfter(
  header: string | string[] | undefined,
  now: number = Date.now(),
): number | null {
  const text = [header].flat()[0]?.trim() ?? '';
  if (/^\d{1,15}$/.test(text)) return Number(text) * SECOND;
  // Only the three date formats of HTTP; Date.parse would accept more.
  if (!/^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,? /.test(text)) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, at - now);
}
