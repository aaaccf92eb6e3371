/**
 * Entries of a tar as GNU writes them: a name is bytes, as it is for the file system, where the formats of POSIX
 * want UTF-8 for every name that is long or not ASCII. All tools that matter read them. tar-stream can write names as UTF-8
 * only.
 */
const BLOCK = 512;
/** What fits into a header; a longer name gets an entry of its own before it. */
const NAME_BYTES = 100;
const LONG_NAME = Buffer.from('././@LongLink');
const NO_NAME = Buffer.alloc(0);
/** Eleven octal digits; above, GNU writes the number in base 256. */
const MAX_OCTAL = 8 ** 11 - 1;

/** By their letters in the format. */
const TYPES = {
  file: '0',
  link: '2',
  directory: '5',
  other: '6',
  longTarget: 'K',
  longName: 'L',
} as const;

export type TarEntry = {
  /** Relative, divided by `/`. */
  name: Uint8Array;
  /** Bytes of contents, which follow the header. */
  size: number;
  mode: number;
  mtime?: Date;
  /** `other`: a device, FIFO or socket. It has no contents, and neither have a link and a directory. */
  type?: 'file' | 'link' | 'directory' | 'other';
  /** Of a link. */
  target?: Uint8Array;
};

/** What stands before the contents. */
export function tarHeader({
  name,
  size,
  mode,
  mtime,
  type = 'file',
  target = NO_NAME,
}: TarEntry): Buffer {
  const header = block(name, size, mode, mtime, TYPES[type], target);
  if (name.length <= NAME_BYTES && target.length <= NAME_BYTES) return header;
  return Buffer.concat([
    ...(target.length > NAME_BYTES ? longer(target, 'longTarget') : []),
    ...(name.length > NAME_BYTES ? longer(name, 'longName') : []),
    header,
  ]);
}

function longer(name: Uint8Array, type: 'longTarget' | 'longName'): Uint8Array[] {
  const size = name.length + 1;
  const before = block(LONG_NAME, size, 0, undefined, TYPES[type], NO_NAME);
  return [before, name, Buffer.alloc(1), tarPadding(size)];
}

/** What stands after contents of `size` bytes. */
export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);
}

/** The end of an archive. */
export const TAR_END = Buffer.alloc(2 * BLOCK);

function block(
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
  // The sum is taken with spaces in its own place.
  header.fill(' ', 148, 156);
  // A loop: `reduce` took most of the time of a header.
  let sum = 0;
  for (const byte of header) sum += byte;
  header.write(`${octal(sum, 6)}\0 `, 148, 'latin1');
  return header;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, '0');
}
