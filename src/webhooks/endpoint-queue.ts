/** The deliveries of one claimed webhook in memory: read from the database, and without a recorded result yet. */
import type { DueDelivery, Endpoint } from './claims.ts';

/**
 * Number of deliveries to keep in memory, so that attempts continue during the next read. It starts at the minimum, and
 * doubles after each full read while the endpoint accepts deliveries.
 */
const MIN_LOADED = 16;
const MAX_LOADED = 64;
const MAX_LOADED_FAILING = 2;
/**
 * Deliveries in memory per concurrent attempt. So a webhook has two concurrent attempts at first and eight at most, because
 * each opens a connection. After a failed attempt it has one, because the next attempt is likely to take 15 seconds.
 */
const LOADED_PER_ATTEMPT = 8;
/** The webhook is slow if no attempt has ended for this long. */
const SLOW_MS = 2_000;
/** Deliveries that were read earlier than this are read again before they are sent, because the webhook may have changed. */
const STALE_MS = 2_000;

export class EndpointQueue {
  readonly webhookId: string;
  readonly namespaceId: string;
  readonly claimedAt = Date.now();
  /** As last read; undefined before the first read. */
  endpoint: Endpoint | undefined;
  /** The decrypted signing secrets. */
  secrets: readonly string[] = [];
  /** Whether the last read was not full, so that no delivery is due until one is added or a retry becomes due. */
  isDrained = false;
  /** Whether another webhook wants the slot: running attempts finish, and no more deliveries are read. */
  yieldsSlot = false;
  /**
   * While true, no delivery is read or sent: a response of 410 is being recorded, or the pending deliveries of a webhook that is
   * off are failed. If both happen, the first to end resets it, and a read of the state in between is harmless.
   */
  isHalted = false;
  sending = 0;
  /** Ids of the deliveries in memory. */
  readonly loadedIds = new Set<string>();
  #waiting: DueDelivery[] = [];
  #readAt = 0;
  #targetLoaded = MIN_LOADED;
  #isFailing = false;
  /** When the last attempt ended, or the first of the running attempts started. */
  #lastEndAt = 0;
  /** Whether the last attempt since the last read succeeded. */
  #isAccepting = false;

  constructor(webhookId: string, namespaceId: string) {
    this.webhookId = webhookId;
    this.namespaceId = namespaceId;
  }

  /** How many deliveries to read; 0 while enough are in memory. */
  get readLimit(): number {
    if (this.isDrained || this.yieldsSlot || this.isHalted) return 0;
    const target = this.#isFailing ? MAX_LOADED_FAILING : this.#targetLoaded;
    return this.loadedIds.size > target / 2 ? 0 : target - this.loadedIds.size;
  }

  /** Whether the last attempt failed, or no attempt has ended for `SLOW_MS`. */
  get isSlow(): boolean {
    return this.#isFailing || (this.sending > 0 && Date.now() - this.#lastEndAt > SLOW_MS);
  }

  /** Whether the webhook can be released. */
  get isDone(): boolean {
    return this.loadedIds.size === 0 && !this.isHalted && (this.isDrained || this.yieldsSlot);
  }

  setEndpoint(endpoint: Endpoint, open: (sealed: Buffer) => string[]): void {
    const before = this.endpoint;
    // Results of the previous URL do not apply to a new URL.
    if (before?.url !== endpoint.url) this.#isFailing = endpoint.isFailing;
    const sealed = [endpoint.secret, endpoint.formerSecret];
    const areEqual = (a?: Buffer | null, b?: Buffer | null) => (a && b ? a.equals(b) : a === b);
    // Decrypting takes longer than signing, so unchanged secrets are kept.
    if (!areEqual(before?.secret, sealed[0]) || !areEqual(before?.formerSecret, sealed[1]))
      this.secrets = sealed.flatMap((secret) => (secret ? open(secret) : []));
    this.endpoint = endpoint;
  }

  /** Adds the deliveries of a read. @param limit of the read */
  add(due: readonly DueDelivery[], limit: number): void {
    this.#readAt = Date.now();
    this.isDrained = due.length < limit;
    if (!this.isDrained && this.#isAccepting)
      this.#targetLoaded = Math.min(2 * this.#targetLoaded, MAX_LOADED);
    this.#isAccepting = false;
    for (const { id } of due) this.loadedIds.add(id);
    this.#waiting.push(...due);
  }

  /** Takes the next delivery to send, if one more concurrent attempt is allowed. */
  takeNext(): DueDelivery | undefined {
    const maxSending = this.#isFailing ? 1 : this.#targetLoaded / LOADED_PER_ATTEMPT;
    if (this.isHalted || this.sending >= maxSending) return undefined;
    // Stale deliveries are dropped. The next round of the sender reads them again.
    if (Date.now() - this.#readAt > STALE_MS) this.requeue();
    if (this.sending === 0) this.#lastEndAt = Date.now();
    return this.#waiting.shift();
  }

  /** Drops the deliveries whose attempt has not started. They are still pending in the database, and are read again. */
  requeue(): void {
    if (this.#waiting.length === 0) return;
    for (const { id } of this.#waiting) this.loadedIds.delete(id);
    this.#waiting = [];
    this.isDrained = false;
  }

  /** Adapts the number of deliveries and of concurrent attempts to the result of an attempt. */
  recordResult(failed: boolean): void {
    if (failed && !this.#isFailing) {
      this.#targetLoaded = MIN_LOADED;
      this.requeue();
    }
    this.#isFailing = failed;
    this.#lastEndAt = Date.now();
    this.#isAccepting = !failed;
  }
}
