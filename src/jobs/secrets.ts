/**
 * A job's `secrets`: encrypted while they wait in the database, hidden in what the job prints.
 *
 * AES-256-GCM under a key that lies in the data folder and never in the database, so a leaked dump shows
 * nothing. The job's id is authenticated with it: a row's secrets cannot be moved to another job.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { keyFile } from '../crypto/key-file.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

export type Secrets = Record<string, string>;

export type SecretBox = {
  seal(jobId: string, secrets: Secrets): Uint8Array<ArrayBuffer>;
  /** @throws Error when the key is another, or the bytes were changed. */
  open(jobId: string, sealed: Uint8Array): Secrets;
};

/** Reads the key from the data folder, or makes it on the first start. */
export async function openSecretBox(dataDir: string): Promise<SecretBox> {
  const key = await keyFile(join(dataDir, 'secrets-key'));
  return {
    seal(jobId, secrets) {
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(jobId));
      const text = Buffer.concat([cipher.update(JSON.stringify(secrets)), cipher.final()]);
      return new Uint8Array(Buffer.concat([nonce, cipher.getAuthTag(), text]));
    },
    open(jobId, sealed) {
      const bytes = Buffer.from(sealed);
      const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
      const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, NONCE_BYTES))
        .setAAD(Buffer.from(jobId))
        .setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
      return JSON.parse(Buffer.concat([decipher.update(text), decipher.final()]).toString('utf8'));
    },
  };
}

/** Replaces every secret in a text by `***`; a secret of several lines is hidden line by line. */
export function masker(secrets: Secrets): (text: string) => string {
  const parts = new Set(
    Object.values(secrets).flatMap((value) => [value, ...value.split(/\r?\n/)]),
  );
  parts.delete('');
  if (parts.size === 0) return (text) => text;
  // The longest first, so that a secret that begins like another is not left with its tail showing.
  const pattern = [...parts]
    .sort((a, b) => b.length - a.length)
    .map((part) => RegExp.escape(part))
    .join('|');
  const all = new RegExp(pattern, 'g');
  return (text) => text.replace(all, '***');
}
