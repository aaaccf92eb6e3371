/** Records what came of attempts, many in one statement, because each commit waits for the disk. */
import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Logger } from '../base/log.ts';
import { isDatabaseAway } from '../platform/database/outage.ts';
import type { Try } from './delivery/outcomes.ts';

/** What ends within so many milliseconds is recorded together. */
const GATHER_MS = 8;
const BATCH = 200;
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 2_000;
/** After so long without a success a webhook is switched off (decisions, section 5). */
const FAILING_DAYS = 5;

export type Result = {
  deliveryId: string;
  webhookId: string;
  /** Where it was sent: what came of it says nothing about another address that the webhook has by now. */
  url: string;
  /** Attempts before this one. */
  attempts: number;
  /** Null: nothing was sent, and the delivery fails as it is. */
  tried: Try | null;
  status: 'succeeded' | 'pending' | 'failed';
  /** Milliseconds until the next attempt of what is pending. */
  delay: number | null;
  /** The endpoint said that it is gone for ever. */
  gone: boolean;
};

export type Recorder = {
  /**
   * Settles when it is recorded, or was by another server.
   * @throws Error when the database refuses it, and when the recorder was closed first: it will be sent again
   */
  record(result: Result): Promise<void>;
  /** Records what it has, unless the database is away. */
  close(): Promise<void>;
};

type Waiting = { result: Result; resolve: () => void; reject: (error: unknown) => void };

/** @param onOff called for each webhook that was switched off by what was recorded */
export function openRecorder(
  services: { pool: pg.Pool; log: Logger },
  onOff: (webhookId: string) => void,
): Recorder {
  const { log } = services;
  const notices = openNotices(services);
  const closing = new AbortController();
  let waiting: Waiting[] = [];
  let timer: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;
  let isClosed = false;

  function schedule(): void {
    if (writing || waiting.length === 0) return;
    if (waiting.length >= BATCH) start();
    else timer ??= setTimeout(start, GATHER_MS);
  }

  function start(): void {
    clearTimeout(timer);
    timer = undefined;
    if (writing) return;
    const batch = waiting.slice(0, BATCH);
    waiting = waiting.slice(BATCH);
    writing = write(batch).finally(() => {
      writing = undefined;
      schedule();
    });
  }

  /** Never rejects: each of the batch is told. */
  async function write(batch: readonly Waiting[]): Promise<void> {
    const results = batch.map(({ result }) => result);
    // Nothing else of them is logged: a URL may hold a credential, and the answer is a stranger's.
    const deliveries = results.map(({ deliveryId }) => deliveryId);
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, MAX_PAUSE_MS)) {
      try {
        const off = await store(services.pool, results);
        notices.add(results.map(({ webhookId }) => webhookId));
        for (const { resolve } of batch) resolve();
        for (const id of off) onOff(id);
        return;
      } catch (error) {
        const isOver = closing.signal.aborted;
        if (isDatabaseAway(error) && !isOver) {
          await delay(pause, undefined, { signal: closing.signal }).catch(() => {});
          continue;
        }
        // One that the database refuses must not keep the others from being recorded.
        if (batch.length > 1 && !isOver) {
          for (const one of batch) await write([one]);
          return;
        }
        if (!isOver)
          log.error({ err: error, deliveries }, 'attempts of webhooks were not recorded');
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
      await notices[Symbol.asyncDispose]();
    },
  };
}

const FAILED_LONG = `coalesce(webhooks.failing_since < now() - interval '${FAILING_DAYS} days', false)`;

/**
 * Guarded by the number of attempts, so that what two servers did because one was taken for dead is counted once. That
 * it is pending is not asked by the status: in a burst, before the table is analyzed, the planner then takes the index
 * of all that is pending and reads it whole (170 ms for each batch with 100,000 of them, in place of 2). A webhook's
 * row is written only when something about it changes.
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
    active = not (state.gone or not state.ok and ${FAILED_LONG}),
    off_reason = case when state.gone then 'gone' when not state.ok and ${FAILED_LONG} then 'failing' end,
    updated_at = case when state.gone or not state.ok and ${FAILED_LONG} then clock_timestamp()
      else webhooks.updated_at end
  from unnest($8::text[], $9::text[], $10::bool[], $11::bool[]) as state (webhook_id, url, ok, gone)
  where webhooks.id = state.webhook_id and webhooks.url = state.url and webhooks.active
    and (state.gone or state.ok = (webhooks.failing_since is not null) or not state.ok and ${FAILED_LONG})
  returning webhooks.id, webhooks.active`;

/** @returns the ids of webhooks that were switched off */
async function store(pool: pg.Pool, results: readonly Result[]): Promise<string[]> {
  const states = statesOf(results);
  const { rows } = await pool.query<{ id: string; active: boolean }>({
    name: 'record attempts',
    text: STORE,
    values: [
      results.map(({ deliveryId }) => deliveryId),
      results.map(({ attempts }) => attempts),
      results.map(({ status }) => status),
      results.map(({ tried }) => tried?.outcome ?? null),
      results.map(({ tried }) => tried?.status ?? null),
      results.map(({ tried }) => tried && JSON.stringify(tried)),
      results.map(({ delay }) => delay),
      states.map(({ webhookId }) => webhookId),
      states.map(({ url }) => url),
      states.map(({ ok }) => ok),
      states.map(({ gone }) => gone),
    ],
  });
  return rows.flatMap(({ id, active }) => (active ? [] : [id]));
}

type State = { webhookId: string; url: string; ok: boolean; gone: boolean };

/** What the results say about each endpoint: one success is enough for it not to be failing. */
function statesOf(results: readonly Result[]): State[] {
  const states = new Map<string, State>();
  for (const { webhookId, url, tried, status, gone } of results) {
    if (!tried) continue;
    const key = `${webhookId} ${url}`;
    const state = states.get(key) ?? { webhookId, url, ok: false, gone: false };
    states.set(key, { ...state, ok: state.ok || status === 'succeeded', gone: state.gone || gone });
  }
  // The same webhook may have had two addresses meanwhile; only one of them is its own by now.
  return [...states.values()];
}

/* Tells those who follow the deliveries of a webhook that there is something to read. */

/** Of one webhook at most so often, however many deliveries it has. */
const EVERY_MS = 300;

type Notices = AsyncDisposable & {
  add(webhookIds: Iterable<string>): void;
};

/** What a killed server has not told of is found by the readers themselves, who look again by and by. */
export function openNotices({ pool, log }: { pool: pg.Pool; log: Logger }): Notices {
  const changed = new Set<string>();
  let timer: NodeJS.Timeout | undefined;
  let telling: Promise<void> = Promise.resolve();

  async function tell(): Promise<void> {
    const ids = [...changed];
    changed.clear();
    timer = undefined;
    if (ids.length === 0) return;
    await pool
      .query(`select pg_notify('loam', 'webhook:' || id) from unnest($1::text[]) as webhook (id)`, [
        ids,
      ])
      .catch((error) => log.debug({ err: error }, 'followers of deliveries were not told'));
  }

  return {
    add(webhookIds) {
      for (const id of webhookIds) changed.add(id);
      timer ??= setTimeout(() => {
        telling = telling.then(tell);
      }, EVERY_MS);
    },
    async [Symbol.asyncDispose]() {
      clearTimeout(timer);
      await telling.then(tell);
    },
  };
}
