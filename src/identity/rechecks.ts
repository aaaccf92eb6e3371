/**
 * Rechecks the permissions of open streams at least every five seconds, because a credential may be deleted or expire, a
 * member may be removed, or a repository may become private.
 *
 * Checks are shared, so the cost grows with the number of credentials and rules, not of streams: one query per round reads
 * all credentials with their users' roles, and a rule is checked once for all streams with the same credential and key.
 * A stream shows nothing on a check older than five seconds: while the database is unavailable, streams wait.
 */

import type pg from 'pg';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { isDatabaseAway } from '../platform/database/outage.ts';
import { readAccounts, demandValidAccount } from './authenticate.ts';
import type { Account, Viewer } from './permissions.ts';

/** A round may take a second, and a check is valid for five. */
const ROUND_MS = 4_000;
const FRESH_MS = 5_000;
/** Delay after a failed round. */
const RETRY_MS = 500;

/** A condition that must hold while a stream is open. */
export type Rule = {
  /** Streams of one credential with the same key share one check. */
  key: string;
  /** Checks a viewer with its current rights. @throws AppError when access is lost */
  demand(viewer: Viewer): void | Promise<void>;
};

export type Recheck = Disposable & {
  /** Aborts with an AppError as reason when the viewer loses access. */
  readonly refused: AbortSignal;
  /**
   * Call this before each event is shown. Undefined when the last check is fresh, otherwise settles with the next check.
   * @throws AppError when the check fails; `signal.reason` when that aborts
   */
  fresh(signal: AbortSignal): Promise<void> | undefined;
};

export type Rechecks = AsyncDisposable & {
  /** Registers a stream. The caller has just checked the rule for this viewer. */
  watch(viewer: Viewer, rule: Rule): Recheck;
  /** Number of registered streams, for tests. */
  readonly streams: number;
};

/** A check that several streams share. */
type Subject = {
  credential: Account['credential'] | null;
  rule: Rule;
  checkedAt: number;
  streams: Set<AbortController>;
};

export function openRechecks({ pool, log }: { pool: pg.Pool; log: Logger }): Rechecks {
  const subjects = new Map<string, Subject>();
  const closed = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  let round: Promise<void> | undefined;
  /** Settles at the end of the current or next round. */
  let roundEnd = Promise.withResolvers<void>();
  let failing = false;

  /** Schedules the next round, if there are streams. */
  function schedule(ms: number): void {
    clearTimeout(timer);
    const needed = subjects.size > 0 && !closed.signal.aborted;
    timer = needed ? setTimeout(startRound, ms) : undefined;
  }

  function startRound(): void {
    timer = undefined;
    round = checkAll().then(
      () => finishRound(ROUND_MS),
      (error) => {
        if (!failing) log.warn({ err: error }, 'open streams wait because their permissions cannot be checked');
        failing = true;
        finishRound(RETRY_MS);
      },
    );
  }

  function finishRound(nextMs: number): void {
    round = undefined;
    if (nextMs === ROUND_MS) failing = false;
    schedule(nextMs);
    roundEnd.resolve();
    roundEnd = Promise.withResolvers<void>();
  }

  async function checkAll(): Promise<void> {
    const now = Date.now();
    const all = [...subjects.values()];
    const credentials = all.flatMap(({ credential }) => credential ?? []);
    const accounts = await readAccounts(pool, credentials);
    let failure: unknown;
    // In sequence: most rules only look at the account, and the others must not use the whole pool.
    for (const subject of all) {
      const { credential, rule, streams } = subject;
      try {
        await rule.demand(credential ? demandValidAccount(accounts.get(credential.id)) : ANONYMOUS);
        subject.checkedAt = now;
      } catch (error) {
        if (isDatabaseAway(error)) throw error;
        if (error instanceof AppError) for (const stream of streams) stream.abort(error);
        else failure = error;
      }
    }
    if (failure) throw failure;
  }

  async function waitUntilFresh(subject: Subject, ended: AbortSignal): Promise<void> {
    while (!isFresh(subject)) {
      await Promise.race([roundEnd.promise, whenAborted(ended)]);
      ended.throwIfAborted();
    }
  }

  return {
    watch(viewer, rule) {
      const credential = viewer.kind === 'account' ? viewer.credential : null;
      const key = `${credential?.id ?? ''} ${rule.key}`;
      const subject = subjects.get(key) ?? {
        credential,
        rule,
        checkedAt: Date.now(),
        streams: new Set(),
      };
      subjects.set(key, subject);
      const stream = new AbortController();
      subject.streams.add(stream);
      if (!timer && !round) schedule(ROUND_MS);
      return {
        refused: stream.signal,
        fresh(signal) {
          stream.signal.throwIfAborted();
          if (isFresh(subject)) return undefined;
          return waitUntilFresh(subject, AbortSignal.any([signal, stream.signal, closed.signal]));
        },
        [Symbol.dispose]() {
          subject.streams.delete(stream);
          if (subject.streams.size > 0 || subjects.get(key) !== subject) return;
          subjects.delete(key);
          if (subjects.size === 0) schedule(ROUND_MS);
        },
      };
    },
    get streams() {
      return subjects.values().reduce((sum, { streams }) => sum + streams.size, 0);
    },
    async [Symbol.asyncDispose]() {
      closed.abort();
      clearTimeout(timer);
      await round;
    },
  };
}

const ANONYMOUS: Viewer = { kind: 'anonymous' };

function isFresh({ checkedAt: askedAt }: Subject): boolean {
  return Date.now() - askedAt <= FRESH_MS;
}

function whenAborted(signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  signal.addEventListener('abort', () => resolve(), { once: true });
  if (signal.aborted) resolve();
  return promise;
}

/**
 * Yields the events of `open` while the viewer has access. The caller has checked access before.
 * @throws AppError 401, 403, 404 when the viewer loses access
 */
export async function* whileAllowed<T>(
  { rechecks }: { rechecks: Rechecks },
  viewer: Viewer,
  rule: Rule,
  signal: AbortSignal,
  open: (ended: AbortSignal) => AsyncIterable<T>,
): AsyncGenerator<T> {
  using right = rechecks.watch(viewer, rule);
  const { refused } = right;
  try {
    for await (const event of open(AbortSignal.any([signal, refused]))) {
      const wait = right.fresh(signal);
      if (wait) await wait;
      yield event;
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  refused.throwIfAborted();
}
