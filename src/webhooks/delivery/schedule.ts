/** When a delivery is tried again. */

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** Between the attempt before and this one, in milliseconds (decisions, section 5): ten attempts in three days. */
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

/** Up to so much of a delay is added at random, so that what failed together does not come back together. */
const JITTER = 0.2;
/** What an endpoint can ask for at most, so that none keeps its deliveries for ever. */
const MAX_RETRY_AFTER = 24 * HOUR;

/**
 * Milliseconds until the next attempt; null when there is none.
 * @param attempts how many there were
 * @param retryAfter milliseconds for which the endpoint asked to be left alone; it makes a delay longer, never shorter
 * @param random from 0 up to 1
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

/**
 * The header `Retry-After`, which is a number of seconds or a date (RFC 9110, 10.2.3), in milliseconds from `now`;
 * null for anything else.
 */
export function readRetryAfter(
  header: string | string[] | undefined,
  now: number = Date.now(),
): number | null {
  const text = [header].flat()[0]?.trim() ?? '';
  if (/^\d{1,15}$/.test(text)) return Number(text) * SECOND;
  // The one form that is sent today, and the two of before; nothing else that Date.parse would take.
  if (!/^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,? /.test(text)) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, at - now);
}
