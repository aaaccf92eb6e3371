/**
 * The stored format of a job's journal. The journal contains the log lines and status changes of the job, numbered in one
 * sequence (`seq`), so that a single number marks a follower's position. It is stored as pages of consecutive entries: a row
 * for each line took 2.5 times the size of a line of 100 bytes and 7 times the size of a short line.
 *
 * The column `data` is JSON, compressed with zstd if that makes it smaller:
 *   u   times: microseconds since the epoch for the first entry, then the differences between consecutive entries
 *   t   times in milliseconds, in the same form: replaces `u` in new pages of one status change, and in pages of old versions
 *   m   for each entry, the text of the line or the name of the status
 *   s   the indexes, from 0, of the entries that are status changes
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';

/** A line that is not stored yet. */
export type LogLine = { timestamp: Date; message: string };
export type LineEntry = { kind: 'log'; seq: number; timestamp: Date; message: string };
export type StatusEntry = { kind: 'status'; seq: number; timestamp: Date; status: JobStatus };
export type JournalEntry = LineEntry | StatusEntry;

/** An entry before it is stored and gets its number. */
type NewEntry = Omit<LineEntry, 'seq'> | Omit<StatusEntry, 'seq'>;

/** Maximum bytes of text in a page. Only a page with a single line can be larger. */
export const PAGE_BYTES = 64 * 1024;
/** Maximum number of entries in a page, and so the distance that a reader looks back to find the page with a number. */
export const PAGE_ENTRIES = 2_048;
/** A page with less text and fewer entries is open: it is merged with its neighbours later (`logs/compaction.ts`). */
const OPEN_BYTES = PAGE_BYTES / 2;
const OPEN_ENTRIES = PAGE_ENTRIES / 2;
/** Smaller data is not compressed, because it would hardly shrink. */
const MIN_COMPRESSED_BYTES = 512;

/** Level 1: higher levels took longer and saved nothing (64 KiB of a training log: 7.9 kB at 1, 9.2 kB at 3). */
const ZSTD_PARAMS = { [constants.ZSTD_c_compressionLevel]: 1 };

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

export type Page = {
  entries: number;
  /** Number of entries that are log lines. */
  lines: number;
  /** Bytes of the text of all entries. */
  textBytes: number;
  /** In microseconds; null if the page has no lines. */
  newestLineTime: number | null;
  /** Bytes of the JSON before compression. */
  bytes: number;
  isOpen: boolean;
  isCompressed: boolean;
  data: Buffer;
};

/** The columns that `decodePage` needs, as the driver returns them. */
export type StoredPage = {
  first_seq: string;
  bytes: number;
  compressed: boolean;
  data: Buffer;
};

type PageData = { u?: number[]; t?: number[]; m: string[]; s: number[] };

/** Counts the bytes of a line as the limits of a log do: in UTF-8, with a newline. */
export function countTextBytes(message: string): number {
  return Buffer.byteLength(message) + 1;
}

function entryText(entry: NewEntry): string {
  return entry.kind === 'log' ? entry.message : entry.status;
}

/** Splits entries into pages of about the same size, within the limits of a page. */
export async function encodePages(entries: readonly NewEntry[]): Promise<Page[]> {
  const sizes = entries.map((entry) => countTextBytes(entryText(entry)));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const pageCount = Math.ceil(Math.max(total / PAGE_BYTES, entries.length / PAGE_ENTRIES));
  const targetBytes = total / pageCount;
  const pages: Promise<Page>[] = [];
  let start = 0;
  let bytes = 0;
  for (const [index, size] of sizes.entries()) {
    const isFull =
      bytes >= targetBytes || bytes + size > PAGE_BYTES || index - start === PAGE_ENTRIES;
    if (isFull && index > start) {
      pages.push(encodePage(entries.slice(start, index), bytes));
      start = index;
      bytes = 0;
    }
    bytes += size;
  }
  if (start < entries.length) pages.push(encodePage(entries.slice(start), bytes));
  return Promise.all(pages);
}

async function encodePage(entries: readonly NewEntry[], textBytes: number): Promise<Page> {
  const timeDeltas: number[] = [];
  const statusIndexes: number[] = [];
  let previous = 0;
  let newestLineTime = Number.NEGATIVE_INFINITY;
  for (const [index, entry] of entries.entries()) {
    const micros = toMicroseconds(entry.timestamp);
    timeDeltas.push(micros - previous);
    previous = micros;
    if (entry.kind === 'status') statusIndexes.push(index);
    else newestLineTime = Math.max(newestLineTime, micros);
  }
  const lines = entries.length - statusIndexes.length;
  const data: PageData = { u: timeDeltas, m: entries.map(entryText), s: statusIndexes };
  const plain = Buffer.from(JSON.stringify(data));
  const packed =
    plain.length >= MIN_COMPRESSED_BYTES
      ? await compress(plain, { params: ZSTD_PARAMS, chunkSize: plain.length })
      : plain;
  const isCompressed = packed.length < plain.length;
  return {
    entries: entries.length,
    lines,
    textBytes,
    newestLineTime: lines > 0 ? newestLineTime : null,
    bytes: plain.length,
    isOpen: textBytes < OPEN_BYTES && entries.length < OPEN_ENTRIES,
    isCompressed,
    data: isCompressed ? packed : plain,
  };
}

export async function decodePage(page: StoredPage): Promise<JournalEntry[]> {
  return parsePage(page, await decompressPage(page));
}

/** Returns the JSON of a page, in which a search can look for a text before it parses the page. */
export async function decompressPage({ bytes, compressed, data }: StoredPage): Promise<string> {
  // The result fits into one chunk; by default zlib assembles it from chunks of 16 KiB.
  const options = { maxOutputLength: bytes, chunkSize: bytes };
  const plain = compressed ? await decompress(data, options) : data;
  return plain.toString();
}

/** @param json the result of `decompressPage` */
export function parsePage(
  { first_seq }: Pick<StoredPage, 'first_seq'>,
  json: string,
): JournalEntry[] {
  const { u, t, m, s } = JSON.parse(json) as PageData;
  const timeDeltas = u ?? (t ?? []).map((ms) => ms * 1_000);
  const first = Number(first_seq);
  const statuses = new Set(s);
  let micros = 0;
  return m.map((text, index) => {
    micros += timeDeltas[index] as number;
    const seq = first + index;
    return statuses.has(index)
      ? { kind: 'status', seq, timestamp: new Date(micros / 1_000), status: text as JobStatus }
      : { kind: 'log', seq, timestamp: new MicrosecondDate(micros), message: text };
  });
}

/** Encodes a status change as a page of its own, with the current time. Compaction merges it with its neighbours. */
export function encodeStatusPage(status: JobStatus): { bytes: number; data: Buffer } {
  const data = { t: [Date.now()], m: [status], s: [0] } satisfies PageData;
  const plain = Buffer.from(JSON.stringify(data));
  return { bytes: plain.length, data: plain };
}
