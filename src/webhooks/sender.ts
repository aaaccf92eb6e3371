/**
 * Sends what is due. Every server that answers requests has one.
 *
 * It claims webhooks that have something due (`queue.ts`), reads a few deliveries of each, sends them, and records
 * what came of it (`recorder.ts`), until nothing of a webhook is due; then it lets go of the webhook. All webhooks
 * share the statements of one round: claim, read, let go. A round follows when something was added, when a webhook
 * has little left in hand, and every second, for what is due again.
 *
 * A dead or slow endpoint delays nobody else: a webhook has at most eight attempts at once, and one while it fails; a
 * server has so many webhooks at once, and so many of one namespace (`places.ts`); where places are short, one that has
 * been sent for five seconds gives way.
 *
 * What was sent and not recorded is sent again, under the same `webhook-id`: at least once.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import type { Logger } from '../base/log.ts';
import type { Urls } from '../base/urls.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import { isDatabaseAway, isResourceExhausted } from '../platform/database/outage.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { Metrics } from '../platform/metrics/metrics.ts';
import { ConcurrencyLimits } from './concurrency-limits.ts';
import { type Attempt, attempt, type Means } from './delivery/attempt.ts';
import { isSuccess } from './delivery/outcomes.ts';
import { bodyOf, type StoredMessage } from './delivery/payload.ts';
import { nextDelay } from './delivery/schedule.ts';
import { EndpointQueue } from './endpoint-queue.ts';
import * as queue from './queue.ts';
import { openRecorder, type Result } from './recorder.ts';
import { switchedOff } from './unwanted.ts';
import type { WebhookDeps } from './webhooks.ts';

/** For how long a webhook is sent for while others wait for its place. */
const TURN_MS = 5_000;
/** Between looks for what is due again, or was left by a server that died. */
const LOOK_MS = 1_000;
/** What ends within so many milliseconds is followed by one round. */
const GATHER_MS = 4;
/** After a round that failed, and when this machine is short of something. */
const PAUSE_MS = 1_000;
/** For how long a stop waits for what has begun. An attempt that is given up then is made again. */
const STOP_MS = 3_000;
/** Until an attempt is made again that the database refused to record. */
const UNRECORDED_MS = 60_000;

type Deps = {
  pool: pg.Pool;
  bus: Bus;
  log: Logger;
  metrics: Metrics;
  signer: Signer;
  urls: Urls;
  cluster: Cluster;
  webhooks: WebhookDeps;
};

/** Owns its attempts until it is disposed. */
export async function startSender(services: Deps, means: Means): Promise<AsyncDisposable> {
  const { pool, bus, log } = services;
  const serverId = services.cluster.members.id;
  const stopping = new AbortController();
  const givingUp = new AbortController();
  const pause = (ms: number) => delay(ms, undefined, { signal: stopping.signal }).catch(() => {});
  const lines = new Map<string, EndpointQueue>();
  const running = new Set<Promise<void>>();
  const recorder = openRecorder(services, (webhookId) => {
    const line = lines.get(webhookId);
    if (!line) return run(switchedOff(services, webhookId));
    // It is read again, and found to be off.
    line.requeue();
    line.isDrained = false;
    void wantRound();
  });
  /** There may be more to claim when a place is free. */
  let isShort = false;
  let isRoundWanted = false;
  /** What the next round looks for first: what came, or also what gets due by itself. */
  let look: 'came' | 'due' | null = null;
  let rounds: Promise<void> | undefined;

  /** Has an owner until its end: a stop waits for it. */
  function run(work: Promise<void>): void {
    const owned = work.catch((error) => log.error({ err: error }, 'sending webhooks'));
    running.add(owned);
    void owned.then(() => running.delete(owned));
  }

  /** A round, or another after the one under way. Never rejects. */
  function wantRound(): Promise<void> {
    isRoundWanted = true;
    rounds ??= (async () => {
      while (isRoundWanted && !stopping.signal.aborted) {
        isRoundWanted = false;
        try {
          await lookAround();
          await readMore();
          await release();
        } catch (error) {
          if (isDatabaseAway(error)) log.debug({ err: error }, 'webhooks wait for the database');
          else log.error({ err: error }, 'sending webhooks: again in a second');
          isRoundWanted = true;
          await pause(PAUSE_MS);
        }
        if (isRoundWanted) await pause(GATHER_MS);
      }
    })().finally(() => {
      rounds = undefined;
      if (isRoundWanted && !stopping.signal.aborted) void wantRound();
    });
    return rounds;
  }

  async function lookAround(): Promise<void> {
    const why = look;
    look = null;
    try {
      if (why) await noticeWhatCame(why === 'due');
      if (why || isShort) await claimMore();
    } catch (error) {
      look ??= why;
      throw error;
    }
  }

  async function claimMore(): Promise<void> {
    const before = new ConcurrencyLimits(lines.values());
    const claimed = before.isFull ? [] : await queue.claim(pool, serverId, before.range);
    for (const { webhookId, namespaceId } of claimed)
      lines.set(webhookId, new EndpointQueue(webhookId, namespaceId));
    const places = new ConcurrencyLimits(lines.values());
    isShort = places.isShort;
    for (const line of lines.values()) {
      if (!places.isWanted(line) || line.yieldsSlot || Date.now() - line.since < TURN_MS) continue;
      line.yieldsSlot = true;
      line.requeue();
    }
  }

  /**
   * Finds out which webhooks got something while they were sent for.
   * @param all also what gets due again by itself
   */
  async function noticeWhatCame(all: boolean): Promise<void> {
    if (!all && !lines.values().some(({ isDrained: dry }) => dry)) return;
    for (const { webhookId, namespaceId, due } of await queue.readHeld(pool, serverId)) {
      const line = lines.get(webhookId);
      if (line) line.isDrained &&= !all && line.endpoint?.seen === due;
      // The answer to its claim was lost with a connection.
      else lines.set(webhookId, new EndpointQueue(webhookId, namespaceId));
    }
  }

  async function readMore(): Promise<void> {
    const wanting = lines
      .values()
      .filter(({ wanted }) => wanted > 0)
      .toArray();
    if (wanting.length === 0) return;
    const ids = wanting.map(({ webhookId }) => webhookId);
    const endpoints = new Map(
      (await queue.readEndpoints(pool, serverId, ids)).map((one) => [one.webhookId, one]),
    );
    const reading: (queue.Want & { line: EndpointQueue })[] = [];
    for (const line of wanting) {
      const { webhookId, wanted } = line;
      const endpoint = endpoints.get(webhookId);
      if (!endpoint) {
        // Another server has it, which took this one for dead. What has begun ends here.
        line.requeue();
        lines.delete(webhookId);
        continue;
      }
      line.leadsTo(endpoint, (sealed) => openSecret(webhookId, sealed));
      // As it is now: what is recorded while it is read may look pending in what is read.
      const held = new Set(line.held);
      if (endpoint.state === 'on') reading.push({ line, webhookId, limit: wanted, held });
      else if (endpoint.state === 'deleted') line.isDrained = true;
      else run(endPending(line));
    }
    if (reading.length === 0) return;
    const due = Map.groupBy(await queue.readDue(pool, reading), (one) => one.webhookId);
    for (const { line, webhookId, limit } of reading) {
      line.take(due.get(webhookId) ?? [], limit);
      begin(line);
    }
  }

  /** None of a secret that this server cannot open, because its key was lost: a receiver refuses what is not signed. */
  function openSecret(webhookId: string, sealed: Buffer): string[] {
    try {
      return [services.webhooks.secrets.open(webhookId, sealed)];
    } catch (error) {
      log.error({ err: error, webhook: webhookId }, 'a secret of a webhook cannot be opened');
      return [];
    }
  }

  /** Of a webhook that is off. */
  async function endPending(line: EndpointQueue): Promise<void> {
    line.halted = true;
    try {
      await switchedOff(services, line.webhookId);
      line.isDrained = true;
    } catch (error) {
      await pause(PAUSE_MS);
      throw error;
    } finally {
      line.halted = false;
      void wantRound();
    }
  }

  async function release(): Promise<void> {
    const done = lines
      .values()
      .filter(({ isDone }) => isDone)
      .toArray();
    if (done.length === 0) return;
    const freed = await queue.release(
      pool,
      serverId,
      done.map(({ webhookId, endpoint, isDrained: dry }) => ({
        webhookId,
        seen: endpoint?.seen ?? '',
        giveWay: !dry,
        deleted: endpoint?.state === 'deleted',
      })),
    );
    for (const id of freed) lines.delete(id);
    if (freed.length > 0 && isShort) isRoundWanted = true;
    for (const line of done)
      if (lines.has(line.webhookId)) {
        line.isDrained = false;
        isRoundWanted = true;
      }
  }

  function begin(line: EndpointQueue): void {
    if (stopping.signal.aborted) return;
    for (let due = line.next(); due; due = line.next()) {
      line.sending++;
      run(deliver(line, due));
    }
  }

  async function deliver(line: EndpointQueue, { id, attempts, message }: queue.Due): Promise<void> {
    const { endpoint, secrets } = line;
    if (!endpoint) throw new Error('a delivery was read without its endpoint');
    try {
      let tried: Attempt | null = null;
      try {
        tried = message && (await send(endpoint, secrets, message));
      } finally {
        line.sending--;
      }
      const result = resultOf(tried, attempts);
      if (tried) line.heard(result.status !== 'succeeded');
      if (result.gone) line.halted = true;
      begin(line);
      observe(services, tried, attempts, message);
      await recorder.record({
        ...{ deliveryId: id, webhookId: line.webhookId, url: endpoint.url, attempts },
        ...result,
      });
      if (result.status !== 'pending') services.metrics.deliveryEnded(result.status);
      if (result.gone) line.halted = false;
    } catch (error) {
      if (stopping.signal.aborted) return;
      // Nothing is known of the endpoint then: this machine could not send, or the database not record.
      log.error({ err: error, delivery: id }, 'a delivery of a webhook is to be sent again');
      await pause(isResourceExhausted(error) ? PAUSE_MS : UNRECORDED_MS);
      line.halted = false;
      line.isDrained = false;
    } finally {
      line.held.delete(id);
      if (line.wanted > 0 || line.isDone) void wantRound();
    }
  }

  function send(
    endpoint: queue.Endpoint,
    secrets: readonly string[],
    message: StoredMessage,
  ): Promise<Attempt> {
    const { webhookId, url } = endpoint;
    const body = bodyOf(services, message);
    return attempt(means, { webhookId, url, secrets, id: message.id, body }, givingUp.signal);
  }

  await queue.releaseAll(pool, serverId);
  const working = (async () => {
    for await (const why of bus.wakes('deliveries', stopping.signal, LOOK_MS)) {
      look = why === 'wake' ? (look ?? 'came') : 'due';
      void wantRound();
    }
  })();

  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
      await rounds;
      for (const line of lines.values()) line.requeue();
      const ended = Promise.all(running);
      await Promise.race([ended, delay(STOP_MS, undefined, { ref: false })]);
      givingUp.abort();
      await recorder.close();
      await Promise.all(running);
      await queue.releaseAll(pool, serverId).catch((error) => {
        log.debug({ err: error }, 'webhooks were not let go of');
      });
    },
  };
}

/** What becomes of a delivery. @param tried null when its message is gone */
function resultOf(
  tried: Attempt | null,
  attempts: number,
): Pick<Result, 'tried' | 'status' | 'delay' | 'gone'> {
  if (!tried) return { tried, status: 'failed', delay: null, gone: false };
  const { retryAfter, ...rest } = tried;
  const gone = tried.status === 410;
  if (gone || isSuccess(tried.status))
    return { tried: rest, status: gone ? 'failed' : 'succeeded', delay: null, gone };
  const wait = nextDelay(attempts + 1, retryAfter, Math.random);
  return { tried: rest, status: wait === null ? 'failed' : 'pending', delay: wait, gone };
}

function observe(
  { metrics }: Deps,
  tried: Attempt | null,
  attempts: number,
  message: StoredMessage | null,
): void {
  if (!tried || !message) return;
  const sinceEvent = (Date.parse(tried.at) - message.timestamp.getTime()) / 1_000;
  metrics.deliveryTried({
    outcome: tried.outcome,
    seconds: tried.took / 1_000,
    ...(attempts === 0 && { sinceEvent: Math.max(0, sinceEvent) }),
  });
}
