/**
 * Stores the tests of a report in pages of gzipped JSON, in the order failed, skipped, passed. So each status is a range, a page
 * of the dashboard reads one or two of them, and none blocks this thread for long.
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { gunzip, gzip } from 'node:zlib';
import type { Db } from '../../platform/database/client.ts';
import { type Allowance, takeAllBytes } from '../../platform/limits/reads.ts';
import type { TestCase, TestStatus } from './junit.ts';

/** A page ends with the first of both. */
const PAGE_TESTS = 250;
const PAGE_CHARS = 256 * 1024;

const ORDER: readonly TestStatus[] = ['failed', 'skipped', 'passed'];

type Counts = Record<TestStatus, number>;

/** @returns the tests in the order of the pages */
export function orderTests(tests: readonly TestCase[]): TestCase[] {
  return ORDER.flatMap((status) => tests.filter((test) => test.status === status));
}

/** @param tests in the order of the pages */
export async function* encodePages(
  tests: readonly TestCase[],
): AsyncGenerator<{ first: number; data: Buffer<ArrayBuffer> }> {
  for (let first = 0; first < tests.length; ) {
    const texts: string[] = [];
    let chars = 0;
    for (const test of tests.slice(first, first + PAGE_TESTS)) {
      if (chars >= PAGE_CHARS) break;
      const text = JSON.stringify(test);
      chars += text.length;
      texts.push(text);
    }
    yield { first, data: Buffer.from(await promisify(gzip)(`[${texts.join(',')}]`)) };
    first += texts.length;
  }
}

/** Where the tests with the status are; null: all. */
function findRange(counts: Counts, status: TestStatus | null): { start: number; end: number } {
  let start = 0;
  for (const each of ORDER) {
    const end = start + counts[each];
    if (each === status) return { start, end };
    start = end;
  }
  return { start: 0, end: start };
}

type TestRange = { status: TestStatus | null; first: number; offset: number };

/**
 * Reads a part of the tests of a report, failed ones first.
 * @param allowance how much text the response may have; null if the tests are not part of a response
 * @throws AppError 400 if the response has no room for them, 503
 */
export async function readTests(
  { db }: { db: Db },
  report: { attemptId: string } & Counts,
  { status, first, offset }: TestRange,
  allowance: Allowance | null,
): Promise<TestCase[]> {
  const range = findRange(report, status);
  const start = range.start + offset;
  const end = Math.min(range.end, start + first);
  if (start >= end) return [];
  const { attemptId } = report;
  const pages = await db.$queryRaw<{ first: number; data: Uint8Array }[]>`
    select first, data from test_pages where attempt_id = ${attemptId} and first < ${end}
      and first >= (select coalesce(max(first), 0) from test_pages
        where attempt_id = ${attemptId} and first <= ${start})
    order by first`;
  const tests: TestCase[] = [];
  for (const page of pages) {
    const text = String(await promisify(gunzip)(page.data));
    if (allowance) await takeAllBytes(allowance, text.length);
    const all = JSON.parse(text) as TestCase[];
    tests.push(...all.slice(Math.max(0, start - page.first), end - page.first));
  }
  return tests;
}

/** Bytes of a key. Two of the 20,000 tests of a report have the same key once in a hundred billion reports. */
const KEY_BYTES = 8;

/** What distinguishes the jobs of a run, so that tests of two jobs of a matrix are not taken for one. */
type JobKey = { runJob: string | null; matrixValues: unknown };

/** Identifies a test in the reports of a repository. */
export function keyOf(
  { runJob, matrixValues }: JobKey,
  { suite, className, name }: Pick<TestCase, 'suite' | 'className' | 'name'>,
): bigint {
  const text = JSON.stringify([runJob, matrixValues ?? null, suite, className, name]);
  return createHash('sha256').update(text).digest().readBigUInt64BE();
}

/** Packs keys, sorted, so that one is found by a binary search. */
export function packKeys(keys: readonly bigint[]): Buffer<ArrayBuffer> {
  const sorted = BigUint64Array.from(keys).sort();
  const packed = Buffer.alloc(sorted.length * KEY_BYTES);
  for (const [index, key] of sorted.entries()) packed.writeBigUInt64BE(key, index * KEY_BYTES);
  return packed;
}

export function hasKey(packed: Uint8Array, key: bigint): boolean {
  const view = new DataView(packed.buffer, packed.byteOffset, packed.byteLength);
  let low = 0;
  let high = packed.byteLength / KEY_BYTES;
  while (low < high) {
    const middle = (low + high) >> 1;
    const found = view.getBigUint64(middle * KEY_BYTES);
    if (found === key) return true;
    if (found < key) low = middle + 1;
    else high = middle;
  }
  return false;
}
