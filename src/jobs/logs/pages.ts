/**
 * The journal of a job: its log lines and status changes, in one order with one sequence of numbers, so that one number is
 * the position of a follower. It is stored as pages of consecutive entries, because a row for each line took 2.5 times the
 * size of a line of 100 bytes and 7 times the size of a short line.
 *
 * This file defines the page format; `append.ts` stores entries, `read.ts` and `follow.ts` read them.
 *
 * `data` is JSON, compressed with zstd if that makes it smaller:
 *   u   times: microseconds since the epoch for the first entry, then the differences between consecutive entries
 *   t   instead of `u`, in pages with a single status change and those of earlier versions: milliseconds
 *   m   messages: a line, or a status
 *   s   the indexes, from 0, of the entries that are status changes
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';

export type LogLine = { timestamp: Date; message: string };
export type LogEntry = { kind: 'log'; seq: number; timestamp: Date; message: string };
type StatusEntry = { kind: 'status'; seq: number; timestamp: Date; message: JobStatus };
export type Entry = LogEntry | StatusEntry;

/** An entry to be stored, which has no number yet. */
type NewEntry = Omit<LogEntry, 'seq'> | Omit<StatusEntry, 'seq'>;

/** Bytes of text at which a page is full. Only a single line that is larger can exceed it. */
export const PAGE_BYTES = 64 * 1024;
/** Maximum number of entries in a page. To find the page with a number, a reader looks back at most this far. */
export const PAGE_ENTRIES = 2_048;
/** A page with less text is open: it is merged with its neighbours (`compaction.ts`). */
const OPEN_BYTES = PAGE_BYTES / 2;
/** Smaller data would hardly shrink and is not compressed. */
const WORTH_COMPRESSING = 512;

/** Level 1: higher levels took longer and saved nothing (64 KiB of a training log: 7.9 kB at 1, 9.2 kB at 3). */
const params = { [constants.ZSTD_c_compressionLevel]: 1 };

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

export type Page = {
  entries: number;
  /** Number of entries that are log lines. */
  lines: number;
  /** Bytes of the text of all entries. */
  text: number;
  /** The latest time of a line, in microseconds; null without lines. */
  until: number | null;
  /** Size of the data before compression. */
  bytes: number;
  open: boolean;
  compressed: boolean;
  data: Buffer;
};

/** The columns that `decodePage` needs, as the driver returns them. */
export type StoredPage = {
  first_seq: string;
  bytes: number;
  compressed: boolean;
  data: Buffer;
};

type Data = { u?: number[]; t?: number[]; m: string[]; s: number[] };

/** Bytes of a line as counted by the limit of a log: UTF-8, with a line end. */
export function textBytes({ message }: { message: string }): number {
  return Buffer.byteLength(message) + 1;
}

/** Splits entries into pages of about the same size, within the limits of a page. */
export async function encodePages(entries: readonly NewEntry[]): Promise<Page[]> {
  const sizes = entries.map(textBytes);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const count = Math.max(total / PAGE_BYTES, entries.length / PAGE_ENTRIES);
  const share = total / Math.ceil(count);
  const pages: Promise<Page>[] = [];
  let start = 0;
  let text = 0;
  for (const [at, size] of sizes.entries()) {
    const full = text >= share || text + size > PAGE_BYTES || at - start === PAGE_ENTRIES;
    if (full && at > start) {
      pages.push(encodePage(entries.slice(start, at), text));
      [start, text] = [at, 0];
    }
    text += size;
  }
  if (start < entries.length) pages.push(encodePage(entries.slice(start), text));
  return Promise.all(pages);
}

async function encodePage(entries: readonly NewEntry[], text: number): Promise<Page> {
  const u: number[] = [];
  const s: number[] = [];
  let previous = 0;
  let until = Number.NEGATIVE_INFINITY;
  for (const [at, entry] of entries.entries()) {
    const micros = toMicroseconds(entry.timestamp);
    u.push(micros - previous);
    previous = micros;
    if (entry.kind === 'status') s.push(at);
    else until = Math.max(until, micros);
  }
  const plain = Buffer.from(
    JSON.stringify({ u, m: entries.map((e) => e.message), s } satisfies Data),
  );
  const packed =
    plain.length >= WORTH_COMPRESSING
      ? await compress(plain, { params, chunkSize: plain.length })
      : plain;
  const compressed = packed.length < plain.length;
  return {
    entries: entries.length,
    lines: entries.length - s.length,
    text,
    until: s.length < entries.length ? until : null,
    bytes: plain.length,
    open: text < OPEN_BYTES && entries.length < PAGE_ENTRIES / 2,
    compressed,
    data: compressed ? packed : plain,
  };
}

export async function decodePage(page: StoredPage): Promise<Entry[]> {
  return parsePage(page, await unpackPage(page));
}

/** Returns the JSON of a page. */
export async function unpackPage({ bytes, compressed, data }: StoredPage): Promise<string> {
  // One buffer of the right size; by default the result is assembled from chunks of 16 KiB.
  const options = { maxOutputLength: bytes, chunkSize: bytes };
  const plain = compressed ? await decompress(data, options) : data;
  return plain.toString();
}

/** @param plain the JSON that `unpackPage` returned */
export function parsePage({ first_seq }: Pick<StoredPage, 'first_seq'>, plain: string): Entry[] {
  const { u, t, m, s } = JSON.parse(plain) as Data;
  const steps = u ?? (t ?? []).map((ms) => ms * 1_000);
  const first = Number(first_seq);
  const statuses = new Set(s);
  let micros = 0;
  return m.map((message, at) => {
    micros += steps[at] as number;
    const seq = first + at;
    return statuses.has(at)
      ? { kind: 'status', seq, timestamp: new Date(micros / 1_000), message: message as JobStatus }
      : { kind: 'log', seq, timestamp: new MicrosecondDate(micros), message };
  });
}

/** Encodes a status change as a page of its own, which is merged with its neighbours later. */
export function statusPage(status: JobStatus): { bytes: number; data: Buffer } {
  const data = { t: [Date.now()], m: [status], s: [0] } satisfies Data;
  const plain = Buffer.from(JSON.stringify(data));
  return { bytes: plain.length, data: plain };
}
