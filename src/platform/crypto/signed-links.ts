/**
 * Signed URLs that work without a header for a limited time: `?expires=<epoch seconds>&signature=<HMAC-SHA256>`.
 *
 * The signature covers the name of an object (`blob:repo_…:<sha>`), not the URL. So percent-encoding and proxies that
 * rewrite addresses do not break a link, and two kinds of objects never share a signature.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** A `download_url` is valid for 15 minutes. */
const LIFETIME_S = 15 * 60;
/** Expiry times are rounded up to this interval, so that responses with a link keep their ETag for that long. */
const GRAIN_S = 60;

export type Signer = {
  /** Returns `url` with a signature of `thing` in its query, valid for 15 to 16 minutes. */
  signUrl(url: string, thing: string): string;
  /** Whether `query` has an unexpired signature of `thing`. Never throws, whatever `query` contains. */
  verify(thing: string, query: Record<string, unknown>): boolean;
};

/** `now` is in milliseconds; tests pass their own clock. */
export function createSigner(key: Uint8Array, now: () => number = Date.now): Signer {
  const hmac = (thing: string, expires: string) =>
    createHmac('sha256', key).update(`${expires}\n${thing}`).digest();
  return {
    signUrl(url, thing) {
      const expires = `${Math.ceil((now() / 1000 + LIFETIME_S) / GRAIN_S) * GRAIN_S}`;
      const signature = hmac(thing, expires).toString('base64url');
      return `${url}${url.includes('?') ? '&' : '?'}expires=${expires}&signature=${signature}`;
    },
    verify(thing, { expires, signature }) {
      if (typeof expires !== 'string' || typeof signature !== 'string') return false;
      if (!/^\d{1,12}$/.test(expires) || Number(expires) * 1000 <= now()) return false;
      const actual = Buffer.from(signature, 'base64url');
      const expected = hmac(thing, expires);
      return actual.length === expected.length && timingSafeEqual(actual, expected);
    },
  };
}
