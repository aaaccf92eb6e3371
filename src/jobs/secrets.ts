/**
 * The `secrets` of a job, which are encrypted in the database and masked in the log.
 *
 * The key is not stored in the database, so a leaked dump reveals no secrets. The encryption includes the job's id, so that
 * secrets cannot be copied to the row of another job.
 */
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';

export type Secrets = Record<string, string>;

export type SecretBox = {
  seal(jobId: string, secrets: Secrets): Uint8Array<ArrayBuffer>;
  /** @throws Error if the bytes were encrypted with another key or were changed */
  open(jobId: string, sealed: Uint8Array): Secrets;
};

export function createSecretBox(keys: Keys): SecretBox {
  const key = keys.derive('secrets of jobs');
  const openWithEitherKey = (jobId: string, sealed: Uint8Array) => {
    try {
      return open(key, sealed, jobId);
    } catch {
      return open(keys.underived, sealed, jobId);
    }
  };
  return {
    seal: (jobId, secrets) => seal(key, Buffer.from(JSON.stringify(secrets)), jobId),
    open: (jobId, sealed) => JSON.parse(openWithEitherKey(jobId, sealed).toString('utf8')),
  };
}

/** Returns a function that replaces every secret in a text by `***`. Each line of a multi-line secret is masked. */
export function createMask(secrets: Secrets): (text: string) => string {
  const parts = new Set(
    Object.values(secrets).flatMap((value) => [value, ...value.split(/\r?\n/)]),
  );
  parts.delete('');
  if (parts.size === 0) return (text) => text;
  // Longest first: if one secret is a prefix of another, the rest of the longer one must not stay visible.
  const pattern = [...parts]
    .sort((a, b) => b.length - a.length)
    .map((part) => RegExp.escape(part))
    .join('|');
  const all = new RegExp(pattern, 'g');
  return (text) => text.replace(all, '***');
}
