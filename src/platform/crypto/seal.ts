/**
 * Sealing: encrypted and authenticated under a key, AES-256-GCM. What is sealed is a random nonce of 12 bytes, the
 * tag of 16 bytes, and the text, in this order.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** `context` is authenticated and not kept: whoever opens it must say the same, so it fits one place alone. */
export function seal(key: Uint8Array, text: Uint8Array, context = ''): Uint8Array<ArrayBuffer> {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
  const hidden = Buffer.concat([cipher.update(text), cipher.final()]);
  return new Uint8Array(Buffer.concat([nonce, cipher.getAuthTag(), hidden]));
}

/** @throws Error when the key or the context is another, or the bytes were changed. */
export function open(key: Uint8Array, sealed: Uint8Array, context = ''): Buffer {
  const bytes = Buffer.from(sealed);
  const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, NONCE_BYTES))
    .setAAD(Buffer.from(context))
    .setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
  return Buffer.concat([decipher.update(text), decipher.final()]);
}
