/**
 * Writes tar headers in the GNU format, where a name is bytes, as in the file system. The POSIX formats need UTF-8 for names
 * that are long or not ASCII, and the library tar-stream writes names only as UTF-8. All common tools read the GNU format.
 */
import { createHash } from 'node:crypto';

const BLOCK = 512;
/** The longest name in a header. A longer name is written as an entry before it. */
const NAME_BYTES = 100;
const LONG_NAME = Buffer.from('././@LongLink');
const NO_NAME = Buffer.alloc(0);
/** Eleven octal digits. GNU writes larger numbers in base 256. */
const MAX_OCTAL = 8 ** 11 - 1;

/** Type letters of the format. */
const TYPES = {
  file: '0',
  link: '2',
  directory: '5',
  other: '6',
  longTarget: 'K',
  longName: 'L',
} as const;

export type TarEntry = {
  /** Relative, with `/` as separator. */
  name: Uint8Array;
  /** Bytes of the contents that follow the header. */
  size: number;
  mode: number;
  mtime?: Date;
  /** `other`: a device, FIFO or socket. Only `file` has contents. */
  type?: 'file' | 'link' | 'directory' | 'other';
  /** Target of a link. */
  target?: Uint8Array;
};

/** The bytes before the contents of an entry. */
export function tarHeader({
  name,
  size,
  mode,
  mtime,
  type = 'file',
  target = NO_NAME,
}: TarEntry): Buffer {
  const header = headerBlock(name, size, mode, mtime, TYPES[type], target);
  if (name.length <= NAME_BYTES && target.length <= NAME_BYTES) return header;
  return Buffer.concat([
    ...(target.length > NAME_BYTES ? longNameEntry(target, 'longTarget') : []),
    ...(name.length > NAME_BYTES ? longNameEntry(name, 'longName') : []),
    header,
  ]);
}

function longNameEntry(name: Uint8Array, type: 'longTarget' | 'longName'): Uint8Array[] {
  const size = name.length + 1;
  const before = headerBlock(LONG_NAME, size, 0, undefined, TYPES[type], NO_NAME);
  return [before, name, Buffer.alloc(1), tarPadding(size)];
}

/** The bytes after contents of `size` bytes. */
export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);
}

/** The end of an archive. */
export const TAR_END = Buffer.alloc(2 * BLOCK);

function headerBlock(
  name: Uint8Array,
  size: number,
  mode: number,
  mtime: Date | undefined,
  type: string,
  target: Uint8Array,
): Buffer {
  const header = Buffer.alloc(BLOCK);
  header.set(name.subarray(0, NAME_BYTES), 0);
  header.write(octal(mode & 0o7777, 7), 100, 'latin1');
  header.write(octal(0, 7), 108, 'latin1');
  header.write(octal(0, 7), 116, 'latin1');
  if (size <= MAX_OCTAL) header.write(octal(size, 11), 124, 'latin1');
  else {
    header[124] = 0x80;
    header.writeBigUInt64BE(BigInt(size), 128);
  }
  const seconds = Math.floor((mtime?.getTime() ?? 0) / 1_000) || 0;
  header.write(octal(Math.min(MAX_OCTAL, Math.max(0, seconds)), 11), 136, 'latin1');
  header.write(type, 156, 'latin1');
  header.set(target.subarray(0, NAME_BYTES), 157);
  header.write('ustar  \0', 257, 'latin1');
  // The checksum is computed with spaces in its own field.
  header.fill(' ', 148, 156);
  // A loop, because `reduce` took most of the time of a header.
  let sum = 0;
  for (const byte of header) sum += byte;
  header.write(`${octal(sum, 6)}\0 `, 148, 'latin1');
  return header;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, '0');
}

/** How recently a file may have been written for its fingerprint to count: times in a tar are whole seconds. */
const RECENT_MS = 2_000;

/** An entry as `tar-stream` reads it, with one character for each byte of its name and target. */
type FingerprintEntry = {
  name: string;
  type?: string | null | undefined;
  size?: number | undefined;
  mtime?: Date | undefined;
  linkname?: string | null | undefined;
};

/** Tells without the contents whether the files of two tars are the same: by their names, sizes and times. */
export class TarFingerprint {
  readonly #hash = createHash('sha256');
  readonly #createdAt = Date.now();
  #newest = 0;

  add({ name, type, size = 0, mtime, linkname }: FingerprintEntry): void {
    const seconds = type === 'file' ? Math.floor((mtime?.getTime() ?? 0) / 1_000) : 0;
    this.#newest = Math.max(this.#newest, seconds * 1_000);
    const bytes = type === 'file' ? size : 0;
    this.#hash.update(`${type}\0${bytes}\0${seconds}\0${linkname ?? ''}\0${name}\0`, 'latin1');
  }

  /** @returns null when a file was written so recently that it may have changed since without a new time. Call it once. */
  digest(): string | null {
    return this.#newest > this.#createdAt - RECENT_MS ? null : this.#hash.digest('base64url');
  }
}
