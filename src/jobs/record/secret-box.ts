/** Encrypts the `secrets` of a job, and the stored secrets that an attempt got. `logs/mask.ts` masks them in the log. */
import { createSealer, type Keys } from '../../platform/crypto/keys.ts';

export type Secrets = Record<string, string>;

export type SecretBox = {
  /** @param id of the job, or of the attempt that got the values */
  seal(id: string, values: object): Uint8Array<ArrayBuffer>;
  /** @throws Error if the bytes were encrypted with another key or were changed */
  open<Values = Secrets>(id: string, sealed: Uint8Array): Values;
};

export function createSecretBox(keys: Keys): SecretBox {
  const sealer = createSealer(keys, 'secrets of jobs');
  return {
    seal: (id, values) => sealer.seal(id, JSON.stringify(values)),
    open: (id, sealed) => JSON.parse(sealer.open(id, sealed)),
  };
}
