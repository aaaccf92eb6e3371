/**
 * Public keys of SSH, as `ssh-keygen` writes them: `<type> <base64> <comment>`.
 *
 * What is taken is what current clients make and no weakness is known of: Ed25519, ECDSA, RSA from 2048 bits, and the
 * first two in a security key. DSA is refused, and so are certificates: what they may do is said by whoever signed them.
 */
import { createPublicKey, hash } from 'node:crypto';
import { invalid } from '../errors.ts';

export type PublicKey = {
  type: string;
  /** `<type> <base64>`, in one form for each key. */
  text: string;
  /** As `ssh-keygen -l` shows it: `SHA256:…`. */
  fingerprint: string;
  comment: string;
};

const MAX_TEXT = 16_384;
const MIN_RSA_BITS = 2_048;
/** Those of OpenSSH; larger ones take seconds to verify. */
const MAX_RSA_BITS = 16_384;
/** Curve → its name in a JWK, and the bytes of a coordinate. */
const CURVES: Record<string, readonly [string, number]> = {
  nistp256: ['P-256', 32],
  nistp384: ['P-384', 48],
  nistp521: ['P-521', 66],
};
const ED25519_BYTES = 32;

/** What follows the type in a key of that type. @throws Error for what is none */
const CHECKS: Record<string, (reader: Reader) => void> = {
  'ssh-ed25519': readEd25519,
  'sk-ssh-ed25519@openssh.com': (reader) => {
    readEd25519(reader);
    reader.string();
  },
  'ecdsa-sha2-nistp256': (reader) => readEcdsa(reader, 'nistp256'),
  'ecdsa-sha2-nistp384': (reader) => readEcdsa(reader, 'nistp384'),
  'ecdsa-sha2-nistp521': (reader) => readEcdsa(reader, 'nistp521'),
  'sk-ecdsa-sha2-nistp256@openssh.com': (reader) => {
    readEcdsa(reader, 'nistp256');
    reader.string();
  },
  'ssh-rsa': readRsa,
};

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
  const check = Object.hasOwn(CHECKS, type) ? CHECKS[type] : undefined;
  if (!check) throw invalid('key', whyNotType(type));
  const bytes = Buffer.from(encoded, 'base64');
  // Node's decoder skips what is no base64.
  if (bytes.length === 0 || bytes.toString('base64') !== encoded)
    throw invalid('key', 'is cut off: what follows the type is no base64');
  const reader = new Reader(bytes);
  try {
    if (reader.string().toString('latin1') !== type) throw new Error('holds another type');
    check(reader);
    reader.end();
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

/** Of a key as it goes over the wire. */
export function fingerprintOf(bytes: Uint8Array): string {
  return `SHA256:${hash('sha256', bytes, 'base64').replace(/=+$/, '')}`;
}

function whyNotType(type: string): string {
  const taken = 'taken are Ed25519, ECDSA and RSA keys, such as ssh-keygen -t ed25519 makes';
  if (type === 'ssh-dss') return `DSA keys are too weak; ${taken}`;
  if (type.includes('-cert-')) return `is a certificate; give the key itself`;
  return `must begin with the type of a key; ${taken}`;
}

function readEd25519(reader: Reader): void {
  if (reader.string().length !== ED25519_BYTES)
    throw new Error(`is not ${ED25519_BYTES} bytes long`);
}

function readEcdsa(reader: Reader, curve: string): void {
  if (reader.string().toString('latin1') !== curve) throw new Error('is of another curve');
  const point = reader.string();
  const [crv = '', size = 0] = CURVES[curve] ?? [];
  if (point.length !== 1 + 2 * size || point[0] !== 4)
    throw new Error('holds no point of the curve');
  const [x, y] = [point.subarray(1, 1 + size), point.subarray(1 + size)];
  const jwk = { kty: 'EC', crv, x: x.toString('base64url'), y: y.toString('base64url') };
  try {
    createPublicKey({ key: jwk, format: 'jwk' });
  } catch {
    throw new Error('holds no point of the curve');
  }
}

function readRsa(reader: Reader): void {
  const exponent = reader.integer();
  const bits = bitsOf(reader.integer());
  // Clients make 65537; 1 would let anybody sign.
  if (bitsOf(exponent) < 2 || bitsOf(exponent) > 64 || (exponent.at(-1) ?? 0) % 2 === 0)
    throw new Error('has an exponent that no client makes');
  if (bits < MIN_RSA_BITS) throw new Error(`has ${bits} bits, and must have ${MIN_RSA_BITS}`);
  if (bits > MAX_RSA_BITS) throw new Error(`has ${bits} bits, and may have ${MAX_RSA_BITS}`);
}

function bitsOf(integer: Buffer): number {
  const [first = 0] = integer;
  return integer.length * 8 - (first === 0 ? 8 : Math.clz32(first) - 24);
}

/** The fields of RFC 4251 section 5. */
class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  string(): Buffer {
    const begin = this.#at + 4;
    if (begin > this.#bytes.length) throw new Error('is cut off');
    const end = begin + this.#bytes.readUInt32BE(this.#at);
    if (end > this.#bytes.length) throw new Error('is cut off');
    this.#at = end;
    return this.#bytes.subarray(begin, end);
  }

  /** Without the zero that keeps it positive. */
  integer(): Buffer {
    const bytes = this.string();
    const [first = 0, second = 0] = bytes;
    const isPadded = first === 0 && second < 128;
    if (bytes.length === 0 || first >= 128 || isPadded)
      throw new Error('holds a number in a wrong form');
    return first === 0 ? bytes.subarray(1) : bytes;
  }

  end(): void {
    if (this.#at < this.#bytes.length) throw new Error('is longer than it may be');
  }
}
