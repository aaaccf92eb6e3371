/** Public keys of SSH, as `ssh-keygen` writes them: `<type> <base64> <comment>`. */

import { invalid } from '../base/errors.ts';
import { fingerprintOf, isKeyType, readWireKey } from '../platform/crypto/ssh-keys.ts';

export type PublicKey = {
  type: string;
  /** `<type> <base64>`, in one form for each key. */
  text: string;
  /** As `ssh-keygen -l` shows it: `SHA256:…`. */
  fingerprint: string;
  comment: string;
};

const MAX_TEXT = 16_384;

/** @throws AppError 400 naming `key` */
export function parsePublicKey(given: string): PublicKey {
  const text = given.trim();
  if (text.includes('PRIVATE KEY'))
    throw invalid(
      'key',
      'this is a private key, which nobody else may see; replace it, and give the public one (the file that ends in .pub)',
    );
  if (text.length > MAX_TEXT || /[\r\n\0]/.test(text))
    throw invalid('key', 'must be one line: the content of a file that ends in .pub');
  const [type = '', encoded = '', ...comment] = text.split(/[ \t]+/);
  if (!isKeyType(type)) throw invalid('key', whyNotType(type));
  const bytes = Buffer.from(encoded, 'base64');
  // Node's decoder skips what is no base64.
  if (bytes.length === 0 || bytes.toString('base64') !== encoded)
    throw invalid('key', 'is cut off: what follows the type is no base64');
  try {
    if (readWireKey(bytes).type !== type) throw new Error('holds another type');
  } catch (error) {
    const { message } = error as Error;
    throw invalid('key', `is no key of the type ${type}: it ${message}`);
  }
  return {
    type,
    text: `${type} ${encoded}`,
    fingerprint: fingerprintOf(bytes),
    comment: comment.join(' '),
  };
}

function whyNotType(type: string): string {
  const taken = 'taken are Ed25519, ECDSA and RSA keys, such as ssh-keygen -t ed25519 makes';
  if (type === 'ssh-dss') return `DSA keys are too weak; ${taken}`;
  // What a certificate may do is said by whoever signed it.
  if (type.includes('-cert-')) return 'is a certificate; give the key itself';
  return `must begin with the type of a key; ${taken}`;
}
