/** The journal of a job: pages that are filled, merged and read while lines arrive. */
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Services } from '../../src/app.ts';
import { newId } from '../../src/base/ids.ts';
import {
  MAX_POINTS,
  openUsageHistory,
  readUsagePoints,
} from '../../src/jobs/costs/usage-history.ts';
import { appendLines } from '../../src/jobs/logs/append.ts';
import { compactPages } from '../../src/jobs/logs/compaction.ts';
import { followJournal } from '../../src/jobs/logs/follow.ts';
import { findStreamStart, readLogTail } from '../../src/jobs/logs/read.ts';
import { removeDeletedPages } from '../../src/jobs/logs/removal.ts';
import { type SearchResult, searchLog } from '../../src/jobs/logs/search.ts';
import { streamLogText } from '../../src/jobs/logs/walk.ts';
import { readWindow, type WindowQuery } from '../../src/jobs/logs/window.ts';
import {
  encodePages,
  type JournalEntry,
  type LogLine,
  PAGE_BYTES,
  PAGE_ENTRIES,
} from '../../src/jobs/record/journal-pages.ts';
import { moveJob, PHASES } from '../../src/jobs/record/state.ts';
import { inTransaction } from '../../src/platform/database/client.ts';
import { MicrosecondDate, toMicroseconds } from '../../src/platform/database/times.ts';
import type { Allowance } from '../../src/platform/limits/reads.ts';
import type { LogCursor } from '../../src/runners/runner.ts';
import { startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let services: Services;
beforeAll(async () => {
  app = await startApp();
  services = app.app.services;
});
afterAll(() => app[Symbol.asyncDispose]());

/** An allowance of `bytes`, or without a limit. */
const allowance = (bytes = Number.MAX_SAFE_INTEGER): Allowance & { taken: number } => ({
  taken: 0,
  async take(wanted) {
    const granted = Math.min(wanted, bytes - this.taken);
    this.taken += granted;
    return granted;
  },
});

/** A running job with an open attempt that no worker supervises. */
async function openJob() {
  const { db } = services;
  const namespace = await db.namespace.findUniqueOrThrow({ where: { name: 'admin' } });
  const id = newId('job');
  const attemptId = newId('att');
  await db.job.create({
    data: {
      id,
      namespaceId: namespace.id,
      name: id,
      status: 'running',
      command: '',
      // No worker has this GPU, so none claims the job while it is queued.
      gpu: 'T4',
      gpuCount: 1,
      cpu: 2,
      memoryGb: 1,
      diskGb: 1,
      region: 'us-east-1',
      timeoutMinutes: 1,
      retries: 0,
      costPerHour: 0,
      attemptId,
      attempts: { create: { id: attemptId, number: 1, runner: 'test', workerId: 'test' } },
    },
  });
  let from: LogCursor | null = null;
  let stored = 0;
  let newestTime: Date | null = null;
  return {
    id,
    async append(lines: readonly LogLine[]) {
      stored += lines.length;
      const to = { stored };
      const batch = { jobId: id, attemptId, lines, newestTime, from, to };
      const totals = await appendLines(services, batch);
      from = to;
      newestTime = totals?.newestTime ?? newestTime;
      return totals;
    },
    /** The moves of a job, in order. */
    async move(...statuses: ('queued' | 'running' | 'succeeded')[]) {
      for (const to of statuses)
        await inTransaction(db, (tx) => moveJob(tx, id, () => ({ to, phase: PHASES.running })));
    },
    async end() {
      await db.jobAttempt.update({ where: { id: attemptId }, data: { endedAt: new Date() } });
      await this.move('succeeded');
    },
  };
}

const pagesOf = (jobId: string) =>
  services.db.journalPage.findMany({ where: { jobId }, orderBy: { firstSeq: 'asc' } });

const textOf = (entry: JournalEntry) => (entry.kind === 'log' ? entry.message : entry.status);

async function followed(jobId: string, after: number): Promise<{ seq: number; message: string }[]> {
  const entries: { seq: number; message: string }[] = [];
  for await (const step of followJournal(services, jobId, after, new AbortController().signal)) {
    if (step.kind !== 'entries') continue;
    for (const entry of step.entries) entries.push({ seq: entry.seq, message: textOf(entry) });
  }
  return entries;
}

const START = Date.UTC(2026, 0, 1);
const message = fc.oneof(
  { weight: 6, arbitrary: fc.string({ unit: 'binary', maxLength: 40 }) },
  { weight: 2, arbitrary: fc.constant('') },
  { weight: 2, arbitrary: fc.integer({ min: 1, max: 70_000 }).map((n) => 'é'.repeat(n / 2)) },
);
/** Times that sometimes go backwards, as clocks do. */
const line = fc.record({ message, step: fc.integer({ min: -20, max: 200 }) });
const batches = fc.array(
  fc.oneof(
    { weight: 8, arbitrary: fc.array(line, { maxLength: 30 }) },
    {
      weight: 1,
      arbitrary: fc
        .integer({ min: 1, max: 5_000 })
        .map((n) => Array(n).fill({ message: 'x', step: 1 })),
    },
    { weight: 3, arbitrary: fc.array(line, { minLength: 1, maxLength: 1 }).map((one) => one) },
    { weight: 1, arbitrary: fc.constantFrom('status' as const, 'fold' as const) },
  ),
  { minLength: 1, maxLength: 150 },
);

test('lines of one millisecond get distinct times, so that a client that reads the lines after a time misses none', async () => {
  const job = await openJob();
  const at = (...messages: string[]) =>
    messages.map((text) => ({ message: text, timestamp: new Date(START) }));
  const seen: string[] = [];
  let since: Date | null = null;
  for (const messages of [['a', 'b'], ['c'], ['d', 'e', 'f']]) {
    await job.append(at(...messages));
    await job.move('queued', 'running');
    const page = await readLogTail(services, job.id, { since }, allowance());
    seen.push(...page.lines.map(({ message: text }) => text));
    since = page.lines.at(-1)?.timestamp ?? null;
  }
  expect(seen).toEqual(['a', 'b', 'c', 'd', 'e', 'f']);
  expect(JSON.stringify(since)).toBe('"2026-01-01T00:00:00.000005Z"');
  // A resumed attempt knows the time of the last line only in milliseconds.
  const { logUntil } = await services.db.job.findUniqueOrThrow({ where: { id: job.id } });
  expect(logUntil).toEqual(new Date(START));
});

test('followers get each entry once and in order during concurrent appends and merges', async () => {
  await fc.assert(
    fc.asyncProperty(
      batches,
      fc.array(fc.nat(300), { maxLength: 4 }),
      fc.array(fc.record({ tail: fc.integer({ min: 1, max: 10_000 }), at: fc.nat(20_000) }), {
        maxLength: 6,
      }),
      async (steps, resumes, reads) => {
        const job = await openJob();
        const written: { seq: number; message: string; timestamp?: Date }[] = [];
        const add = (text: string, timestamp?: Date) =>
          written.push({ seq: written.length + 1, message: text, ...(timestamp && { timestamp }) });
        const followers = [0, ...resumes].map((after) => ({
          after,
          told: followed(job.id, after),
        }));
        // Merges pages continuously, in addition to the merges of the appends.
        let appending = true;
        const folding = (async () => {
          while (appending) await compactPages(services, job.id);
        })();

        let clock = START;
        let newest = 0;
        for (const step of steps) {
          if (step === 'fold') await compactPages(services, job.id);
          else if (step === 'status') {
            await job.move('queued', 'running');
            add('queued');
            add('running');
          } else {
            const lines = step.map(
              ({ message: text, step: ms }: { message: string; step: number }) => {
                clock += ms;
                return { message: text, timestamp: new Date(clock) };
              },
            );
            expect(await job.append(lines)).not.toBeNull();
            for (const one of lines) {
              newest = Math.max(toMicroseconds(one.timestamp), newest + 1);
              add(one.message, new MicrosecondDate(newest));
            }
          }
        }
        appending = false;
        await folding;
        await job.end();
        add('succeeded');

        const plain = written.map(({ seq, message: text }) => ({
          seq,
          message: text.toWellFormed(),
        }));
        for (const { after, told } of followers)
          expect((await told).map((e) => ({ ...e, message: e.message.toWellFormed() }))).toEqual(
            plain.slice(after),
          );

        const lines = written.filter(({ timestamp }) => timestamp);
        for (const { tail, at } of reads) {
          const since = at % 3 === 0 ? null : new MicrosecondDate((START + at) * 1_000 + (at % 5));
          const first = since
            ? lines.findIndex(
                ({ timestamp = since }) => toMicroseconds(timestamp) > toMicroseconds(since),
              )
            : 0;
          const expected = first === -1 ? [] : lines.slice(first);
          const page = await readLogTail(services, job.id, { tail, since }, allowance());
          expect(page.lines.map(({ seq }) => seq)).toEqual(
            expected.slice(-tail).map(({ seq }) => seq),
          );
          expect(page.lines.map(({ timestamp }) => toMicroseconds(timestamp))).toEqual(
            expected.slice(-tail).map(({ timestamp }) => timestamp && toMicroseconds(timestamp)),
          );
          expect(page.hasMore).toBe(expected.length > tail);
          const start = await findStreamStart(services, job.id, { tail, since });
          expect(start).toBe((expected.slice(-tail)[0]?.seq ?? written.length + 1) - 1);
        }

        const pages = await pagesOf(job.id);
        let next = 1n;
        for (const { firstSeq, lastSeq } of pages) {
          expect(firstSeq).toBe(next);
          next = lastSeq + 1n;
        }
        await compactPages(services, job.id);
        const { logLines } = await services.db.job.findUniqueOrThrow({ where: { id: job.id } });
        expect(Number(logLines)).toBe(lines.length);
        expect((await pagesOf(job.id)).filter(({ open }) => open).length).toBeLessThanOrEqual(1);
      },
    ),
    { numRuns: 12, endOnFailure: true },
  );
});

test('pages keep their limits, and their lines are read back unchanged', async () => {
  const sizes = fc.array(fc.nat(66_000), { maxLength: 40 });
  await fc.assert(
    fc.asyncProperty(sizes, fc.nat(5_000), async (large, small) => {
      const texts = [...large.map((n) => 'x'.repeat(n)), ...Array(small).fill('')];
      const entries = texts.map((text) => ({
        kind: 'log' as const,
        timestamp: new Date(START),
        message: text,
      }));
      const pages = await encodePages(entries);
      expect(pages.reduce((sum, page) => sum + page.entries, 0)).toBe(entries.length);
      for (const page of pages) {
        expect(page.entries).toBeLessThanOrEqual(PAGE_ENTRIES);
        if (page.entries > 1) expect(page.textBytes).toBeLessThanOrEqual(PAGE_BYTES);
      }
    }),
    { numRuns: 20 },
  );
});

test('a log that grows line by line consists of full pages and a few small ones', async () => {
  const job = await openJob();
  for (let i = 0; i < 700; i++)
    await job.append([
      { timestamp: new Date(), message: `line ${i} ${'of some length '.repeat(8)}` },
    ]);
  const pages = await pagesOf(job.id);
  expect(pages.length).toBeLessThan(80);
  expect(pages.filter(({ open }) => !open).length).toBeGreaterThanOrEqual(2);
  await compactPages(services, job.id);
  expect((await pagesOf(job.id)).length).toBeLessThan(6);
});

test('the allowance limits what is read; the newest lines are returned, with hasMore', async () => {
  const job = await openJob();
  for (let i = 0; i < 40; i++)
    await job.append([{ timestamp: new Date(), message: `${i} ${'x'.repeat(50_000)}` }]);
  const small = allowance(500_000);
  const page = await readLogTail(services, job.id, { tail: 10_000 }, small);
  expect(page.hasMore).toBe(true);
  expect(page.lines.length).toBeGreaterThan(5);
  expect(page.lines.length).toBeLessThan(11);
  expect(page.lines.at(-1)?.message.slice(0, 3)).toBe('39 ');
  expect(small.taken).toBeLessThanOrEqual(500_000);
  const rest = await readLogTail(services, job.id, { tail: 10_000 }, small);
  expect(rest).toMatchObject({ hasMore: true });
  expect(await readLogTail(services, job.id, { tail: 1 }, allowance(0))).toEqual({
    lines: [],
    hasMore: true,
  });
  const whole = await readLogTail(services, job.id, { tail: 40 }, allowance());
  expect(whole).toMatchObject({ hasMore: false });
  expect(whole.lines).toHaveLength(40);
});

test('any range of a log can be read forwards, backwards and by time, and every line can be found', async () => {
  const words = [
    'Straße',
    'ΟΔΟΣ',
    'οδός ΟΔΟΣΑ',
    'tab\there',
    'quote "x"',
    '\u001b[31mred',
    'back\\slash',
    'İs',
  ];
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: 1, max: 3_000 }), { minLength: 1, maxLength: 8 }),
      fc.array(
        fc.record({
          place: fc.integer({ min: -3, max: 12_000 }),
          count: fc.integer({ min: 1, max: 1_000 }),
        }),
        { maxLength: 6 },
      ),
      fc.constantFrom(...words, 'STRASSE', 'straße', 'x', 'nothing like it'),
      fc.boolean(),
      fc.integer({ min: 0, max: 10 }),
      fc.integer({ min: 1, max: 40 }),
      async (batches, places, text, matchCase, context, first) => {
        const job = await openJob();
        const written: { seq: number; message: string; at: number | null }[] = [];
        for (const size of batches) {
          const lines = Array.from({ length: size }, (_, i) => {
            const seq = written.length + i + 1;
            const message = seq % 97 === 0 ? `${seq} ${words[seq % words.length]}` : `${seq}`;
            return { timestamp: new Date(START + seq * 10), message };
          });
          await job.append(lines);
          for (const { message, timestamp } of lines)
            written.push({ seq: written.length + 1, message, at: +timestamp });
          await job.move('queued', 'running');
          for (const status of ['queued', 'running'])
            written.push({ seq: written.length + 1, message: status, at: null });
          if (size % 2) await compactPages(services, job.id);
        }
        const end = written.length;
        const read = async (query: WindowQuery) => {
          const { entries, ...rest } = await readWindow(services, job.id, query, allowance());
          return { ...rest, entries: entries.map((entry) => [entry.seq, textOf(entry)]) };
        };
        const part = (low: number, high: number) => ({
          entries: written
            .slice(Math.max(0, low - 1), Math.max(0, high))
            .map(({ seq, message: told }) => [seq, told]),
          lastSeq: end,
        });
        expect(await read({})).toMatchObject({ ...part(end - 99, end), hasNewer: false });
        for (const { place, count } of places) {
          const seq = Math.max(0, place);
          const forwards = await read({ after: seq, first: count });
          expect(forwards).toMatchObject(part(seq + 1, seq + count));
          expect(forwards.hasNewer).toBe(seq + count < end);
          expect(forwards.hasOlder).toBe(seq > 0);
          const backwards = await read({ before: seq, last: count });
          expect(backwards).toMatchObject(
            part(Math.max(1, Math.min(seq, end + 1) - count), seq - 1),
          );
          expect(backwards.hasOlder).toBe(Math.min(seq, end + 1) - count > 1);
          expect(backwards.hasNewer).toBe(seq <= end);
          const from = written.findIndex(({ at }) => at !== null && at >= START + seq * 10 - 5);
          const since = await read({ at: new Date(START + seq * 10 - 5), first: count });
          expect(since.entries).toEqual(from === -1 ? [] : part(from + 1, from + count).entries);
        }

        const fold = (value: string) =>
          matchCase ? value : value.toLowerCase().replaceAll('ς', 'σ');
        const lines = written.filter(({ at }) => at !== null);
        const holds = lines.filter(({ message: told }) => fold(told).includes(fold(text)));
        for (const order of ['asc', 'desc'] as const) {
          const found: unknown[] = [];
          let after: number | null = null;
          for (;;) {
            const page: SearchResult = await searchLog(
              services,
              job.id,
              { text, matchCase, order, after, first, context },
              allowance(),
            );
            expect(page.matches.length).toBeLessThanOrEqual(first);
            for (const { line: match, before, after: behind } of page.matches)
              found.push([...before, match, ...behind].map(({ seq }) => seq));
            if (!page.hasMore) break;
            after = page.searchedTo;
          }
          const expected = holds.map(({ seq }) => {
            const at = lines.findIndex((one) => one.seq === seq);
            return lines.slice(Math.max(0, at - context), at + context + 1).map((one) => one.seq);
          });
          expect(found).toEqual(order === 'asc' ? expected : expected.toReversed());
        }

        let whole = '';
        for await (const some of streamLogText(services, job.id, { timestamps: false }))
          whole += some;
        expect(whole).toBe(lines.map(({ message: told }) => `${told}\n`).join(''));
      },
    ),
    { numRuns: 8 },
  );
});

test('a search and a window stay within the allowance', async () => {
  const job = await openJob();
  const wide = { timestamp: new Date(START), message: 'x'.repeat(60_000) };
  await job.append(Array(40).fill(wide));
  const query = { text: 'x', matchCase: false, first: 100, context: 0, order: 'asc' } as const;
  const found = await searchLog(services, job.id, query, allowance(600_000));
  expect(found).toMatchObject({ hasMore: true, searchedTo: 9 });
  expect(found.matches).toHaveLength(9);
  // At least one match, or the search could never continue.
  const { matches } = await searchLog(services, job.id, query, allowance(10));
  expect(matches).toHaveLength(1);
  const part = await readWindow(services, job.id, { first: 40 }, allowance(600_000));
  expect(part).toMatchObject({ hasNewer: true, hasOlder: false, lastSeq: 40 });
  expect(part.entries.map(({ seq }) => seq)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const end = await readWindow(services, job.id, { last: 40 }, allowance(600_000));
  expect(end).toMatchObject({ hasNewer: false, hasOlder: true });
  expect(end.entries.at(-1)?.seq).toBe(40);
});

test('a search ends when its client disconnects', async () => {
  const job = await openJob();
  await job.append([{ timestamp: new Date(START), message: 'x' }]);
  const gone = AbortSignal.abort();
  const query = { text: 'x', matchCase: false, first: 1, context: 0, order: 'asc' } as const;
  // An expected error, which is not logged as a fault of the server.
  const searching = searchLog(services, job.id, query, allowance(), gone);
  await expect(searching).rejects.toMatchObject({ name: 'AppError', status: 503 });
});

test('the usage history of a week takes as much space as the history of an hour, and continues after a restart', async () => {
  const job = await openJob();
  const { attemptId } = await services.db.job.findUniqueOrThrow({ where: { id: job.id } });
  const { pool } = services;
  let history = await openUsageHistory(pool, attemptId ?? '');
  const COUNT = 5_000;
  for (let i = 0; i < COUNT; i++) {
    // At any number of samples, also in the middle of a point.
    if (i % 1_237 === 0) {
      await history.end();
      history = await openUsageHistory(pool, attemptId ?? '');
    }
    await history.add({
      time: new Date(START + i * 5_000),
      gpuPercent: i % 2 ? 100 : 0,
      cpuPercent: 130,
      memoryBytes: i === 2_000 ? 7 * 2 ** 40 : i,
      diskBytes: 5,
    });
  }
  await history.end();
  const samples = await readUsagePoints(services, job.id, {});
  expect(samples.length).toBeGreaterThan(MAX_POINTS / 2 - 1);
  expect(samples.length).toBeLessThanOrEqual(MAX_POINTS);
  expect(samples.at(-1)?.time).toEqual(new Date(START + (COUNT - 1) * 5_000));
  const times = samples.map(({ time }) => +time);
  expect(times).toEqual(times.toSorted((a, b) => a - b));
  // The peak of memory and the mean of the percentages are kept.
  expect(Math.max(...samples.map(({ memoryBytes }) => memoryBytes))).toBe(7 * 2 ** 40);
  // Except where a point was started again.
  const uneven = samples.filter(({ gpuPercent }) => Math.abs(gpuPercent - 50) > 1);
  expect(uneven.length).toBeLessThan(10);
  expect(new Set(samples.map(({ cpuPercent }) => cpuPercent))).toEqual(new Set([100]));
  // Nothing is stored for a job that was deleted in the meantime.
  await services.db.job.delete({ where: { id: job.id } });
  await history.add({ ...(samples[0] as (typeof samples)[number]) });
  await history.end();
  const { rows } = await pool.query('select from attempt_usage where attempt_id = $1', [attemptId]);
  expect(rows).toEqual([]);
});

test('followers at the same position share a read', async () => {
  const job = await openJob();
  const { pool } = services;
  let reads = 0;
  const counted = new Proxy(pool, {
    get: (target, key) => {
      const value = Reflect.get(target, key);
      if (key !== 'query') return typeof value === 'function' ? value.bind(target) : value;
      return (...args: unknown[]) => {
        reads++;
        return value.apply(target, args);
      };
    },
  });
  const told = Array.from({ length: 200 }, async () => {
    let count = 0;
    const steps = followJournal(
      { pool: counted, bus: services.bus },
      job.id,
      0,
      new AbortController().signal,
    );
    for await (const step of steps) if (step.kind === 'entries') count += step.entries.length;
    return count;
  });
  for (let i = 0; i < 10; i++) await job.append([{ timestamp: new Date(), message: `${i}` }]);
  await job.end();
  expect(await Promise.all(told)).toEqual(Array(200).fill(11));
  // Without sharing, 200 followers and about ten wakes would make 2,000 reads or more.
  expect(reads).toBeLessThan(200);
});

test('a job that is deleted while lines arrive leaves no page and no bytes in its namespace', async () => {
  const { db } = services;
  const stored = async () =>
    (await db.namespace.findUniqueOrThrow({ where: { name: 'admin' } })).storageBytes;
  const before = await stored();
  for (let round = 0; round < 5; round++) {
    const job = await openJob();
    const lines = Array.from({ length: 3_000 }, (_, i) => ({
      timestamp: new Date(),
      message: `${i}`.repeat(20),
    }));
    let refused = false;
    const appending = (async () => {
      for (let i = 0; i < 100 && !refused; i++) refused = (await job.append(lines)) === null;
    })();
    const folding = (async () => {
      while (!refused) await compactPages(services, job.id);
    })();
    while ((await pagesOf(job.id)).length === 0);
    await db.job.delete({ where: { id: job.id } });
    await Promise.all([appending, folding]);
    expect(refused).toBe(true);
  }
  // As the maintenance task does, on several servers at once.
  const remove = async () => {
    while (await removeDeletedPages(services));
  };
  await Promise.all([remove(), remove(), remove()]);
  await remove();
  const { rows } = await services.pool.query(
    `select (select count(*)::int from deleted_journals) as noted,
       (select count(*)::int from journal_pages where job_id not in (select id from jobs)) as orphans`,
  );
  expect(rows).toEqual([{ noted: 0, orphans: 0 }]);
  expect(await stored()).toBe(before);
});

test('a batch that another worker has stored is refused and uses no numbers', async () => {
  const job = await openJob();
  await job.append([{ timestamp: new Date(), message: 'a' }]);
  const { attemptId } = await services.db.job.findUniqueOrThrow({ where: { id: job.id } });
  const stale = {
    jobId: job.id,
    attemptId: attemptId ?? '',
    lines: [{ timestamp: new Date(), message: 'a' }],
    newestTime: null,
    from: null,
    to: { stored: 1 },
  };
  expect(await appendLines(services, stale)).toBeNull();
  await job.append([{ timestamp: new Date(), message: 'b' }]);
  const { lines } = await readLogTail(services, job.id, {}, allowance());
  expect(lines.map(({ seq, message: text }) => [seq, text])).toEqual([
    [1, 'a'],
    [2, 'b'],
  ]);
});
