/**
 * Rechecks the permissions of open streams at least every five seconds, because a credential may be deleted or expire,
 * a member may be removed, or a repository may become private.
 *
 * Checks are shared, so the cost grows with the number of credentials and rules, not of streams: one query per round
 * reads all credentials with their users' roles, and a rule is checked once for all streams with the same credential
 * and key. A stream sends nothing based on a check older than five seconds, so streams wait while the database is
 * unavailable.
 */

import type pg from 'pg';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { isDatabaseUnavailable } from '../platform/database/outage.ts';
import { runLoop } from '../platform/loop.ts';
import { demandValidAccount, readAccounts } from './authenticate.ts';
import type { Account, Viewer } from './permissions.ts';

/** A round may take a second, and a check is valid for five seconds. */
const ROUND_MS = 4_000;
const FRESH_MS = 5_000;
/** Pauses after a failed round. */
const PAUSES = { firstMs: 500, longestMs: 500 };

/** A condition that must hold while a stream is open. */
export type AccessRule = {
  /** Streams of one credential with the same key share one check. */
  key: string;
  /** Checks a viewer with its current rights. @throws AppError when access is lost */
  demand(viewer: Viewer): void | Promise<void>;
};

export type Recheck = Disposable & {
  /** Aborts with an AppError as reason when the viewer loses access. */
  readonly refused: AbortSignal;
  /**
   * Must be called before each event is sent. Returns undefined if the last check is fresh, otherwise a promise that
   * settles with the next check.
   * @throws AppError if the check fails; the reason of `signal` if it aborts
   */
  waitForFreshCheck(signal: AbortSignal): Promise<void> | undefined;
};

/** A check that several streams share. */
type SharedCheck = {
  credential: Account['credential'] | null;
  rule: AccessRule;
  checkedAt: number;
  streams: Set<AbortController>;
};

export class Rechecks implements AsyncDisposable {
  readonly #pool: pg.Pool;
  readonly #log: Logger;
  /** By credential and key of the rule. */
  readonly #checks = new Map<string, SharedCheck>();
  readonly #closed = new AbortController();
  /** Starts with the first stream. */
  #rounds: Promise<void> | undefined;
  /** Settles at the end of the current or next round. */
  #roundEnd = Promise.withResolvers<void>();

  constructor({ pool, log }: { pool: pg.Pool; log: Logger }) {
    this.#pool = pool;
    this.#log = log;
  }

  /** Registers a stream. The caller has just checked the rule for this viewer. */
  watch(viewer: Viewer, rule: AccessRule): Recheck {
    const credential = viewer.kind === 'account' ? viewer.credential : null;
    const key = `${credential?.id ?? ''} ${rule.key}`;
    const check = this.#checks.get(key) ?? {
      credential,
      rule,
      checkedAt: Date.now(),
      streams: new Set(),
    };
    this.#checks.set(key, check);
    const stream = new AbortController();
    check.streams.add(stream);
    this.#rounds ??= this.#startRounds();
    return {
      refused: stream.signal,
      waitForFreshCheck: (signal) => {
        stream.signal.throwIfAborted();
        if (isFresh(check)) return undefined;
        const ended = AbortSignal.any([signal, stream.signal, this.#closed.signal]);
        return this.#waitUntilFresh(check, ended);
      },
      [Symbol.dispose]: () => this.#remove(key, check, stream),
    };
  }

  /** Number of registered streams, for tests. */
  get streams(): number {
    return this.#checks.values().reduce((sum, { streams }) => sum + streams.size, 0);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort();
    await this.#rounds;
  }

  #remove(key: string, check: SharedCheck, stream: AbortController): void {
    check.streams.delete(stream);
    if (check.streams.size > 0 || this.#checks.get(key) !== check) return;
    this.#checks.delete(key);
  }

  #startRounds(): Promise<void> {
    return runLoop(
      {
        name: 'Rechecking the permissions of open streams',
        every: ROUND_MS,
        waitsFirst: true,
        backoff: PAUSES,
        signal: this.#closed.signal,
        log: this.#log,
      },
      () => this.#runRound(),
    );
  }

  async #runRound(): Promise<void> {
    if (this.#checks.size === 0) return;
    try {
      await this.#checkAll();
    } finally {
      this.#roundEnd.resolve();
      this.#roundEnd = Promise.withResolvers<void>();
    }
  }

  async #checkAll(): Promise<void> {
    const now = Date.now();
    const checks = [...this.#checks.values()];
    const credentials = checks.flatMap(({ credential }) => credential ?? []);
    const accounts = await readAccounts(this.#pool, credentials);
    let failure: unknown;
    // Checked one after another, because most rules look only at the account, and rules that query the database must not occupy
    // the whole pool.
    for (const check of checks) {
      const { credential, rule, streams } = check;
      try {
        await rule.demand(credential ? demandValidAccount(accounts.get(credential.id)) : ANONYMOUS);
        check.checkedAt = now;
      } catch (error) {
        if (isDatabaseUnavailable(error)) throw error;
        if (error instanceof AppError) for (const stream of streams) stream.abort(error);
        else failure = error;
      }
    }
    if (failure) throw failure;
  }

  async #waitUntilFresh(check: SharedCheck, ended: AbortSignal): Promise<void> {
    while (!isFresh(check)) {
      await Promise.race([this.#roundEnd.promise, whenAborted(ended)]);
      ended.throwIfAborted();
    }
  }
}

export function openRechecks(services: { pool: pg.Pool; log: Logger }): Rechecks {
  return new Rechecks(services);
}

const ANONYMOUS: Viewer = { kind: 'anonymous' };

function isFresh({ checkedAt }: SharedCheck): boolean {
  return Date.now() - checkedAt <= FRESH_MS;
}

function whenAborted(signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  signal.addEventListener('abort', () => resolve(), { once: true });
  if (signal.aborted) resolve();
  return promise;
}

/**
 * Yields the events of `open` while the viewer has access. The caller must have checked access before.
 * @throws AppError 401, 403, 404 when the viewer loses access
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
