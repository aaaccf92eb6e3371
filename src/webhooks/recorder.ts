/** Records the results of attempts in batches, because each commit waits for the disk. */
import type pg from 'pg';
import { Backoff } from '../base/backoff.ts';
import type { Logger } from '../base/log.ts';
import { isDatabaseUnavailable } from '../platform/database/outage.ts';
import type { AttemptRecord } from './delivery/outcomes.ts';
import { openFollowerNotifier } from './following.ts';

/** Results that arrive within this time are recorded in one batch. */
const BATCH_MS = 8;
const BATCH_SIZE = 200;
const PAUSES = { firstMs: 50, longestMs: 2_000 };
/** A webhook is switched off if its attempts have failed for this long. */
const FAILING_DAYS = 5;

export type Result = {
  deliveryId: string;
  webhookId: string;
  /** The URL of the attempt: the result does not count for a URL that the webhook has received since then. */
  url: string;
  /** Attempts before this one. */
  attempts: number;
  /** Null if nothing was sent; then the delivery fails. */
  attempt: AttemptRecord | null;
  status: 'succeeded' | 'pending' | 'failed';
  /** Milliseconds until the next attempt of a pending delivery. */
  delay: number | null;
  /** Whether the endpoint answered 410 Gone. */
  isGone: boolean;
};

export type Recorder = {
  /**
   * Settles when the result is recorded, or another server has recorded a result of the same attempt.
   * @throws Error if the database refuses the result or the recorder was closed before; then the delivery is sent again
   */
  record(result: Result): Promise<void>;
  /** Records the waiting results, unless the database is unavailable. */
  close(): Promise<void>;
};

type PendingResult = { result: Result; resolve: () => void; reject: (error: unknown) => void };

/** @param onSwitchedOff called for each webhook that a recorded result has switched off */
export function openRecorder(
  services: { pool: pg.Pool; log: Logger },
  onSwitchedOff: (webhookId: string) => void,
): Recorder {
  const { log } = services;
  const notifier = openFollowerNotifier(services);
  const closing = new AbortController();
  let waiting: PendingResult[] = [];
  let timer: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;
  let isClosed = false;

  function schedule(): void {
    if (writing || waiting.length === 0) return;
    if (waiting.length >= BATCH_SIZE) start();
    else timer ??= setTimeout(start, BATCH_MS);
  }

  function start(): void {
    clearTimeout(timer);
    timer = undefined;
    if (writing) return;
    const batch = waiting.slice(0, BATCH_SIZE);
    waiting = waiting.slice(BATCH_SIZE);
    writing = write(batch).finally(() => {
      writing = undefined;
      schedule();
    });
  }

  /** Never rejects: it settles each result of the batch. */
  async function write(batch: readonly PendingResult[]): Promise<void> {
    const results = batch.map(({ result }) => result);
    // Only ids are logged: a URL may contain a credential, and the response body is untrusted.
    const deliveries = results.map(({ deliveryId }) => deliveryId);
    const backoff = new Backoff(PAUSES);
    for (;;) {
      try {
        const off = await store(services.pool, results);
        notifier.add(results.map(({ webhookId }) => webhookId));
        for (const { resolve } of batch) resolve();
        for (const id of off) onSwitchedOff(id);
        return;
      } catch (error) {
        const isClosing = closing.signal.aborted;
        if (isDatabaseUnavailable(error) && !isClosing) {
          await backoff.pause(closing.signal);
          continue;
        }
        // A result that the database refuses must not block the rest of the batch.
        if (batch.length > 1 && !isClosing) {
          for (const pending of batch) await write([pending]);
          return;
        }
        if (!isClosing) log.error({ err: error, deliveries }, 'webhook attempts were not recorded');
        for (const { reject } of batch) reject(error);
        return;
      }
    }
  }

  return {
    record(result) {
      if (isClosed) return Promise.reject(new Error('the recorder is closed'));
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      waiting.push({ result, resolve, reject });
      schedule();
      return promise;
    },
    async close() {
      closing.abort();
      while (writing || waiting.length > 0) {
        start();
        await writing;
      }
      isClosed = true;
      await notifier[Symbol.asyncDispose]();
    },
  };
}

const HAS_FAILED_TOO_LONG = `coalesce(webhooks.failing_since < now() - interval '${FAILING_DAYS} days', false)`;

/**
 * The number of attempts is compared, so that an attempt counts once if two servers sent it, because one of them was
 * considered dead. `completed_at` is tested instead of the status: in a burst, before the table is analyzed, a test of the
 * status makes the planner scan the whole index of pending deliveries (170 ms per batch with 100,000 of them, instead of 2).
 * The row of a webhook is written only if it changes.
 */
const STORE = `
  with result as (
    select * from unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::int[], $6::jsonb[], $7::float8[])
      as result (id, attempts, status, outcome, code, tried, delay)
  ), recorded as (
    update deliveries set
      status = result.status::"DeliveryStatus", outcome = coalesce(result.outcome, deliveries.outcome),
      response_status = result.code, attempts = deliveries.attempts + (result.tried is not null)::int,
      tries = deliveries.tries || coalesce(result.tried, '[]'),
      next_attempt_at = clock_timestamp() + make_interval(secs => result.delay / 1000),
      updated_at = clock_timestamp(),
      completed_at = case when result.status <> 'pending' then clock_timestamp() end
    from result
    where deliveries.id = result.id and deliveries.completed_at is null and deliveries.attempts = result.attempts
  )
  update webhooks set
    failing_since = case when state.ok then null else coalesce(webhooks.failing_since, now()) end,
    active = not (state.gone or not state.ok and ${HAS_FAILED_TOO_LONG}),
    off_reason = case when state.gone then 'gone' when not state.ok and ${HAS_FAILED_TOO_LONG} then 'failing' end,
    updated_at = case when state.gone or not state.ok and ${HAS_FAILED_TOO_LONG} then clock_timestamp()
      else webhooks.updated_at end
  from unnest($8::text[], $9::text[], $10::bool[], $11::bool[]) as state (webhook_id, url, ok, gone)
  where webhooks.id = state.webhook_id and webhooks.url = state.url and webhooks.active
    and (state.gone or state.ok = (webhooks.failing_since is not null) or not state.ok and ${HAS_FAILED_TOO_LONG})
  returning webhooks.id, webhooks.active`;

/** @returns the ids of webhooks that were switched off */
async function store(pool: pg.Pool, results: readonly Result[]): Promise<string[]> {
  const states = toEndpointStates(results);
  const { rows } = await pool.query<{ id: string; active: boolean }>({
    name: 'record attempts',
    text: STORE,
    values: [
      results.map(({ deliveryId }) => deliveryId),
      results.map(({ attempts }) => attempts),
      results.map(({ status }) => status),
      results.map(({ attempt }) => attempt?.outcome ?? null),
      results.map(({ attempt }) => attempt?.status ?? null),
      results.map(({ attempt }) => attempt && JSON.stringify(attempt)),
      results.map(({ delay }) => delay),
      states.map(({ webhookId }) => webhookId),
      states.map(({ url }) => url),
      states.map(({ isOk }) => isOk),
      states.map(({ isGone }) => isGone),
    ],
  });
  return rows.flatMap(({ id, active }) => (active ? [] : [id]));
}

type EndpointState = { webhookId: string; url: string; isOk: boolean; isGone: boolean };

/** Combines the results of each endpoint. An endpoint with one success is not failing. */
function toEndpointStates(results: readonly Result[]): EndpointState[] {
  const states = new Map<string, EndpointState>();
  for (const { webhookId, url, attempt, status, isGone } of results) {
    if (!attempt) continue;
    const key = `${webhookId} ${url}`;
    const state = states.getOrInsert(key, { webhookId, url, isOk: false, isGone: false });
    state.isOk ||= status === 'succeeded';
    state.isGone ||= isGone;
  }
  // A webhook whose URL changed has two states; the statement uses the state of its current URL.
  return [...states.values()];
}
