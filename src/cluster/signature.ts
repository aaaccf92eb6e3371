/**
 * Servers authenticate each other's requests by an HMAC under a key that only they have. A signature is valid for the signed
 * parts of one request, for five minutes. An attacker who can record signatures on the network between servers can also read
 * the responses, so that network must be trusted, or `LOAM_INTERNAL_URL` must use https.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** In lower case, as Node presents header names. */
export const SIGNATURE_HEADER = 'loam-signature';

/** Allows for differences between the servers' clocks. */
const LIFETIME_MS = 5 * 60_000;

/** `parts` are the signed values, in an order that is fixed for each kind of request. */
export function sign(key: Uint8Array, parts: readonly string[], now = Date.now()): string {
  return `${now}.${computeMac(key, [String(now), ...parts]).toString('base64url')}`;
}

/** Never throws, whatever the header contains. */
export function isSigned(
  key: Uint8Array,
  header: string | string[] | undefined,
  parts: readonly string[],
  now = Date.now(),
): boolean {
  const [, time, given] = /^(\d{1,16})\.([\w-]{43})$/.exec(String(header ?? '')) ?? [];
  if (!time || !given || Math.abs(now - Number(time)) > LIFETIME_MS) return false;
  return timingSafeEqual(Buffer.from(given, 'base64url'), computeMac(key, [time, ...parts]));
}

function computeMac(key: Uint8Array, parts: readonly string[]): Buffer {
  return createHmac('sha256', key).update(JSON.stringify(parts)).digest();
}
