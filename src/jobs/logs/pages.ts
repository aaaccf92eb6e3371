/**
 * The journal of a job: its log lines and its status changes, in one order under one sequence, so that one
 * number is the position of a follower. It is kept as pages of consecutive entries, because a row for each
 * line took 2.5 times the bytes of a line of 100 bytes and 7 times those of a short one.
 *
 * This file is the format of a page, `append.ts` stores entries, `read.ts` and `follow.ts` read them.
 *
 * `data` is JSON, compressed with zstd where that makes it smaller:
 *   u   times: microseconds since the epoch of the first entry, then the steps from one entry to the next
 *   t   in their place, in status changes of their own and what earlier versions wrote: milliseconds
 *   m   texts: a line, or a status
 *   s   which entries, counted from 0, are status changes
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { Moment, microsOf } from '../../platform/database/times.ts';

export type LogLine = { timestamp: Date; message: string };
export type LogEntry = { kind: 'log'; seq: number; timestamp: Date; message: string };
export type StatusEntry = { kind: 'status'; seq: number; timestamp: Date; message: JobStatus };
export type Entry = LogEntry | StatusEntry;

/** Without its number: what is to be stored. */
export type NewEntry = Omit<LogEntry, 'seq'> | Omit<StatusEntry, 'seq'>;

/** Of text in a page, beyond which it is full; only a line that is itself larger makes it larger. */
export const PAGE_BYTES = 64 * 1024;
/** Entries in a page. No reader looks further back than this for the page that holds a number. */
export const PAGE_ENTRIES = 2_048;
/** A page with less text than this is joined with its neighbours (`fold.ts`). */
const OPEN_BYTES = PAGE_BYTES / 2;
/** Smaller data would hardly shrink, and stays in the row as it is. */
const WORTH_COMPRESSING = 512;

/** Level 1: higher ones took longer and saved nothing (64 KiB of a training log: 7.9 kB at 1, 9.2 kB at 3). */
const params = { [constants.ZSTD_c_compressionLevel]: 1 };

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

export type Page = {
  entries: number;
  /** Those that are log lines. */
  lines: number;
  /** Bytes of all their text. */
  text: number;
  /** The latest time of a line, in microseconds; null when there is none. */
  until: number | null;
  /** Of the data when it is not compressed. */
  bytes: number;
  open: boolean;
  compressed: boolean;
  data: Buffer;
};

/** The columns that `decodePage` needs, as the driver gives them. */
export type StoredPage = {
  first_seq: string;
  bytes: number;
  compressed: boolean;
  data: Buffer;
};

type Data = { u?: number[]; t?: number[]; m: string[]; s: number[] };

/** Bytes of a line as its job's cap counts them: UTF-8, with a line end. */
export function textBytes({ message }: { message: string }): number {
  return Buffer.byteLength(message) + 1;
}

/** Cuts entries into pages, none of them fuller than a page may be and all of about the same size. */
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
  let before = 0;
  let until = Number.NEGATIVE_INFINITY;
  for (const [at, entry] of entries.entries()) {
    const micros = microsOf(entry.timestamp);
    u.push(micros - before);
    before = micros;
    if (entry.kind === 'status') s.push(at);
    else until = Math.max(until, micros);
  }
  const plain = Buffer.from(
    JSON.stringify({ u, m: entries.map((e) => e.message), s } satisfies Data),
  );
  const small =
    plain.length >= WORTH_COMPRESSING
      ? await compress(plain, { params, chunkSize: plain.length })
      : plain;
  const compressed = small.length < plain.length;
  return {
    entries: entries.length,
    lines: entries.length - s.length,
    text,
    until: s.length < entries.length ? until : null,
    bytes: plain.length,
    open: text < OPEN_BYTES && entries.length < PAGE_ENTRIES / 2,
    compressed,
    data: compressed ? small : plain,
  };
}

export async function decodePage(page: StoredPage): Promise<Entry[]> {
  return parsePage(page, await unpackPage(page));
}

/** The JSON of a page. */
export async function unpackPage({ bytes, compressed, data }: StoredPage): Promise<string> {
  // One buffer of the right size; by default it would be put together from pieces of 16 KiB.
  const whole = { maxOutputLength: bytes, chunkSize: bytes };
  const plain = compressed ? await decompress(data, whole) : data;
  return plain.toString();
}

/** `plain`: of `unpackPage`. */
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
      : { kind: 'log', seq, timestamp: new Moment(micros), message };
  });
}

/** A status change as the columns of a page of its own; it is joined with its neighbours later. */
export function statusPage(status: JobStatus): { bytes: number; data: Buffer } {
  const data = { t: [Date.now()], m: [status], s: [0] } satisfies Data;
  const plain = Buffer.from(JSON.stringify(data));
  return { bytes: plain.length, data: plain };
}
