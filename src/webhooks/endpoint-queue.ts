/** The deliveries of one claimed webhook in memory: read from the database, and without a recorded result yet. */
import type { DueDelivery, Endpoint } from './claims.ts';

/**
 * Deliveries in memory, so that attempts go on during the next read. The number starts at the minimum, and doubles after
 * each read that was not short, while the endpoint answers.
 */
const MIN_HELD = 16;
const MAX_HELD = 64;
const MAX_HELD_FAILING = 2;
/**
 * One concurrent attempt per so many deliveries in memory: two at first, eight at most, because each opens a connection.
 * After a failed attempt it is one, because the next attempt is likely to take 15 seconds.
 */
const HELD_PER_ATTEMPT = 8;
/** The webhook counts as slow when no attempt has ended for this long. */
const SLOW_MS = 2_000;
/** Deliveries are read again before they are sent when the last read is older, because the webhook may have changed. */
const STALE_MS = 2_000;

export class EndpointQueue {
  readonly webhookId: string;
  readonly namespaceId: string;
  readonly claimedAt = Date.now();
  /** As last read; undefined before the first read. */
  endpoint: Endpoint | undefined;
  /** Decrypted. */
  secrets: readonly string[] = [];
  /** The last read was short, so nothing is due until a delivery is added or a retry becomes due. */
  isDrained = false;
  /** The slot is wanted by another webhook: running attempts end, and nothing more is read. */
  yieldsSlot = false;
  /** Nothing is sent while the state of the webhook is being changed. */
  isHalted = false;
  sending = 0;
  /** Ids of the deliveries in memory. */
  readonly heldIds = new Set<string>();
  #waiting: DueDelivery[] = [];
  #readAt = 0;
  #targetHeld = MIN_HELD;
  #isFailing = false;
  /** When an attempt last ended, or the first of the running attempts started. */
  #lastEndAt = 0;
  /** The last attempt since the last read succeeded. */
  #isAnswering = false;

  constructor(webhookId: string, namespaceId: string) {
    this.webhookId = webhookId;
    this.namespaceId = namespaceId;
  }

  /** How many deliveries to read; 0 while enough are in memory. */
  get readLimit(): number {
    if (this.isDrained || this.yieldsSlot || this.isHalted) return 0;
    const most = this.#isFailing ? MAX_HELD_FAILING : this.#targetHeld;
    return this.heldIds.size > most / 2 ? 0 : most - this.heldIds.size;
  }

  /** The last attempt failed, or the running attempts take long. */
  get isSlow(): boolean {
    return this.#isFailing || (this.sending > 0 && Date.now() - this.#lastEndAt > SLOW_MS);
  }

  /** The webhook can be released. */
  get isDone(): boolean {
    return this.heldIds.size === 0 && !this.isHalted && (this.isDrained || this.yieldsSlot);
  }

  /** Results of the previous URL say nothing about a new one. */
  setEndpoint(endpoint: Endpoint, open: (sealed: Buffer) => string[]): void {
    const before = this.endpoint;
    if (before?.url !== endpoint.url) this.#isFailing = endpoint.isFailing;
    const sealed = [endpoint.secret, endpoint.formerSecret];
    const same = (a?: Buffer | null, b?: Buffer | null) => (a && b ? a.equals(b) : a === b);
    // Decrypting takes longer than signing, so unchanged secrets are kept.
    if (!same(before?.secret, sealed[0]) || !same(before?.formerSecret, sealed[1]))
      this.secrets = sealed.flatMap((one) => (one ? open(one) : []));
    this.endpoint = endpoint;
  }

  /** Adds the deliveries of a read. @param wanted the limit of the read */
  add(due: readonly DueDelivery[], wanted: number): void {
    this.#readAt = Date.now();
    this.isDrained = due.length < wanted;
    if (!this.isDrained && this.#isAnswering)
      this.#targetHeld = Math.min(2 * this.#targetHeld, MAX_HELD);
    this.#isAnswering = false;
    for (const { id } of due) this.heldIds.add(id);
    this.#waiting.push(...due);
  }

  /** The next delivery to send, if one more concurrent attempt is allowed. */
  next(): DueDelivery | undefined {
    if (
      this.isHalted ||
      this.sending >= (this.#isFailing ? 1 : this.#targetHeld / HELD_PER_ATTEMPT)
    )
      return undefined;
    if (Date.now() - this.#readAt > STALE_MS) this.requeue();
    if (this.sending === 0) this.#lastEndAt = Date.now();
    return this.#waiting.shift();
  }

  /** Drops the deliveries without an attempt. They are still pending in the database, and are read again. */
  requeue(): void {
    if (this.#waiting.length === 0) return;
    for (const { id } of this.#waiting) this.heldIds.delete(id);
    this.#waiting = [];
    this.isDrained = false;
  }

  /** Adapts to the result of an attempt. */
  noteResult(failed: boolean): void {
    if (failed && !this.#isFailing) {
      this.#targetHeld = MIN_HELD;
      this.requeue();
    }
    this.#isFailing = failed;
    this.#lastEndAt = Date.now();
    this.#isAnswering = !failed;
  }
}
