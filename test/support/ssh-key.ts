/** Public SSH keys. */
import { generateKeyPairSync } from 'node:crypto';

/** A string field of RFC 4251 section 5. */
export function field(bytes: Uint8Array | string): Buffer {
  const content = Buffer.from(bytes as string);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(content.length);
  return Buffer.concat([length, content]);
}

/** As a line of a `.pub` file. */
export function line(type: string, fields: (Uint8Array | string)[], comment = 'test'): string {
  const bytes = Buffer.concat([type, ...fields].map(field));
  return `${type} ${bytes.toString('base64')} ${comment}`;
}

/** A public key whose private key is discarded. */
export function newPublicKey(comment?: string): string {
  const { x } = generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' });
  return line('ssh-ed25519', [Buffer.from(x ?? '', 'base64url')], comment);
}
