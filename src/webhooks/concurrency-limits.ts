/**
 * How many webhooks a server sends for at once, so that no namespace takes all places, and no endpoint that is dead or
 * hangs takes the place of one that answers.
 *
 * A webhook counts as slow while its last attempt has failed, or none of it has ended for two seconds. Slow ones have
 * places of their own, fewer of them; so those that answer wait for two seconds at most when others begin to hang.
 */
const MAX = 256;
/** Of these, those that failed before. */
const MAX_SLOW = 128;
/** Of one namespace. Those that begin to hang at the same time may be more than `slow`; then fewer are prompt. */
const OF_NAMESPACE = { prompt: 32, slow: 16, all: 64 };

/** A webhook that deliveries are being sent for. */
type Sending = { namespaceId: string; isSlow: boolean };

/** What may be claimed. */
export type ClaimRange = {
  /** Places that are taken, by namespace. */
  held: { namespaceId: string; slow: boolean; count: number }[];
  perNamespace: { prompt: number; slow: number };
  free: { all: number; slow: number };
};

export class ConcurrencyLimits {
  /** Each place is taken. */
  readonly isFull: boolean;
  readonly range: ClaimRange;
  readonly #taken = new Map<string, { prompt: number; slow: number }>();

  constructor(lines: Iterable<Sending>) {
    const sum = { all: 0, slow: 0 };
    for (const { namespaceId, isSlow } of lines) {
      const taken = this.#taken.get(namespaceId) ?? { prompt: 0, slow: 0 };
      this.#taken.set(namespaceId, taken);
      taken[isSlow ? 'slow' : 'prompt']++;
      sum.all++;
      if (isSlow) sum.slow++;
    }
    this.isFull = sum.all >= MAX;
    this.range = {
      held: [...this.#taken.keys()].flatMap((namespaceId) => [
        { namespaceId, slow: true, count: this.#taken.get(namespaceId)?.slow ?? 0 },
        { namespaceId, slow: false, count: this.#promptOf(namespaceId) },
      ]),
      perNamespace: OF_NAMESPACE,
      free: { all: Math.max(0, MAX - sum.all), slow: Math.max(0, MAX_SLOW - sum.slow) },
    };
  }

  /** Others may be waiting for a place, and get one when what is sent for now gives way or is done. */
  get isShort(): boolean {
    return (
      this.isFull || this.#taken.keys().some((id) => this.#promptOf(id) >= OF_NAMESPACE.prompt)
    );
  }

  /** Whether others may be waiting for the place of this one. */
  isWanted({ namespaceId, isSlow }: Sending): boolean {
    if (this.isFull) return true;
    return isSlow
      ? (this.#taken.get(namespaceId)?.slow ?? 0) >= OF_NAMESPACE.slow
      : this.#promptOf(namespaceId) >= OF_NAMESPACE.prompt;
  }

  /** With as many of the slow ones as leave less than its share to those that are not. */
  #promptOf(namespaceId: string): number {
    const { prompt, slow } = this.#taken.get(namespaceId) ?? { prompt: 0, slow: 0 };
    const beyond = Math.max(0, slow - (OF_NAMESPACE.all - OF_NAMESPACE.prompt));
    return prompt + beyond;
  }
}
