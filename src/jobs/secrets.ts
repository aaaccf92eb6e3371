/**
 * A job's `secrets`: encrypted while they wait in the database, hidden in what the job prints.
 *
 * They are sealed under a key that is never in the database, so a leaked dump shows nothing; and for one job, so that
 * a row's secrets cannot be moved to another.
 */
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';

export type Secrets = Record<string, string>;

export type SecretBox = {
  seal(jobId: string, secrets: Secrets): Uint8Array<ArrayBuffer>;
  /** @throws Error when the key is another, or the bytes were changed. */
  open(jobId: string, sealed: Uint8Array): Secrets;
};

export function createSecretBox(keys: Keys): SecretBox {
  const key = keys.derive('secrets of jobs');
  const openAny = (jobId: string, sealed: Uint8Array) => {
    try {
      return open(key, sealed, jobId);
    } catch {
      return open(keys.underived, sealed, jobId);
    }
  };
  return {
    seal: (jobId, secrets) => seal(key, Buffer.from(JSON.stringify(secrets)), jobId),
    open: (jobId, sealed) => JSON.parse(openAny(jobId, sealed).toString('utf8')),
  };
}

/** Replaces every secret in a text by `***`; a secret of several lines is hidden line by line. */
export function createMask(secrets: Secrets): (text: string) => string {
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
