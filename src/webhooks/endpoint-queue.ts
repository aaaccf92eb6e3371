/** What this server has in hand of one webhook: deliveries that were read and are not recorded yet. */
import type { Due, Endpoint } from './queue.ts';

/**
 * Deliveries of one webhook in hand, so that it has something to send while the next are read. It begins with the
 * fewest, and has twice as many after each read that found as many as it wanted, while the endpoint answers.
 */
const FEWEST = 16;
const MOST = 64;
const MOST_WHILE_FAILING = 2;
/**
 * For so many in hand there is one attempt at a time: two at once at first, and eight at most, because each opens a
 * connection. While the last attempt failed it is one, because the next is likely to take 15 seconds.
 */
const PER_ATTEMPT = 8;
/** No attempt has ended for so long: it counts as slow until one does. */
const SLOW_MS = 2_000;
/** What was read so long ago is read again before it is sent: the webhook may be another by now. */
const STALE_MS = 2_000;

export class EndpointQueue {
  readonly webhookId: string;
  readonly namespaceId: string;
  readonly since = Date.now();
  /** Where it leads, when it was last read; undefined before. */
  endpoint: Endpoint | undefined;
  /** What it signs with, opened. */
  secrets: readonly string[] = [];
  /** The last read found less than was wanted, so there is nothing more to read until something comes. */
  isDrained = false;
  /** Others wait for its place: what has begun ends, and nothing more is read. */
  yieldsSlot = false;
  /** Its state is being changed: nothing more is sent until then. */
  halted = false;
  sending = 0;
  /** Ids of what is in hand. */
  readonly held = new Set<string>();
  #waiting: Due[] = [];
  #readAt = 0;
  #appetite = FEWEST;
  #failing = false;
  /** When an attempt ended, or the first of them began. */
  #heardAt = 0;
  /** Whether it succeeded since the last read. */
  #answers = false;

  constructor(webhookId: string, namespaceId: string) {
    this.webhookId = webhookId;
    this.namespaceId = namespaceId;
  }

  /** How many more to read; 0 while there is enough in hand. */
  get wanted(): number {
    if (this.isDrained || this.yieldsSlot || this.halted) return 0;
    const most = this.#failing ? MOST_WHILE_FAILING : this.#appetite;
    return this.held.size > most / 2 ? 0 : most - this.held.size;
  }

  /** It is likely to take its time: its last attempt failed, or those under way take long. */
  get isSlow(): boolean {
    return this.#failing || (this.sending > 0 && Date.now() - this.#heardAt > SLOW_MS);
  }

  /** Nothing is in hand, and nothing is known to come. */
  get isDone(): boolean {
    return this.held.size === 0 && !this.halted && (this.isDrained || this.yieldsSlot);
  }

  /** Where it leads now. What was heard of another address says nothing about this one. */
  leadsTo(endpoint: Endpoint, open: (sealed: Buffer) => string[]): void {
    const before = this.endpoint;
    if (before?.url !== endpoint.url) this.#failing = endpoint.failing;
    const sealed = [endpoint.secret, endpoint.formerSecret];
    const same = (a?: Buffer | null, b?: Buffer | null) => (a && b ? a.equals(b) : a === b);
    // Opening them takes longer than signing.
    if (!same(before?.secret, sealed[0]) || !same(before?.formerSecret, sealed[1]))
      this.secrets = sealed.flatMap((one) => (one ? open(one) : []));
    this.endpoint = endpoint;
  }

  /** Takes in what was read. @param wanted how many were asked for */
  take(due: readonly Due[], wanted: number): void {
    this.#readAt = Date.now();
    this.isDrained = due.length < wanted;
    if (!this.isDrained && this.#answers) this.#appetite = Math.min(2 * this.#appetite, MOST);
    this.#answers = false;
    for (const { id } of due) this.held.add(id);
    this.#waiting.push(...due);
  }

  /** The next to be sent, if there may be one more at once. */
  next(): Due | undefined {
    if (this.halted || this.sending >= (this.#failing ? 1 : this.#appetite / PER_ATTEMPT))
      return undefined;
    if (Date.now() - this.#readAt > STALE_MS) this.requeue();
    if (this.sending === 0) this.#heardAt = Date.now();
    return this.#waiting.shift();
  }

  /** Forgets what has not begun: it is pending still, and is read again. */
  requeue(): void {
    if (this.#waiting.length === 0) return;
    for (const { id } of this.#waiting) this.held.delete(id);
    this.#waiting = [];
    this.isDrained = false;
  }

  /** What an attempt says about the endpoint. */
  heard(failed: boolean): void {
    if (failed && !this.#failing) {
      this.#appetite = FEWEST;
      this.requeue();
    }
    this.#failing = failed;
    this.#heardAt = Date.now();
    this.#answers = !failed;
  }
}
