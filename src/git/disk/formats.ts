/** What git keeps in files of its own, for a few objects: a pack with its index, and the index of a working folder. */
import { createHash } from 'node:crypto';
import type { Stats } from 'node:fs';
import { crc32, deflateSync } from 'node:zlib';
import type { ObjectData } from '../objects/cat-file.ts';

const TYPES = { commit: 1, tree: 2, blob: 3, tag: 4 } as const;

/** `name`: as git would call it, of what it holds. */
export type Pack = { pack: Buffer; index: Buffer; name: string };

/** Each object whole. Fast, because a job reads it once or never. */
export function encodePack(objects: readonly ObjectData[]): Pack {
  const parts = [Buffer.from('PACK'), numbers(2, objects.length)];
  let offset = 12;
  const entries = objects.map(({ oid, type, data }) => {
    const entry = Buffer.concat([
      entryHeader(TYPES[type], data.length),
      deflateSync(data, { level: 1 }),
    ]);
    const at = offset;
    offset += entry.length;
    parts.push(entry);
    return { id: Buffer.from(oid, 'hex'), crc: crc32(entry), at };
  });
  const pack = sealed(parts);
  entries.sort((a, b) => a.id.compare(b.id));
  const index = sealed([
    Buffer.from([0xff, 0x74, 0x4f, 0x63]),
    numbers(2),
    // How many ids begin with a byte of at most so much.
    numbers(
      ...Array.from(
        { length: 256 },
        (_, n) => entries.filter(({ id }) => (id[0] ?? 0) <= n).length,
      ),
    ),
    ...entries.map(({ id }) => id),
    numbers(...entries.map(({ crc }) => crc)),
    numbers(...entries.map(({ at }) => at)),
    pack.subarray(-20),
  ]);
  return { pack, index, name: pack.subarray(-20).toString('hex') };
}

/** Four bits of the size beside the type, then seven a byte, from the lowest on. */
function entryHeader(type: number, size: number): Buffer {
  const bytes: number[] = [];
  let byte = (type << 4) | (size & 15);
  for (let rest = size >>> 4; rest > 0; rest >>>= 7) {
    bytes.push(byte | 0x80);
    byte = rest & 0x7f;
  }
  return Buffer.from([...bytes, byte]);
}

export type IndexEntry = { path: string; mode: number; sha: string; stat: Stats };

/** Of files that stand as they were committed. */
export function encodeIndex(files: readonly IndexEntry[]): Buffer {
  const entries = files
    .map(({ path, ...rest }) => ({ ...rest, name: Buffer.from(path) }))
    .sort((a, b) => a.name.compare(b.name))
    .map(({ name, mode, sha, stat }) => {
      const { ctimeMs, mtimeMs, dev, ino, uid, gid, size } = stat;
      const flags = Buffer.alloc(2);
      flags.writeUInt16BE(Math.min(name.length, 0xfff));
      const entry = Buffer.concat([
        numbers(...timeOf(ctimeMs), ...timeOf(mtimeMs), dev, ino, mode, uid, gid, size),
        Buffer.from(sha, 'hex'),
        flags,
        name,
      ]);
      // One NUL at least, up to a multiple of eight.
      return Buffer.concat([entry, Buffer.alloc(8 - (entry.length % 8))]);
    });
  return sealed([Buffer.from('DIRC'), numbers(2, entries.length), ...entries]);
}

/** Seconds and nanoseconds. */
function timeOf(ms: number): [number, number] {
  return [Math.floor(ms / 1_000), Math.floor((ms % 1_000) * 1e6)];
}

/** As 32 bits each, of larger ones the lowest. */
function numbers(...values: number[]): Buffer {
  const buffer = Buffer.alloc(4 * values.length);
  values.forEach((value, i) => void buffer.writeUInt32BE(value % 2 ** 32, 4 * i));
  return buffer;
}

function sealed(parts: readonly Buffer[]): Buffer {
  const all = Buffer.concat(parts);
  return Buffer.concat([all, createHash('sha1').update(all).digest()]);
}
