/**
 * Sends due deliveries. Every server that answers requests runs one sender.
 *
 * A round claims webhooks with due deliveries (`claims.ts`), reads a few deliveries of each, and releases webhooks without
 * due deliveries. A round runs when a delivery was added, when a webhook has few deliveries left in memory, and every second
 * for retries. Delivery is at least once: an attempt without a recorded result is repeated under the same `webhook-id`.
 *
 * A dead or slow endpoint must not delay other webhooks. So a webhook has at most eight concurrent attempts, and only one
 * while it fails. The number of claimed webhooks is limited per server and per namespace (`concurrency-limits.ts`). At a
 * limit, a webhook yields its slot after five seconds.
 */

import type pg from 'pg';
import { jitter, sleep } from '../base/backoff.ts';
import type { Logger } from '../base/log.ts';
import type { Urls } from '../base/urls.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import { isDatabaseUnavailable, isResourceExhausted } from '../platform/database/outage.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { Metrics } from '../platform/metrics/metrics.ts';
import * as claims from './claims.ts';
import { ConcurrencyLimits } from './concurrency-limits.ts';
import { type Attempt, type AttemptDeps, attemptDelivery } from './delivery/attempt.ts';
import { isSuccess } from './delivery/outcomes.ts';
import { renderBody, type StoredMessage } from './delivery/payload.ts';
import { nextDelay } from './delivery/schedule.ts';
import { EndpointQueue } from './endpoint-queue.ts';
import { openRecorder, type Recorder, type Result } from './recorder.ts';
import { failUnwantedDeliveries } from './unwanted.ts';
import type { WebhookDeps } from './webhooks.ts';

/** How long a webhook keeps its slot while other webhooks wait for a slot. */
const MIN_SLOT_MS = 5_000;
/** Interval of the search for due retries, and for webhooks of a dead server. */
const POLL_MS = 1_000;
/** Pause before the next round. Rounds that are requested meanwhile are coalesced. */
const ROUND_DEBOUNCE_MS = 4;
/** Longest pause before a failed round is retried; the pause is random. */
const ROUND_RETRY_MS = 1_000;
/** Pause before a delivery is sent again because this machine is out of a resource. */
const RESOURCE_PAUSE_MS = 1_000;
/** How long shutdown waits for running attempts. Attempts aborted after that are repeated. */
const STOP_MS = 3_000;
/** Delay before an attempt is repeated because the database refused its result, or after any other error of this server. */
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

export async function startSender(
  services: Deps,
  attemptDeps: AttemptDeps,
): Promise<AsyncDisposable> {
  const sender = new Sender(services, attemptDeps);
  await sender.start();
  return sender;
}

/** A read of one webhook's due deliveries. */
type QueueRead = claims.DueRead & { queue: EndpointQueue };

class Sender implements AsyncDisposable {
  readonly #services: Deps;
  readonly #attemptDeps: AttemptDeps;
  readonly #serverId: string;
  readonly #recorder: Recorder;
  /** The claimed webhooks, by id. */
  readonly #queues = new Map<string, EndpointQueue>();
  /** Work that shutdown waits for. */
  readonly #running = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  readonly #abortingAttempts = new AbortController();
  #listening: Promise<void> = Promise.resolve();
  #rounds: Promise<void> | undefined;
  #isRoundRequested = false;
  /** Whether a limit was reached, so that unclaimed webhooks may be waiting for a slot. */
  #isLimited = false;
  /** What the next round looks for: `added` deliveries, or all `due` deliveries, which include retries. */
  #pendingPoll: 'added' | 'due' | null = null;

  constructor(services: Deps, attemptDeps: AttemptDeps) {
    this.#services = services;
    this.#attemptDeps = attemptDeps;
    this.#serverId = services.cluster.members.id;
    this.#recorder = openRecorder(services, (webhookId) => this.#onSwitchedOff(webhookId));
  }

  /** Releases the claims of an earlier process with the same server id, then starts sending. */
  async start(): Promise<void> {
    await claims.releaseAll(this.#services.pool, this.#serverId);
    this.#listening = this.#listen();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { pool, log } = this.#services;
    this.#stopping.abort();
    await this.#listening;
    await this.#rounds;
    for (const queue of this.#queues.values()) queue.requeue();
    const ended = Promise.all(this.#running);
    await Promise.race([ended, sleep(STOP_MS, undefined, { ref: false })]);
    this.#abortingAttempts.abort();
    await this.#recorder.close();
    await Promise.all(this.#running);
    await claims.releaseAll(pool, this.#serverId).catch((error) => {
      log.debug({ err: error }, 'claimed webhooks were not released');
    });
  }

  async #listen(): Promise<void> {
    for await (const reason of this.#services.bus.wakes(
      'deliveries',
      this.#stopping.signal,
      POLL_MS,
    )) {
      this.#pendingPoll = reason === 'wake' ? (this.#pendingPoll ?? 'added') : 'due';
      this.#requestRound();
    }
  }

  #onSwitchedOff(webhookId: string): void {
    const queue = this.#queues.get(webhookId);
    if (!queue) {
      this.#track(failUnwantedDeliveries(this.#services, webhookId));
      return;
    }
    // The next read finds the webhook switched off and ends its deliveries.
    queue.requeue();
    queue.isDrained = false;
    this.#requestRound();
  }

  /** Makes shutdown wait for `work`, and logs its errors. */
  #track(work: Promise<void>): void {
    const { log } = this.#services;
    const tracked = work.catch((error) => log.error({ err: error }, 'sending webhooks failed'));
    this.#running.add(tracked);
    void tracked.then(() => this.#running.delete(tracked));
  }

  async #pause(ms: number): Promise<void> {
    await sleep(ms, this.#stopping.signal);
  }

  /** Starts a round, or another one after the current round. */
  #requestRound(): void {
    this.#isRoundRequested = true;
    this.#rounds ??= this.#runRounds().finally(() => {
      this.#rounds = undefined;
      if (this.#isRoundRequested && !this.#stopping.signal.aborted) this.#requestRound();
    });
  }

  /** Runs rounds until none is requested. Never rejects. */
  async #runRounds(): Promise<void> {
    const { log } = this.#services;
    while (this.#isRoundRequested && !this.#stopping.signal.aborted) {
      this.#isRoundRequested = false;
      try {
        await this.#findWork();
        await this.#readDeliveries();
        await this.#release();
      } catch (error) {
        if (isDatabaseUnavailable(error))
          log.debug({ err: error }, 'webhooks wait for the database');
        else log.error({ err: error }, 'sending webhooks failed; retrying in a second');
        this.#isRoundRequested = true;
        await this.#pause(jitter(ROUND_RETRY_MS));
      }
      if (this.#isRoundRequested) await this.#pause(ROUND_DEBOUNCE_MS);
    }
  }

  async #findWork(): Promise<void> {
    const poll = this.#pendingPoll;
    this.#pendingPoll = null;
    try {
      if (poll) await this.#refreshClaimed(poll === 'due');
      if (poll || this.#isLimited) await this.#claim();
    } catch (error) {
      this.#pendingPoll ??= poll;
      throw error;
    }
  }

  /**
   * Marks the claimed webhooks whose deliveries must be read again, because a delivery was added.
   * @param includeRetries marks all claimed webhooks, because retries may have become due
   */
  async #refreshClaimed(includeRetries: boolean): Promise<void> {
    if (!includeRetries && !this.#queues.values().some(({ isDrained }) => isDrained)) return;
    const claimed = await claims.readClaimed(this.#services.pool, this.#serverId);
    for (const { webhookId, namespaceId, dueAt } of claimed) {
      const queue = this.#queues.get(webhookId);
      if (queue) queue.isDrained &&= !includeRetries && queue.endpoint?.dueAtWhenRead === dueAt;
      // This server claimed the webhook, but the connection broke before the response to the claim arrived.
      else this.#queues.set(webhookId, new EndpointQueue(webhookId, namespaceId));
    }
  }

  async #claim(): Promise<void> {
    const before = new ConcurrencyLimits(this.#queues.values());
    const claimed = before.isFull
      ? []
      : await claims.claim(this.#services.pool, this.#serverId, before.quota);
    for (const { webhookId, namespaceId } of claimed)
      this.#queues.set(webhookId, new EndpointQueue(webhookId, namespaceId));
    const limits = new ConcurrencyLimits(this.#queues.values());
    this.#isLimited = limits.isLimiting;
    for (const queue of this.#queues.values()) {
      const mayYield = Date.now() - queue.claimedAt >= MIN_SLOT_MS;
      if (!limits.isSlotWanted(queue) || queue.yieldsSlot || !mayYield) continue;
      queue.yieldsSlot = true;
      queue.requeue();
    }
  }

  async #readDeliveries(): Promise<void> {
    const reads = await this.#refreshEndpoints();
    if (reads.length === 0) return;
    const due = Map.groupBy(
      await claims.readDue(this.#services.pool, reads),
      ({ webhookId }) => webhookId,
    );
    for (const { queue, webhookId, limit } of reads) {
      queue.add(due.get(webhookId) ?? [], limit);
      this.#startAttempts(queue);
    }
  }

  /** Reads the endpoints of the queues that need deliveries. @returns the reads for the webhooks that are on */
  async #refreshEndpoints(): Promise<QueueRead[]> {
    const queues = this.#queues
      .values()
      .filter(({ readLimit }) => readLimit > 0)
      .toArray();
    if (queues.length === 0) return [];
    const ids = queues.map(({ webhookId }) => webhookId);
    const endpoints = new Map(
      (await claims.readEndpoints(this.#services.pool, this.#serverId, ids)).map((endpoint) => [
        endpoint.webhookId,
        endpoint,
      ]),
    );
    const reads: QueueRead[] = [];
    for (const queue of queues) {
      const { webhookId, readLimit } = queue;
      const endpoint = endpoints.get(webhookId);
      if (!endpoint) {
        // Another server considered this server dead and claimed the webhook, or retention has removed the row of a deleted
        // webhook. Running attempts of this server continue.
        queue.requeue();
        this.#queues.delete(webhookId);
        continue;
      }
      queue.setEndpoint(endpoint, (sealed) => this.#openSecret(webhookId, sealed));
      // A copy: a delivery whose result is recorded during the read may still be pending in the rows that were read.
      const loadedIds = new Set(queue.loadedIds);
      // Nothing that was read before is sent any more.
      if (endpoint.state !== 'on') queue.requeue();
      if (endpoint.state === 'on') reads.push({ queue, webhookId, limit: readLimit, loadedIds });
      else if (endpoint.state === 'deleted') queue.isDrained = true;
      else this.#track(this.#failPending(queue));
    }
    return reads;
  }

  /** @returns no secret if the server key was lost: the delivery is sent unsigned, and a receiver that verifies refuses it */
  #openSecret(webhookId: string, sealed: Buffer): string[] {
    const { webhooks, log } = this.#services;
    try {
      return [webhooks.sealer.open(webhookId, sealed)];
    } catch (error) {
      log.error({ err: error, webhook: webhookId }, 'the secret of a webhook cannot be decrypted');
      return [];
    }
  }

  /** Fails the pending deliveries of a webhook that is off. */
  async #failPending(queue: EndpointQueue): Promise<void> {
    queue.isHalted = true;
    try {
      await failUnwantedDeliveries(this.#services, queue.webhookId);
      queue.isDrained = true;
    } catch (error) {
      await this.#pause(jitter(ROUND_RETRY_MS));
      throw error;
    } finally {
      queue.isHalted = false;
      this.#requestRound();
    }
  }

  /** Releases the webhooks that have no deliveries in memory, and that have no due deliveries or yield their slot. */
  async #release(): Promise<void> {
    const done = this.#queues
      .values()
      .filter(({ isDone }) => isDone)
      .toArray();
    if (done.length === 0) return;
    const released = await claims.release(
      this.#services.pool,
      this.#serverId,
      done.map(({ webhookId, endpoint, isDrained }) => ({
        webhookId,
        dueAtWhenRead: endpoint?.dueAtWhenRead ?? '',
        yieldsSlot: !isDrained,
        isDeleted: endpoint?.state === 'deleted',
      })),
    );
    for (const id of released) this.#queues.delete(id);
    if (released.length > 0 && this.#isLimited) this.#isRoundRequested = true;
    for (const queue of done)
      if (this.#queues.has(queue.webhookId)) {
        queue.isDrained = false;
        this.#isRoundRequested = true;
      }
  }

  #startAttempts(queue: EndpointQueue): void {
    if (this.#stopping.signal.aborted) return;
    for (let due = queue.takeNext(); due; due = queue.takeNext()) {
      queue.sending++;
      this.#track(this.#deliver(queue, due));
    }
  }

  /** Makes one attempt of a delivery and records the result. After an error, the delivery is read and sent again. */
  async #deliver(queue: EndpointQueue, due: claims.DueDelivery): Promise<void> {
    const { endpoint } = queue;
    if (!endpoint) throw new Error('a delivery was read without its endpoint');
    try {
      await this.#attemptAndRecord(queue, endpoint, due);
    } catch (error) {
      if (this.#stopping.signal.aborted) return;
      // The endpoint is not at fault: this machine could not send, or the database refused the result.
      const { log } = this.#services;
      log.error({ err: error, delivery: due.id }, 'a webhook delivery will be sent again');
      await this.#pause(isResourceExhausted(error) ? RESOURCE_PAUSE_MS : UNRECORDED_MS);
      queue.isHalted = false;
      queue.isDrained = false;
    } finally {
      queue.loadedIds.delete(due.id);
      if (queue.readLimit > 0 || queue.isDone) this.#requestRound();
    }
  }

  async #attemptAndRecord(
    queue: EndpointQueue,
    endpoint: claims.Endpoint,
    { id, attempts, message }: claims.DueDelivery,
  ): Promise<void> {
    let attempt: Attempt | null = null;
    try {
      attempt = message && (await this.#send(endpoint, queue.secrets, message));
    } finally {
      queue.sending--;
    }
    const result = toResult(attempt, attempts);
    if (attempt) queue.recordResult(result.status !== 'succeeded');
    if (result.isGone) queue.isHalted = true;
    this.#startAttempts(queue);
    observeAttempt(this.#services, attempt, attempts, message);
    await this.#recorder.record({
      deliveryId: id,
      webhookId: queue.webhookId,
      url: endpoint.url,
      attempts,
      ...result,
    });
    if (result.status !== 'pending') this.#services.metrics.deliveryEnded(result.status);
    if (result.isGone) queue.isHalted = false;
  }

  #send(
    { webhookId, url }: claims.Endpoint,
    secrets: readonly string[],
    message: StoredMessage,
  ): Promise<Attempt> {
    const body = renderBody(this.#services, message);
    const outgoing = { webhookId, url, secrets, id: message.id, body };
    return attemptDelivery(this.#attemptDeps, outgoing, this.#abortingAttempts.signal);
  }
}

/**
 * The result to record.
 * @param attempt null if the message of the delivery was removed
 * @param attempts number of earlier attempts
 */
function toResult(
  attempt: Attempt | null,
  attempts: number,
): Pick<Result, 'attempt' | 'status' | 'delay' | 'isGone'> {
  if (!attempt) return { attempt, status: 'failed', delay: null, isGone: false };
  const { retryAfter, ...record } = attempt;
  const isGone = record.status === 410;
  if (isGone || isSuccess(record.status))
    return { attempt: record, status: isGone ? 'failed' : 'succeeded', delay: null, isGone };
  const delay = nextDelay(attempts + 1, retryAfter, Math.random);
  return { attempt: record, status: delay === null ? 'failed' : 'pending', delay, isGone };
}

function observeAttempt(
  { metrics }: Deps,
  attempt: Attempt | null,
  attempts: number,
  message: StoredMessage | null,
): void {
  if (!attempt || !message) return;
  const sinceEvent = (Date.parse(attempt.at) - message.timestamp.getTime()) / 1_000;
  metrics.deliveryTried({
    outcome: attempt.outcome,
    seconds: attempt.took / 1_000,
    ...(attempts === 0 && { sinceEvent: Math.max(0, sinceEvent) }),
  });
}
