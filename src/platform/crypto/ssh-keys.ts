/**
 * Public keys of SSH as they go over the wire (RFC 4253 section 6.6, RFC 5656, RFC 8709, and OpenSSH's PROTOCOL.u2f for
 * those in a security key), and what is signed with them.
 *
 * What is taken is what current clients make and no weakness is known of: Ed25519, ECDSA, RSA from 2048 bits. The process
 * that speaks SSH uses this file, too, so it imports nothing but Node.
 */
import { createPublicKey, hash, type JsonWebKeyInput, type KeyObject, verify } from 'node:crypto';

/** A key by which clients recognize this server, as `ssh-keyscan` shows it. */
export type PublicHostKey = {
  /** `ssh-ed25519` or `ecdsa-sha2-nistp256`. */
  type: string;
  /** `<type> <base64>`, the form of `known_hosts` after the host name. */
  publicKey: string;
  /** `SHA256:…` */
  fingerprint: string;
};

export type WireKey = {
  type: string;
  key: KeyObject;
  /** Of a key in a security key: for whom that signs. */
  application?: Buffer;
};

const MIN_RSA_BITS = 2_048;
/** Those of OpenSSH; larger ones take seconds to verify. */
const MAX_RSA_BITS = 16_384;
const ED25519_BYTES = 32;
/** Curve → its name in a JWK, the bytes of a coordinate, and the hash that goes with it. */
const CURVES: Record<string, readonly [string, number, string]> = {
  nistp256: ['P-256', 32, 'sha256'],
  nistp384: ['P-384', 48, 'sha384'],
  nistp521: ['P-521', 66, 'sha512'],
};

/** What follows the type in a key of that type. @throws Error for what is none */
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

/** @throws Error whose message follows "it", for what is no key of a type that is taken */
export function readWireKey(bytes: Buffer): WireKey {
  const reader = new Reader(bytes);
  const type = reader.string().toString('latin1');
  const read = Object.hasOwn(READERS, type) ? READERS[type] : undefined;
  if (!read) throw new Error('is of a type that is not taken');
  const key = read(reader);
  reader.end();
  return { type, ...key };
}

export type Signed = {
  /** As of RFC 4252 section 7. */
  data: Buffer;
  /** Without its type; of ECDSA as ASN.1, but for a key in a security key. */
  signature: Buffer;
  /** Of RSA: `sha256` or `sha512`. SHA-1 is refused. */
  hash?: string;
};

/** Whether the holder of the key has signed. @throws Error for what is no signature */
export function isSignedBy(
  { type, key, application }: WireKey,
  { data, signature, hash: rsaHash }: Signed,
): boolean {
  if (application) return isSignedInSecurityKey({ type, key, application }, data, signature);
  if (type === 'ssh-rsa')
    return (rsaHash === 'sha256' || rsaHash === 'sha512') && verify(rsaHash, data, key, signature);
  return verify(curveHash(type), data, key, signature);
}

/** Null, as Node has it, for Ed25519. */
function curveHash(type: string): string | null {
  return CURVES[type.replace('ecdsa-sha2-', '')]?.[2] ?? null;
}

const TOUCHED = 1;

/** It signs what it is asked to together with a flag that says whether somebody has touched it, and a counter. */
function isSignedInSecurityKey(
  { type, key, application }: Required<WireKey>,
  data: Buffer,
  signature: Buffer,
): boolean {
  const split = signature.length - 5;
  if (split < 0 || ((signature[split] ?? 0) & TOUCHED) === 0) return false;
  const flagsAndCounter = signature.subarray(split);
  const digest = (bytes: Buffer) => hash('sha256', bytes, 'buffer');
  const signed = Buffer.concat([digest(application), flagsAndCounter, digest(data)]);
  const own = signature.subarray(0, split);
  if (type === 'sk-ssh-ed25519@openssh.com') return verify(null, signed, key, own);
  const reader = new Reader(own);
  const rs = [reader.integer(), reader.integer()];
  reader.end();
  const [, size = 0] = CURVES.nistp256 ?? [];
  if (rs.some((number) => number.length > size)) return false;
  const padded = rs.map((number) => Buffer.concat([Buffer.alloc(size - number.length), number]));
  return verify('sha256', signed, { key, dsaEncoding: 'ieee-p1363' }, Buffer.concat(padded));
}

function readEd25519(reader: Reader): KeyObject {
  const x = reader.string();
  if (x.length !== ED25519_BYTES) throw new Error(`is not ${ED25519_BYTES} bytes long`);
  return keyOf({ kty: 'OKP', crv: 'Ed25519', x: x.toString('base64url') });
}

function readEcdsa(reader: Reader, curve: string): KeyObject {
  if (reader.string().toString('latin1') !== curve) throw new Error('is of another curve');
  const point = reader.string();
  const [crv = '', size = 0] = CURVES[curve] ?? [];
  if (point.length !== 1 + 2 * size || point[0] !== 4) throw new Error(NO_POINT);
  const [x, y] = [point.subarray(1, 1 + size), point.subarray(1 + size)];
  try {
    return keyOf({ kty: 'EC', crv, x: x.toString('base64url'), y: y.toString('base64url') });
  } catch {
    throw new Error(NO_POINT);
  }
}
const NO_POINT = 'holds no point of the curve';

function readRsa(reader: Reader): KeyObject {
  const e = reader.integer();
  const n = reader.integer();
  const bits = bitsOf(n);
  // Clients make 65537; with 1 anybody could sign.
  if (bitsOf(e) < 2 || bitsOf(e) > 64 || (e.at(-1) ?? 0) % 2 === 0)
    throw new Error('has an exponent that no client makes');
  if (bits < MIN_RSA_BITS) throw new Error(`has ${bits} bits, and must have ${MIN_RSA_BITS}`);
  if (bits > MAX_RSA_BITS) throw new Error(`has ${bits} bits, and may have ${MAX_RSA_BITS}`);
  return keyOf({ kty: 'RSA', n: n.toString('base64url'), e: e.toString('base64url') });
}

function keyOf(key: JsonWebKeyInput['key']): KeyObject {
  return createPublicKey({ key, format: 'jwk' });
}

function bitsOf(integer: Buffer): number {
  const [first = 0] = integer;
  return integer.length * 8 - (Math.clz32(first) - 24);
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
    if (bytes.length === 0 || first >= 128 || (first === 0 && second < 128))
      throw new Error('holds a number in a wrong form');
    return first === 0 ? bytes.subarray(1) : bytes;
  }

  end(): void {
    if (this.#at < this.#bytes.length) throw new Error('is longer than it may be');
  }
}
