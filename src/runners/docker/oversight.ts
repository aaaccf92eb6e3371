/**
 * Seeing a container through to its end: its timeout, the grace after SIGTERM, what it may keep on the disk.
 *
 * All of it follows from what is written down (when the gate was opened, when and why it was told to end), so a server
 * that is started again goes on with it. The engine tells of the end at once, and is asked every few seconds all the same: the
 * request for it never settles when the engine dies.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Outcome, RunnerAway } from '../runner.ts';
import { type Engine, isStatus } from './engine.ts';
import {
  type ContainerState,
  mayBeLost,
  outcomeOf,
  overran,
  restartedSince,
  seenExit,
  stateOf,
  withRecorded,
} from './outcome.ts';
import { type AttemptRecord, readRecord, type Stop, writeRecord } from './place.ts';
import { processesOf, terminate } from './processes.ts';
import type { Recordings } from './recordings.ts';
import { noteTold, opening } from './start-barrier.ts';

/** How often the engine is asked. */
const LOOK_MS = 5_000;
/** A process in the middle of a slow write dies late. */
const KILLED_MS = 500;
/** An engine that does not answer is asked again after this. */
const AWAY_MS = 500;
/** One that is upgraded is back by then. */
export const PATIENCE_MS = 60_000;

export type Overseen = {
  attempt: string;
  engine: Engine;
  container: string;
  place: string;
  graceMs: number;
  /** How long an engine is away before it is not waited for by those whose end it would only tell. */
  patienceMs: number;
  /** Whether its processes are of this machine; false until that is known. */
  isLocal(): boolean;
  recordings: Recordings;
};

/**
 * Settles when the container has ended, with how. What it is to be ended for is written down first (`stop`).
 * @throws the reason of `signal` when it aborts
 */
export async function untilEnded(
  overseen: Overseen,
  changed: (signal: AbortSignal) => Promise<void>,
  signal: AbortSignal,
): Promise<Outcome> {
  const { attempt, engine, container, place, graceMs, patienceMs, recordings } = overseen;
  const record = await readRecord(place, 'attempt');
  if (!record) return { kind: 'lost' };
  let wasAway = false;
  let awaySince = Number.POSITIVE_INFINITY;
  for (;;) {
    signal.throwIfAborted();
    try {
      const state = await stateOf(engine, container);
      awaySince = Number.POSITIVE_INFINITY;
      const refused = await readRecord(place, 'unstartable');
      const stop = await readRecord(place, 'stop');
      const opened = await opening(place);
      if (!state) return { kind: 'lost' };
      if (refused || state.status === 'ended') {
        const exit = opened?.recorded ? await recordings.settle(attempt, signal) : undefined;
        const unheard = exit?.unheard ?? false;
        const isRecorded = opened?.recorded && (unheard || !recordings.isUnused(attempt));
        const seen = unheard ? await seenExit(engine, state) : undefined;
        const ended = isRecorded ? withRecorded(state, exit, seen) : state;
        if (!ended) return { kind: 'lost' };
        const openedAt = opened?.at ?? null;
        const overdue = overran(record, ended, openedAt);
        const mayBe = !refused && !stop && mayBeLost(ended) && !overdue;
        if (mayBe && (wasAway || (await restartedSince(engine, state)))) return { kind: 'lost' };
        return outcomeOf({ record, state: ended, openedAt, stop, refused });
      }
      const now = Date.now();
      const trouble = opened?.recorded ? await recordings.trouble(attempt) : undefined;
      if (trouble && !stop)
        await end(overseen, { how: 'KILL', why: 'disk', at: now, note: trouble.reason });
      const due = stop
        ? stop.at + (stop.how === 'KILL' ? 0 : graceMs)
        : (opened?.at ?? Number.POSITIVE_INFINITY) + record.timeoutMs;
      if (now >= due && stop) {
        await send(overseen, 'KILL', state);
        await eitherOf(overseen, changed, KILLED_MS, signal);
      } else if (now >= due) await end(overseen, { how: 'TERM', why: 'timeout', at: now });
      else await eitherOf(overseen, changed, Math.min(LOOK_MS, due - now), signal);
    } catch (error) {
      if (!(error instanceof RunnerAway)) throw error;
      wasAway = true;
      awaySince = Math.min(awaySince, Date.now());
      if (Date.now() - awaySince > patienceMs && (await isOverWithout(overseen, record)))
        return { kind: 'lost', unreachable: true };
      await delay(AWAY_MS, undefined, { signal });
    }
  }
}

/**
 * Whether an attempt whose engine is away need not be waited for: nobody wants it any more, or its own watchdog has surely
 * ended it. Else it may run on, and must not run twice. What is left of it is removed when the engine is back.
 */
async function isOverWithout(
  { place, graceMs, patienceMs }: Overseen,
  { timeoutMs }: AttemptRecord,
): Promise<boolean> {
  const stop = await readRecord(place, 'stop');
  const opened = await opening(place);
  const isUnwanted = stop?.why === 'asked' && Date.now() > stop.at + graceMs;
  // On another machine it waits for a grace before its own SIGTERM (`gate.ts`).
  const last = (opened?.at ?? Number.POSITIVE_INFINITY) + timeoutMs + 2 * graceMs + patienceMs;
  return isUnwanted || Date.now() > last;
}

/** The last to write down for each place: a timeout, a full disk and a cancel can come at once. */
const noting = new Map<string, Promise<void>>();

/** Tells it to end: written down, then sent. The first reason stands; a KILL is more than a TERM. */
export async function end(overseen: Overseen, stop: Stop): Promise<void> {
  const { place } = overseen;
  const before = noting.get(place) ?? Promise.resolve();
  const noted = before.catch(() => {}).then(() => note(place, stop));
  noting.set(place, noted);
  try {
    await noted;
  } finally {
    if (noting.get(place) === noted) noting.delete(place);
  }
  await noteTold(place);
  await send(overseen, stop.how);
}

async function note(place: string, stop: Stop): Promise<void> {
  const before = await readRecord(place, 'stop');
  if (!before || (before.how === 'TERM' && stop.how === 'KILL'))
    await writeRecord(place, 'stop', before ? { ...before, how: stop.how } : stop);
}

async function send(
  { engine, container, isLocal }: Overseen,
  how: 'TERM' | 'KILL',
  known?: ContainerState,
): Promise<void> {
  if (how === 'TERM') {
    const state = known ?? (await stateOf(engine, container));
    const pids = isLocal() && process.getuid?.() === 0 ? processesOf(state?.pid ?? 0) : [];
    if (pids.length > 0) return terminate(pids);
  }
  try {
    await engine.call((docker) => docker.getContainer(container).kill({ signal: `SIG${how}` }));
  } catch (error) {
    // It is gone, or does not run any more.
    if (!isStatus(error, 404, 409)) throw error;
  }
}

/** Settles when the container has ended, something else has changed, or so much time has passed. */
async function eitherOf(
  { engine, container }: Overseen,
  changed: (signal: AbortSignal) => Promise<void>,
  ms: number,
  signal: AbortSignal,
): Promise<void> {
  const over = new AbortController();
  const abortSignal = AbortSignal.any([signal, over.signal]);
  const ended = engine.docker
    .getContainer(container)
    .wait({ condition: 'not-running', abortSignal } as object)
    // It is asked for anew; an engine that is away must not be asked in a loop.
    .catch(() => delay(AWAY_MS, undefined, { signal: abortSignal }).catch(() => {}));
  await Promise.race([ended, changed(abortSignal), delay(ms, undefined, { signal: abortSignal })])
    .catch(() => {})
    .finally(() => over.abort());
}
