/**
 * The secrets of credentials. A token is `loam_pat_`, 40 base62 characters and 6 of their CRC32, so that
 * scanners find one in a text and can tell it from random text; only its SHA-256 is kept (decisions section 6).
 */
import { hash, randomInt, timingSafeEqual } from 'node:crypto';
import { crc32 } from 'node:zlib';

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
export const TOKEN_PREFIX = 'loam_pat_';
/** Of an API key: `$` and, in Basic, `:` divide it from the secret. */
export const KEY_NAME = /^[A-Za-z0-9._-]{1,100}$/;

/** 40 base62 characters, 238 bits. */
export function randomSecret(): string {
  return Array.from({ length: 40 }, () => ALPHABET[randomInt(ALPHABET.length)]).join('');
}

export function newToken(): string {
  const secret = randomSecret();
  return TOKEN_PREFIX + secret + checksum(secret);
}

export function hashSecret(secret: string): Uint8Array<ArrayBuffer> {
  return new Uint8Array(hash('sha256', secret, 'buffer'));
}

/** Whether `secret` hashes to `hash`, in constant time. */
export function matches(secret: string, hash: Uint8Array): boolean {
  const given = hashSecret(secret);
  return given.length === hash.length && timingSafeEqual(given, hash);
}

function checksum(text: string): string {
  let value = crc32(text);
  let digits = '';
  for (let i = 0; i < 6; i++) {
    digits = ALPHABET[value % 62] + digits;
    value = Math.floor(value / 62);
  }
  return digits;
}
