/**
 * Open streams ask again, at least every five seconds, whether their viewer may still see what they show:
 * meanwhile a credential is deleted or expires, a member is removed, a repository is closed.
 *
 * The asking is shared, so that it costs by the number of credentials and subjects and not of streams: one
 * query a round reads all credentials with their users' roles, and a rule is asked once for all streams of one
 * credential that share its key. Nothing is shown on an answer older than five seconds: while the database
 * cannot be asked, streams wait.
 */

import type pg from 'pg';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { isDatabaseUnavailable } from '../platform/database/outage.ts';
import { demandValidAccount, readAccounts } from './authenticate.ts';
import type { Account, Viewer } from './permissions.ts';

/** A round may take a second, and its answers are good for five. */
const ROUND_MS = 4_000;
const FRESH_MS = 5_000;
/** After a round that failed. */
const RETRY_MS = 500;

/** What must hold for as long as a stream is open. */
export type AccessRule = {
  /** Streams of one credential with the same key share the answer. */
  key: string;
  /** Is given the viewer with the rights of this moment. @throws AppError when it may not see this any more */
  demand(viewer: Viewer): void | Promise<void>;
};

export type Recheck = Disposable & {
  /** Aborts, with the AppError as its reason, when the viewer may not see it any more. */
  readonly refused: AbortSignal;
  /**
   * To be called before something is shown. Undefined: the last answer is fresh. Else settles with the next one.
   * @throws AppError when it is a refusal; `signal.reason` when that aborts
   */
  waitForFreshCheck(signal: AbortSignal): Promise<void> | undefined;
};

export type Rechecks = AsyncDisposable & {
  /** For a viewer that has just been found to be allowed. */
  watch(viewer: Viewer, rule: AccessRule): Recheck;
  /** How many checks are registered. Tests see here whether one was not removed. */
  readonly streams: number;
};

type Subject = {
  credential: Account['credential'] | null;
  rule: AccessRule;
  checkedAt: number;
  streams: Set<AbortController>;
};

export function openRechecks({ pool, log }: { pool: pg.Pool; log: Logger }): Rechecks {
  const subjects = new Map<string, Subject>();
  const closed = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  let round: Promise<void> | undefined;
  /** Settles with the round that is under way or next. */
  let roundEnd = Promise.withResolvers<void>();
  let failing = false;

  /** The next round comes a while after this one, for as long as there is a stream. */
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
        if (!failing) log.warn({ err: error }, 'open streams wait: their rights cannot be asked');
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
    // One after the other: most rules only look at the account, and the rest must not take the whole pool.
    for (const subject of all) {
      const { credential, rule, streams } = subject;
      try {
        await rule.demand(credential ? demandValidAccount(accounts.get(credential.id)) : ANONYMOUS);
        subject.checkedAt = now;
      } catch (error) {
        if (isDatabaseUnavailable(error)) throw error;
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
        waitForFreshCheck(signal) {
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
 * What `open` yields, for as long as the viewer may see it; whoever has opened it was found to be allowed.
 * @throws AppError 401, 403, 404 when it ends because the viewer may not any more
 */
export async function* whileAllowed<T>(
  { rechecks }: { rechecks: Rechecks },
  viewer: Viewer,
  rule: AccessRule,
  signal: AbortSignal,
  open: (ended: AbortSignal) => AsyncIterable<T>,
): AsyncGenerator<T> {
  using right = rechecks.watch(viewer, rule);
  const { refused } = right;
  try {
    for await (const event of open(AbortSignal.any([signal, refused]))) {
      const wait = right.waitForFreshCheck(signal);
      if (wait) await wait;
      yield event;
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  refused.throwIfAborted();
}
