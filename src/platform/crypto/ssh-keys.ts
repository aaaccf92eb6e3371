/**
 * SSH public keys in wire format (RFC 4253 section 6.6, RFC 5656, RFC 8709, and OpenSSH's PROTOCOL.u2f for security keys),
 * and verification of their signatures.
 *
 * Accepts only key types that current clients generate and that have no known weakness: Ed25519, ECDSA, and RSA with at least
 * 2048 bits. The SSH process imports this file, so it imports only Node modules.
 */
import { createPublicKey, hash, type JsonWebKeyInput, type KeyObject, verify } from 'node:crypto';

/** A host key of this server, as `ssh-keyscan` shows it. */
export type PublicHostKey = {
  /** `ssh-ed25519` or `ecdsa-sha2-nistp256`. */
  type: string;
  /** `<type> <base64>`, the form of `known_hosts` after the host name. */
  publicKey: string;
  /** `SHA256:…` */
  fingerprint: string;
};

type WireKey = {
  type: string;
  key: KeyObject;
  /** Set for a security key: the application that the key signs for. */
  application?: Buffer;
};

const MIN_RSA_BITS = 2_048;
/** The limit of OpenSSH; larger keys take seconds to verify. */
const MAX_RSA_BITS = 16_384;
const ED25519_BYTES = 32;
/** Curve → its name in a JWK, the bytes of a coordinate, and the hash of its signatures. */
const CURVES: Record<string, readonly [string, number, string]> = {
  nistp256: ['P-256', 32, 'sha256'],
  nistp384: ['P-384', 48, 'sha384'],
  nistp521: ['P-521', 66, 'sha512'],
};

/** Key type → function that reads the fields after the type. @throws Error for an invalid key */
const READERS: Record<string, (reader: Reader) => Omit<WireKey, 'type'>> = {
  'ssh-ed25519': (reader) => ({ key: readEd25519(reader) }),
  'ecdsa-sha2-nistp256': (reader) => ({ key: readEcdsa(reader, 'nistp256') }),
  'ecdsa-sha2-nistp384': (reader) => ({ key: readEcdsa(reader, 'nistp384') }),
  'ecdsa-sha2-nistp521': (reader) => ({ key: readEcdsa(reader, 'nistp521') }),
  'sk-ssh-ed25519@openssh.com': (reader) => ({
    key: readEd25519(reader),
    application: reader.string(),
  }),
  'sk-ecdsa-sha2-nistp256@openssh.com': (reader) => ({
    key: readEcdsa(reader, 'nistp256'),
    application: reader.string(),
  }),
  'ssh-rsa': (reader) => ({ key: readRsa(reader) }),
};

export function isKeyType(type: string): boolean {
  return Object.hasOwn(READERS, type);
}

/** `SHA256:…`, as `ssh-keygen -l` shows it. */
export function fingerprintOf(bytes: Uint8Array): string {
  return `SHA256:${hash('sha256', bytes, 'base64').replace(/=+$/, '')}`;
}

/** @throws Error for an invalid or unsupported key; its message continues a sentence whose subject is the key */
export function readWireKey(bytes: Buffer): WireKey {
  const reader = new Reader(bytes);
  const type = reader.string().toString('latin1');
  const read = Object.hasOwn(READERS, type) ? READERS[type] : undefined;
  if (!read) throw new Error('has an unsupported type');
  const key = read(reader);
  reader.end();
  return { type, ...key };
}

type Signed = {
  /** The signed data of RFC 4252 section 7. */
  data: Buffer;
  /** Without the type. ECDSA signatures are in ASN.1, except those of security keys. */
  signature: Buffer;
  /** For RSA: `sha256` or `sha512`. SHA-1 is refused. */
  hash?: string;
};

/** Whether the signature is valid for the key. @throws Error for a malformed signature */
export function isSignedBy(
  { type, key, application }: WireKey,
  { data, signature, hash: rsaHash }: Signed,
): boolean {
  if (application) return isSignedBySecurityKey({ type, key, application }, data, signature);
  if (type === 'ssh-rsa')
    return (rsaHash === 'sha256' || rsaHash === 'sha512') && verify(rsaHash, data, key, signature);
  return verify(curveHash(type), data, key, signature);
}

/** Null for Ed25519, as Node's `verify` expects. */
function curveHash(type: string): string | null {
  return CURVES[type.replace('ecdsa-sha2-', '')]?.[2] ?? null;
}

const USER_PRESENT = 1;

/** A security key signs the data together with a flag for the user's touch and a counter. */
function isSignedBySecurityKey(
  { type, key, application }: Required<WireKey>,
  data: Buffer,
  signature: Buffer,
): boolean {
  const split = signature.length - 5;
  if (split < 0 || ((signature[split] ?? 0) & USER_PRESENT) === 0) return false;
  const flagsAndCounter = signature.subarray(split);
  const digest = (bytes: Buffer) => hash('sha256', bytes, 'buffer');
  const signed = Buffer.concat([digest(application), flagsAndCounter, digest(data)]);
  const rawSignature = signature.subarray(0, split);
  if (type === 'sk-ssh-ed25519@openssh.com') return verify(null, signed, key, rawSignature);
  const reader = new Reader(rawSignature);
  // The numbers r and s of the signature.
  const numbers = [reader.integer(), reader.integer()];
  reader.end();
  const [, size = 0] = CURVES.nistp256 ?? [];
  if (numbers.some((number) => number.length > size)) return false;
  const padded = numbers.map((number) =>
    Buffer.concat([Buffer.alloc(size - number.length), number]),
  );
  return verify('sha256', signed, { key, dsaEncoding: 'ieee-p1363' }, Buffer.concat(padded));
}

function readEd25519(reader: Reader): KeyObject {
  const x = reader.string();
  if (x.length !== ED25519_BYTES) throw new Error(`is not ${ED25519_BYTES} bytes long`);
  return importJwk({ kty: 'OKP', crv: 'Ed25519', x: x.toString('base64url') });
}

function readEcdsa(reader: Reader, curve: string): KeyObject {
  if (reader.string().toString('latin1') !== curve) throw new Error('is of another curve');
  const point = reader.string();
  const [crv = '', size = 0] = CURVES[curve] ?? [];
  if (point.length !== 1 + 2 * size || point[0] !== 4) throw new Error(NOT_ON_CURVE);
  const [x, y] = [point.subarray(1, 1 + size), point.subarray(1 + size)];
  try {
    return importJwk({ kty: 'EC', crv, x: x.toString('base64url'), y: y.toString('base64url') });
  } catch {
    throw new Error(NOT_ON_CURVE);
  }
}
const NOT_ON_CURVE = 'holds no point of the curve';

function readRsa(reader: Reader): KeyObject {
  const e = reader.integer();
  const n = reader.integer();
  const bits = bitLength(n);
  // Clients use 65537. With the exponent 1, anyone could sign.
  if (bitLength(e) < 2 || bitLength(e) > 64 || (e.at(-1) ?? 0) % 2 === 0)
    throw new Error('has an unsafe exponent');
  if (bits < MIN_RSA_BITS)
    throw new Error(`has ${bits} bits, but at least ${MIN_RSA_BITS} are required`);
  if (bits > MAX_RSA_BITS)
    throw new Error(`has ${bits} bits, but at most ${MAX_RSA_BITS} are allowed`);
  return importJwk({ kty: 'RSA', n: n.toString('base64url'), e: e.toString('base64url') });
}

function importJwk(key: JsonWebKeyInput['key']): KeyObject {
  return createPublicKey({ key, format: 'jwk' });
}

function bitLength(integer: Buffer): number {
  const [first = 0] = integer;
  return integer.length * 8 - (Math.clz32(first) - 24);
}

/** Reads the data types of RFC 4251 section 5. */
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

  /** Without the leading zero of a positive number. */
  integer(): Buffer {
    const bytes = this.string();
    const [first = 0, second = 0] = bytes;
    if (bytes.length === 0 || first >= 128 || (first === 0 && second < 128))
      throw new Error('contains a number in a wrong form');
    return first === 0 ? bytes.subarray(1) : bytes;
  }

  end(): void {
    if (this.#at < this.#bytes.length) throw new Error('has trailing bytes');
  }
}
