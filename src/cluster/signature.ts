/**
 * How servers recognize each other's requests: by a signature under a key that only they have. It holds for one
 * request and for five minutes; whoever could record it on the network between them could read the answers as well,
 * so that network is to be trusted, or `LOAM_INTERNAL_URL` to begin with https.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** The header, in lower case as Node has them. */
export const SIGNATURE = 'loam-signature';

/** Clocks of servers differ. */
const LIFETIME_MS = 5 * 60_000;

/** `parts` are what is signed, in an order of their own for each kind of request. */
export function sign(key: Uint8Array, parts: readonly string[], now = Date.now()): string {
  return `${now}.${mac(key, [String(now), ...parts]).toString('base64url')}`;
}

/** Never throws, whatever the header holds. */
export function isSigned(
  key: Uint8Array,
  header: string | string[] | undefined,
  parts: readonly string[],
  now = Date.now(),
): boolean {
  const [, time, given] = /^(\d{1,16})\.([\w-]{43})$/.exec(String(header ?? '')) ?? [];
  if (!time || !given || Math.abs(now - Number(time)) > LIFETIME_MS) return false;
  return timingSafeEqual(Buffer.from(given, 'base64url'), mac(key, [time, ...parts]));
}

function mac(key: Uint8Array, parts: readonly string[]): Buffer {
  return createHmac('sha256', key).update(JSON.stringify(parts)).digest();
}
