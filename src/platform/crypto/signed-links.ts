/**
 * Links that work without a header for a while: `?expires=<epoch seconds>&signature=<HMAC-SHA256>`.
 *
 * What is signed is the name of a thing (`blob:repo_…:<sha>`), not a URL, so neither percent-encoding nor a
 * proxy that rewrites addresses can break a link, and two kinds of things never share a signature.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** Decisions section 3: a `download_url` works for 15 minutes. */
const LIFETIME_S = 15 * 60;
/** Expiry is rounded up to this grain, so that answers which hold a link keep their ETag for that long. */
const GRAIN_S = 60;

export type Signer = {
  /** `url` with the signature of `thing` in its query; valid for 15 to 16 minutes. */
  signUrl(url: string, thing: string): string;
  /** Whether `query` holds an unexpired signature of `thing`. Never throws, whatever the query holds. */
  verify(thing: string, query: Record<string, unknown>): boolean;
};

/** `now` is in milliseconds; a parameter so that tests can let time pass. */
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
      const given = Buffer.from(signature, 'base64url');
      const right = hmac(thing, expires);
      return given.length === right.length && timingSafeEqual(given, right);
    },
  };
}
