/**
 * Limits how many webhooks a server sends for at once, so that neither one namespace nor dead endpoints take all slots.
 *
 * A webhook counts as slow while its last attempt failed, or while no attempt has ended for two seconds. Slow webhooks have
 * separate, fewer slots, so when endpoints begin to hang, webhooks that answer wait for two seconds at most.
 */
const MAX_WEBHOOKS = 256;
/** Part of `MAX_WEBHOOKS`. */
const MAX_SLOW_WEBHOOKS = 128;
/** Webhooks that begin to hang at the same time may exceed `slow`; that leaves fewer slots for prompt webhooks. */
const PER_NAMESPACE = { prompt: 32, slow: 16, all: 64 };

/** A claimed webhook. */
type ActiveWebhook = { namespaceId: string; isSlow: boolean };

/** How many webhooks may be claimed. */
export type ClaimRange = {
  /** Slots in use, by namespace. */
  occupied: { namespaceId: string; slow: boolean; count: number }[];
  perNamespace: { prompt: number; slow: number };
  free: { all: number; slow: number };
};

export class ConcurrencyLimits {
  readonly isFull: boolean;
  readonly range: ClaimRange;
  readonly #used = new Map<string, { prompt: number; slow: number }>();

  constructor(webhooks: Iterable<ActiveWebhook>) {
    const sum = { all: 0, slow: 0 };
    for (const { namespaceId, isSlow } of webhooks) {
      const used = this.#used.get(namespaceId) ?? { prompt: 0, slow: 0 };
      this.#used.set(namespaceId, used);
      used[isSlow ? 'slow' : 'prompt']++;
      sum.all++;
      if (isSlow) sum.slow++;
    }
    this.isFull = sum.all >= MAX_WEBHOOKS;
    this.range = {
      occupied: [...this.#used.keys()].flatMap((namespaceId) => [
        { namespaceId, slow: true, count: this.#used.get(namespaceId)?.slow ?? 0 },
        { namespaceId, slow: false, count: this.#promptOf(namespaceId) },
      ]),
      perNamespace: PER_NAMESPACE,
      free: {
        all: Math.max(0, MAX_WEBHOOKS - sum.all),
        slow: Math.max(0, MAX_SLOW_WEBHOOKS - sum.slow),
      },
    };
  }

  /** Unclaimed webhooks may wait for a slot. */
  get isLimiting(): boolean {
    return (
      this.isFull || this.#used.keys().some((id) => this.#promptOf(id) >= PER_NAMESPACE.prompt)
    );
  }

  /** Unclaimed webhooks may wait for the slot of this one. */
  isSlotWanted({ namespaceId, isSlow }: ActiveWebhook): boolean {
    if (this.isFull) return true;
    return isSlow
      ? (this.#used.get(namespaceId)?.slow ?? 0) >= PER_NAMESPACE.slow
      : this.#promptOf(namespaceId) >= PER_NAMESPACE.prompt;
  }

  /** Prompt webhooks, plus slow webhooks that take slots of the prompt share. */
  #promptOf(namespaceId: string): number {
    const { prompt, slow } = this.#used.get(namespaceId) ?? { prompt: 0, slow: 0 };
    const beyond = Math.max(0, slow - (PER_NAMESPACE.all - PER_NAMESPACE.prompt));
    return prompt + beyond;
  }
}
