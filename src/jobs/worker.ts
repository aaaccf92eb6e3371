/**
 * The worker of this server: takes jobs from the queue while it has room, and looks after each until it ends.
 *
 * It is one with its data folder, where its attempts have their places: a server that starts on the same
 * folder is the same worker, and goes on with what the last one left. Stopping leaves jobs running.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { lookAfter } from './attempt.ts';
import { loseAttempt } from './ending.ts';
import type { Deps } from './held.ts';
import { type Claim, claimNext, findLost, heartbeat, nextDue } from './queue.ts';

/** A sixth of the silence that others take for death. */
const HEARTBEAT_MS = 10_000;
/** A step that failed (the database was away, the disk full) is tried again after this, doubling. */
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 30_000;

export type Worker = AsyncDisposable;

/** Ends what nobody knows of, takes up what was left, and begins to claim. */
export async function startWorker(deps: Deps): Promise<Worker> {
  const { db, bus, runner, log, config } = deps;
  const id = (await readFile(join(config.dataDir, 'instance-id'), 'utf8')).trim();
  const self = { id, runner: runner.name, offers: runner.offers };
  const stopping = new AbortController();
  const { signal } = stopping;
  const active = new Map<string, { gpu: string; gpuCount: number; done: Promise<void> }>();
  if (runner.warning) log.warn(runner.warning);

  const left = await openAttempts();
  await heartbeat(deps, self);
  await runner.sweep(new Set(left.map(({ attemptId }) => attemptId)));
  for (const attempt of left) adopt(attempt);

  /** All that this worker holds, by the database. */
  async function openAttempts(): Promise<Claim[]> {
    const rows = await db.jobAttempt.findMany({
      where: { workerId: id, endedAt: null },
      select: { id: true, jobId: true, job: { select: { gpu: true, gpuCount: true } } },
      orderBy: { id: 'asc' },
    });
    return rows.map(({ id: attemptId, jobId, job }) => ({ attemptId, jobId, ...job }));
  }

  function adopt({ attemptId, jobId, gpu, gpuCount }: Claim): void {
    const done = persist(`job ${jobId}`, () => lookAfter(deps, attemptId, signal)).finally(() => {
      active.delete(attemptId);
      // There is room again, here.
      bus.hear('queue');
    });
    active.set(attemptId, { gpu, gpuCount, done });
  }

  /** Until it succeeds or we stop: an attempt is never given up, only taken up again. */
  async function persist(what: string, step: () => Promise<void>): Promise<void> {
    for (let pause = FIRST_PAUSE_MS; !signal.aborted; pause = Math.min(pause * 2, MAX_PAUSE_MS)) {
      try {
        return await step();
      } catch (error) {
        if (signal.aborted) return;
        log.error({ err: error }, `${what}: will be tried again in ${pause} ms`);
        await pauseFor(pause);
      }
    }
  }

  /** Or until the database is back, whose absence may be what failed. */
  async function pauseFor(ms: number): Promise<void> {
    const over = AbortSignal.any([signal, AbortSignal.timeout(ms)]);
    for await (const why of bus.wakes('database', over)) if (why === 'wake') return;
  }

  async function claimAll(): Promise<void> {
    for (const [gpu, gpuTotal] of Object.entries(runner.offers)) {
      while (!signal.aborted && active.size < config.jobSlots) {
        let gpuFree = gpuTotal;
        for (const held of active.values()) if (held.gpu === gpu) gpuFree -= held.gpuCount;
        const wanted = { workerId: id, runner: runner.name, gpu, gpuTotal, gpuFree };
        const claim = await claimNext(deps, wanted);
        if (!claim) break;
        adopt(claim);
      }
    }
  }

  const claiming = persist('the queue', async () => {
    let due: NodeJS.Timeout | undefined;
    try {
      // A claim whose commit was never confirmed, because the database went away, may have been made.
      for (const attempt of await openAttempts())
        if (!active.has(attempt.attemptId)) adopt(attempt);
      for await (const _ of bus.wakes('queue', signal)) {
        clearTimeout(due);
        await claimAll();
        const ms =
          active.size < config.jobSlots ? await nextDue(deps, Object.keys(runner.offers)) : null;
        // A pause is a minute at most; what an idle waker would notice needs no timer.
        if (ms !== null) due = setTimeout(() => bus.hear('queue'), Math.min(ms, MAX_PAUSE_MS) + 1);
      }
    } finally {
      clearTimeout(due);
    }
  });

  const beating = (async () => {
    while (!signal.aborted) {
      await delay(HEARTBEAT_MS, undefined, { signal }).catch(() => {});
      if (signal.aborted) return;
      try {
        await heartbeat(deps, self);
        for (const lost of await findLost(deps, id))
          await db.$transaction((tx) => loseAttempt(tx, lost));
      } catch (error) {
        log.error({ err: error }, 'no heartbeat');
      }
    }
  })();

  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await Promise.all([claiming, beating, ...[...active.values()].map(({ done }) => done)]);
    },
  };
}
