/**
 * The worker of this server: takes jobs from the queue while it has room, and looks after each until it ends.
 *
 * It is one with its data folder, where its attempts have their places: a server that starts on the same
 * folder is the same worker, and goes on with what the last one left. Stopping leaves jobs running.
 *
 * No attempt holds a slot for ever. While the database is away or the machine is short of something, its steps
 * are repeated. What fails for any other reason fails the job after about a minute. And removing what the runner
 * made takes ten seconds of the slot's time at most; where it fails or takes longer it goes on without the slot. A job
 * that has not begun on a machine that does not answer is queued again after a minute.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { isDatabaseAway } from '../../platform/database/outage.ts';
import { kindsOf, type Machine, RunnerAway } from '../../runners/runner.ts';
import { offersOf, runsImages } from '../worker-capacity.ts';
import { admit, openPools, type Reservation, type Reservations } from './admission.ts';
import { giveUp, superviseAttempt } from './attempt.ts';
import type { Deps } from './attempt-row.ts';
import { type Claim, claimJobs, type Locked, openSkipList, type Waiting } from './claim.ts';
import { loseAttempt, returnToQueue } from './finish.ts';
import { openPeerWorkers } from './peer-workers.ts';
import { findLost, heartbeat, nextDue } from './queue.ts';
import { isPassing, PAUSES, type Pauses, retry } from './retry.ts';

/** A sixth of the silence that others take for death. */
const HEARTBEAT_MS = 10_000;
/** Failures of an attempt, one after the other, that end it: with the pauses between them, about a minute. */
const MAX_FAILURES = 8;
/** Of those that pass by themselves: about a quarter of an hour. */
const MAX_PASSING_FAILURES = 36;
/** A try that went on for so long had worked, and what failed before it no longer counts. */
const WORKED_MS = 60_000;
/** A machine that does not answer for longer is not waited for by what has not begun there; an engine that is upgraded is back. */
const AWAY_MS = 60_000;
/** Removing takes a slot's time up to this, so that it keeps up with starting. */
const REMOVAL_MS = 10_000;

export type Worker = AsyncDisposable & {
  /** How many of its slots are taken. */
  readonly used: number;
};

/** What an attempt takes of which machine. */
type Share = Reservation & { done: Promise<void> };

/** Until jobs are looked at again that somebody else has locked. */
const LOCKED_MS = 500;

/** Between two looks when the next job is due that waits for its time: each claim would ask else. */
const DUE_MS = 250;

/** How far a claim looks: one that finds room for all, and one after some did not fit, about 3 ms. */
const SHORT_LOOK = 16;
const LONG_LOOK = { lines: 32, depth: 64 };

/** Ends what nobody knows of, takes up what was left, and begins to claim. */
export async function startWorker(
  deps: Deps,
  { pauses = PAUSES, awayMs = AWAY_MS }: { pauses?: Pauses; awayMs?: number } = {},
): Promise<Worker> {
  const { db, bus, runner, log, config, space, metrics } = deps;
  const { id } = deps.cluster.members;
  const { jobSlots: slots } = config;
  const kinds = kindsOf(runner);
  // What has no slots is offered to nobody.
  const machinesNow = () => (slots > 0 ? runner.machines : []);
  const self = {
    id,
    runner: runner.name,
    kinds,
    get machines() {
      return slots > 0 ? offersOf(runner) : [];
    },
  };
  const others = openPeerWorkers(deps, id, HEARTBEAT_MS);
  const stopping = new AbortController();
  const { signal } = stopping;
  const repeating = { bus, log, signal, pauses };
  /** Each holds a slot. */
  const active = new Map<string, Share>();
  /** Over, and not yet removed: no slot, but GPUs are another's only when the process is surely gone. */
  const leaving = new Map<string, Share>();
  let reservations: Reservations = new Map();
  /** Nothing waits for room on this worker's machines: more of it is of no use until somebody comes. */
  let isDrained = false;
  /** During a claim, freed capacity only sets `hasNewRoom`, because the result of the claim overwrites `isDrained`. */
  let isClaiming = false;
  let hasNewRoom = false;
  /** What a sweep spares; it looks while it goes. */
  const known = new Set<string>();
  if (runner.warning) log.warn(runner.warning);

  for (const machine of machinesNow()) log.info(describeMachine(machine, slots));

  const left = await openAttempts();
  await heartbeat(deps, self);
  await others.look();
  for (const { attemptId } of left) known.add(attemptId);
  const sweeping = removal('what nobody knows of', () => runner.sweep(known));
  await sweeping.tried;
  for (const attempt of left) adopt(attempt);

  /** All that this worker holds, by the database. */
  async function openAttempts(): Promise<Claim[]> {
    const rows = await db.jobAttempt.findMany({
      where: { workerId: id, runner: { in: [...kinds] }, endedAt: null },
      select: {
        id: true,
        jobId: true,
        machine: true,
        job: { select: { gpu: true, gpuCount: true, cpu: true, memoryGb: true } },
      },
      orderBy: { id: 'asc' },
    });
    return rows.map(({ id: attemptId, jobId, machine, job }) => ({
      attemptId,
      jobId,
      machine,
      ...job,
    }));
  }

  function adopt({ attemptId, jobId, ...share }: Claim): void {
    known.add(attemptId);
    const done = attend({ attemptId, jobId, machine: share.machine })
      .then((over) => (over ? leave(attemptId, share) : undefined))
      .finally(() => {
        active.delete(attemptId);
        roomAgain();
      });
    active.set(attemptId, { ...share, done });
  }

  /** @returns whether the attempt is over; not, when the server stops */
  async function attend(attempt: Pick<Claim, 'attemptId' | 'jobId' | 'machine'>): Promise<boolean> {
    const { attemptId, jobId, machine } = attempt;
    let failures = 0;
    let awaySince = Number.POSITIVE_INFINITY;
    const over = await retry(
      `job ${jobId}`,
      async () => {
        const begun = Date.now();
        try {
          return await superviseAttempt(deps, { attemptId, jobId }, signal);
        } catch (error) {
          if (signal.aborted || isDatabaseAway(error)) throw error;
          const isThere = machinesNow().some((one) => one.id === machine);
          const isAway = error instanceof RunnerAway && !isThere;
          awaySince = isAway ? Math.min(awaySince, Date.now()) : Number.POSITIVE_INFINITY;
          if (Date.now() - awaySince > awayMs && (await returnToQueue(deps, attempt))) {
            metrics.attemptEnded('lost');
            return true;
          }
          if (error instanceof RunnerAway) throw error;
          failures = Date.now() - begun > WORKED_MS ? 1 : failures + 1;
          if (failures < (isPassing(error) ? MAX_PASSING_FAILURES : MAX_FAILURES)) throw error;
          log.error({ err: error, job: jobId }, 'an attempt is given up');
          return endForGood(attemptId, jobId, error);
        }
      },
      repeating,
    );
    return over ?? false;
  }

  /** @throws Error while the database is away; then the attempt fails once more, and it is tried again */
  async function endForGood(attemptId: string, jobId: string, cause: unknown): Promise<true> {
    try {
      await giveUp(deps, attemptId, cause);
    } catch (error) {
      if (isDatabaseAway(error)) throw error;
      // The next start takes it up again; until then it must not keep others from running.
      log.error({ err: error, job: jobId }, 'the end of an attempt was not recorded');
    }
    return true;
  }

  /** Settles when there is nothing left of the attempt, or when waiting for that would hold its slot too long. */
  async function leave(attemptId: string, share: Omit<Share, 'done'>): Promise<void> {
    const { done, tried } = removal(`attempt ${attemptId}`, () =>
      runner.remove({ attempt: attemptId }),
    );
    const gone = done.then(() => {
      leaving.delete(attemptId);
      known.delete(attemptId);
      roomAgain();
    });
    leaving.set(attemptId, { ...share, done: gone });
    await tried;
  }

  /** `tried` settles when it is done, has failed once, or has taken ten seconds. */
  function removal(what: string, remove: () => Promise<void>) {
    const once = Promise.withResolvers<void>();
    const done = retry(
      `removing ${what}`,
      () => remove().finally(() => once.resolve()),
      repeating,
    ).then(() => {});
    const late = new AbortController();
    const tried = Promise.race([
      once.promise,
      // The server stops, and it is not tried any more.
      done,
      delay(REMOVAL_MS, undefined, { signal: late.signal }).catch(() => {}),
    ]).finally(() => late.abort());
    return { done, tried };
  }

  /** Here; elsewhere nobody has more of it. */
  function roomAgain(): void {
    if (isClaiming) hasNewRoom = true;
    else if (!isDrained) bus.notify('queue');
  }

  /** @returns whether somebody else has locked a job that had its turn: nothing tells when that is over */
  async function claimAll(): Promise<boolean> {
    const locked = openSkipList();
    isDrained = false;
    isClaiming = true;
    hasNewRoom = false;
    try {
      // A job that begins writes; there is a call when there is space again.
      if (!space.low) isDrained = await claimWithout(locked);
    } finally {
      isClaiming = false;
    }
    if (hasNewRoom) roomAgain();
    return locked.jobs.size > 0;
  }

  /** @returns whether it saw all that waits for this worker's machines, and has it */
  async function claimWithout(locked: Locked): Promise<boolean> {
    let hasLooked = false;
    for (let long = reservations.size > 0; !signal.aborted; ) {
      const slotsFree = slots - active.size;
      const held = holdings();
      const offers = self.machines;
      const machines = offers.filter(({ away }) => !away);
      const elsewhere = [...others.machines, ...offers.filter(({ away }) => away)];
      const pools = openPools({ machines, slots, held });
      if (slotsFree <= 0 || pools.size === 0) return false;
      const most = Math.min(slotsFree, SHORT_LOOK);
      let passedOver = false;
      let mustLook = false;
      let admitted: readonly Waiting[] = [];
      const claims = await claimJobs(deps, {
        workerId: id,
        runner: runner.name,
        pools,
        ...(long ? LONG_LOOK : { lines: most, depth: most }),
        reserved: reservations.values(),
        without: locked,
        decide(lines, reserved) {
          const room = { machines, elsewhere, slots, slotsFree, held };
          const decision = admit<Waiting>({ ...room, lines, reserved });
          // It would fail them because nobody runs images, and somebody who does may just have come.
          const hasImages = decision.admitted.some(({ job }) => job.image !== null);
          mustLook = hasImages && !hasLooked && !runsImages([...machines, ...elsewhere]);
          if (mustLook) return [];
          ({ reservations, passedOver } = decision);
          admitted = decision.admitted.map(({ job }) => job);
          return decision.admitted;
        },
      });
      if (mustLook) {
        await others.look();
        hasLooked = true;
        continue;
      }
      for (const { region, waited, ...claim } of claims) {
        metrics.jobClaimed({ gpu: claim.gpu, region }, waited);
        adopt(claim);
      }
      const isLocked = claims.length < admitted.length;
      if (isLocked) locked.add(admitted, claims);
      // It saw all that waits in them, and has it: who comes later wakes us.
      if (!long && !passedOver && admitted.length < most && !isLocked)
        return locked.jobs.size === 0 && hasAll(pools, openPools({ machines, slots, held: [] }));
      if (claims.length > 0 || isLocked) continue;
      if (long || !passedOver) return false;
      long = true;
    }
    return false;
  }

  /** An attempt that leaves and has its slot still counts as one that has not ended. */
  function holdings(): Reservation[] {
    const over = [...leaving].filter(([attemptId]) => !active.has(attemptId));
    return [...active.values(), ...over.map(([, share]) => ({ ...share, leaving: true }))];
  }

  let askedAt = Number.NEGATIVE_INFINITY;

  /** Until the queue is to be looked at again for jobs that wait for their time, in ms; null: none does. */
  async function untilDue(): Promise<number | null> {
    const early = askedAt + DUE_MS - performance.now();
    if (early > 0) return early;
    askedAt = performance.now();
    const models = new Set(machinesNow().flatMap((m) => ['none', ...Object.keys(m.gpus)]));
    return nextDue(deps, [...models]);
  }

  const claiming = retry(
    'the queue',
    async () => {
      let due: NodeJS.Timeout | undefined;
      try {
        // A claim whose commit was never confirmed, because the database went away, may have been made.
        for (const attempt of await openAttempts())
          if (!active.has(attempt.attemptId) && !leaving.has(attempt.attemptId)) adopt(attempt);
        for await (const _ of bus.wakes('queue', signal)) {
          clearTimeout(due);
          const isLocked = await claimAll();
          const ms = active.size < slots ? await untilDue() : null;
          // A pause is a minute at most; what an idle waker would notice needs no timer.
          const soon = Math.min(
            ms ?? Number.POSITIVE_INFINITY,
            isLocked ? LOCKED_MS : pauses.longestMs,
          );
          if (ms !== null || isLocked) due = setTimeout(() => bus.notify('queue'), soon + 1);
        }
      } finally {
        clearTimeout(due);
      }
    },
    repeating,
  );

  async function repeat(what: string, work: () => Promise<void>): Promise<void> {
    while (!signal.aborted) {
      await delay(HEARTBEAT_MS, undefined, { signal }).catch(() => {});
      if (signal.aborted) return;
      await work().catch((error) => log.error({ err: error }, what));
    }
  }

  let before = '';
  const beating = repeat('no heartbeat', async () => {
    await heartbeat(deps, self);
    const there = machinesNow()
      .map((machine) => machine.id)
      .join();
    // One that is back has room.
    if (there !== before) bus.notify('queue');
    before = there;
    // What was left to one that is gone is looked at again.
    if (await others.look()) bus.notify('queue');
  });

  // By itself, because it waits for jobs that others may have locked, and others take silence for death.
  const recovering = repeat('lost attempts were not looked for', async () => {
    for (const lost of await findLost(deps, self))
      await loseAttempt(deps, lost).then(
        (isLost) => isLost && metrics.attemptEnded('lost'),
        // It is found again at the next look, and keeps no other from being recovered.
        (error) => log.warn({ err: error, job: lost.jobId }, 'a lost attempt is still held'),
      );
  });

  return {
    get used() {
      return active.size;
    },
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await Promise.all([claiming, beating, recovering, sweeping.done]);
      await Promise.all([...active.values()].map(({ done }) => done));
      await Promise.all([...leaving.values()].map(({ done }) => done));
    },
  };
}

function hasAll(pools: ReadonlyMap<string, number>, all: ReadonlyMap<string, number>): boolean {
  return [...all].every(([model, count]) => pools.get(model) === count);
}

/** For the operator, at the start: what jobs have, and what becomes of those that ask for more. */
function describeMachine({ id, cpus, memoryBytes, gpus }: Machine, slots: number): string {
  const memory = `${(memoryBytes / 2 ** 30).toFixed(1)} GB`;
  const models = Object.entries(gpus).map(([model, count]) => `, ${count} × ${model}`);
  return (
    `Jobs have ${cpus} vCPUs, ${memory}${models.join('')} of the machine "${id}"; ` +
    `those that ask for more get that, and up to ${slots} of them share it`
  );
}
