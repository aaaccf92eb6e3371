/**
 * Encrypts the `secrets` of a job, and the stored secrets that an attempt got. `logs/mask.ts` masks them in the log.
 *
 * The key is not stored in the database, so a leaked dump reveals no secrets. The encryption includes the id of the job or
 * attempt, so that secrets cannot be copied to the row of another one.
 */
import type { Keys } from '../../platform/crypto/keys.ts';
import { open, seal } from '../../platform/crypto/keys.ts';

export type Secrets = Record<string, string>;

export type SecretBox = {
  /** @param id of the job, or of the attempt that got the values */
  seal(id: string, values: object): Uint8Array<ArrayBuffer>;
  /** @throws Error if the bytes were encrypted with another key or were changed */
  open<Values = Secrets>(id: string, sealed: Uint8Array): Values;
};

export function createSecretBox(keys: Keys): SecretBox {
  const key = keys.derive('secrets of jobs');
  return {
    seal: (id, values) => seal(key, Buffer.from(JSON.stringify(values)), id),
    open: (id, sealed) => JSON.parse(open(key, sealed, id).toString('utf8')),
  };
}
