/**
 * The objects of a small push, out of its pack, for what would start several programs to look at a few kilobytes. Git has
 * checked the pack before (`index-pack`), which also makes it whole: the bases of its deltas are in it.
 */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { inflateSync } from 'node:zlib';
import type { ObjectType } from './cat-file-answers.ts';

export type PackedObject = { type: ObjectType; data: Buffer };

const MAX_PACK_BYTES = 256 * 1024;
/** Each takes some 30 µs of the main thread. */
const MAX_OBJECTS = 200;
/** Of all objects together, unpacked: a pack of 256 KB can hold a thousand times that. */
const MAX_UNPACKED_BYTES = 4 * 2 ** 20;

/** Of an index, version 2. */
const INDEX_MAGIC = 0xff744f63;
const FANOUT = 8;
const NAMES = FANOUT + 256 * 4;
const NAME_BYTES = 20;
const PACK_HEADER = 12;
/** Where a pack's own checksum begins, from its end. */
const CHECKSUM = 20;
const TYPES: Record<number, ObjectType> = { 1: 'commit', 2: 'tree', 3: 'blob', 4: 'tag' };
const OFFSET_DELTA = 6;
const NAMED_DELTA = 7;

/**
 * By id. Null where programs of git are to look at it: the quarantine holds more than one small pack, or what is not
 * understood here. Git has just written it on this machine, so it is read at once: by Node's threads each step takes this
 * one longer.
 */
export function readSmallPack(quarantine: string): Map<string, PackedObject> | null {
  try {
    const folders = readdirSync(quarantine);
    // Loose objects are in folders of two digits.
    if (folders.some((name) => name !== 'pack' && name !== 'info')) return null;
    const files = folders.includes('pack') ? readdirSync(join(quarantine, 'pack')) : [];
    const packs = files.filter((name) => name.endsWith('.pack'));
    const [pack] = packs;
    // As of a branch that is made of commits that are here.
    if (!pack && files.length === 0) return new Map();
    if (!pack || packs.length > 1) return null;
    return readPack(join(quarantine, 'pack', pack.slice(0, -'.pack'.length)));
  } catch {
    return null;
  }
}

/** @param file without its ending. @throws Error */
function readPack(file: string): Map<string, PackedObject> | null {
  if (statSync(`${file}.pack`).size > MAX_PACK_BYTES) return null;
  const [pack, index] = [readFileSync(`${file}.pack`), readFileSync(`${file}.idx`)];
  const count = index.readUInt32BE(NAMES - 4);
  const isUsual = index.readUInt32BE(0) === INDEX_MAGIC && index.readUInt32BE(4) === 2;
  return isUsual && count <= MAX_OBJECTS ? new SmallPack(pack, index, count).objects() : null;
}

class SmallPack {
  readonly #pack: Buffer;
  readonly #ids: string[];
  /** Of each object, in the order of their ids. */
  readonly #offsets: number[];
  /** Where the object ends that begins there. */
  readonly #ends = new Map<number, number>();
  readonly #read = new Map<number, PackedObject>();
  #room = MAX_UNPACKED_BYTES;

  constructor(pack: Buffer, index: Buffer, count: number) {
    this.#pack = pack;
    const all = Array.from({ length: count }, (_, i) => i);
    this.#ids = all.map((i) => {
      const at = NAMES + i * NAME_BYTES;
      return index.toString('hex', at, at + NAME_BYTES);
    });
    // Behind a checksum of four bytes for each.
    const offsets = NAMES + count * (NAME_BYTES + 4);
    this.#offsets = all.map((i) => index.readUInt32BE(offsets + i * 4));
    const sorted = this.#offsets.toSorted((one, other) => one - other);
    for (const [i, offset] of sorted.entries())
      this.#ends.set(offset, sorted[i + 1] ?? pack.length - CHECKSUM);
  }

  objects(): Map<string, PackedObject> {
    return new Map(this.#ids.map((id, i) => [id, this.#at(this.#offsets[i] as number)]));
  }

  #at(offset: number): PackedObject {
    const known = this.#read.get(offset);
    if (known) return known;
    const end = this.#ends.get(offset);
    if (end === undefined || offset < PACK_HEADER) throw new Error('a delta has no base');
    const object = this.#unpack(offset, end);
    this.#read.set(offset, object);
    return object;
  }

  #unpack(offset: number, end: number): PackedObject {
    let at = offset;
    let byte = this.#pack.readUInt8(at++);
    const type = (byte >> 4) & 7;
    let size = byte & 15;
    for (let shift = 4; byte & 0x80; shift += 7) {
      byte = this.#pack.readUInt8(at++);
      size += (byte & 0x7f) * 2 ** shift;
    }
    let base: PackedObject | undefined;
    if (type === OFFSET_DELTA) {
      byte = this.#pack.readUInt8(at++);
      let back = byte & 0x7f;
      while (byte & 0x80) {
        byte = this.#pack.readUInt8(at++);
        back = (back + 1) * 128 + (byte & 0x7f);
      }
      base = this.#at(offset - back);
    } else if (type === NAMED_DELTA) {
      const id = this.#pack.toString('hex', at, at + NAME_BYTES);
      at += NAME_BYTES;
      base = this.#at(this.#offsets[this.#ids.indexOf(id)] ?? 0);
    }
    const unpacked = this.#inflate(at, end, size);
    if (base) return { type: base.type, data: this.#apply(unpacked, base.data) };
    const named = TYPES[type];
    if (!named) throw new Error(`a pack has an object of type ${type}`);
    return { type: named, data: unpacked };
  }

  #inflate(at: number, end: number, size: number): Buffer {
    this.#take(size);
    const data = inflateSync(this.#pack.subarray(at, end), { maxOutputLength: size + 1 });
    if (data.length !== size) throw new Error('an object is not as long as its pack says');
    return data;
  }

  #apply(delta: Buffer, base: Buffer): Buffer {
    let at = 0;
    const number = () => {
      let value = 0;
      for (let shift = 0, byte = 0x80; byte & 0x80; shift += 7) {
        byte = delta.readUInt8(at++);
        value += (byte & 0x7f) * 2 ** shift;
      }
      return value;
    };
    if (number() !== base.length) throw new Error('a delta is of another base');
    const size = number();
    this.#take(size);
    const parts: Buffer[] = [];
    let made = 0;
    while (at < delta.length && made <= size) {
      const code = delta.readUInt8(at++);
      if (code & 0x80) {
        let [from, length] = [0, 0];
        for (let i = 0; i < 4; i++) if (code & (1 << i)) from += delta.readUInt8(at++) * 256 ** i;
        for (let i = 0; i < 3; i++)
          if (code & (0x10 << i)) length += delta.readUInt8(at++) * 256 ** i;
        length ||= 0x10000;
        made += length;
        parts.push(base.subarray(from, from + length));
      } else {
        made += code;
        parts.push(delta.subarray(at, at + code));
        at += code;
      }
    }
    const data = Buffer.concat(parts);
    if (data.length !== size || made !== size) throw new Error('a delta makes no whole object');
    return data;
  }

  #take(bytes: number): void {
    this.#room -= bytes;
    if (this.#room < 0) throw new Error('a small pack has much in it');
  }
}
