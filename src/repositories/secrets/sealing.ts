/**
 * Encrypts the values of stored secrets. The key is never in the database, so a leaked dump reveals no secrets. A ciphertext
 * is bound to the id of its secret, so that it cannot be copied to the row of another secret.
 */
import { type Keys, open, seal } from '../../platform/crypto/keys.ts';

export type SecretStore = {
  seal(id: string, value: string): Uint8Array<ArrayBuffer>;
  /** @throws Error if the value was encrypted with another key, or the bytes were changed */
  open(id: string, sealed: Uint8Array): string;
};

export function createSecretStore(keys: Keys): SecretStore {
  const key = keys.derive('stored secrets');
  return {
    seal: (id, value) => seal(key, Buffer.from(value), id),
    open: (id, sealed) => open(key, sealed, id).toString(),
  };
}
