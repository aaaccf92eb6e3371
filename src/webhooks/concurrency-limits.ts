/**
 * Limits for how many webhooks a server sends deliveries at once, so that neither one namespace nor dead endpoints take all
 * slots.
 *
 * A claimed webhook is slow while its last attempt failed, or while no attempt has ended for two seconds (`SLOW_MS` in
 * `endpoint-queue.ts`). An unclaimed webhook has no running attempts, so it is slow only if its last attempt failed. Slow
 * webhooks have separate, fewer slots. So when endpoints begin to hang, responsive webhooks wait at most two seconds.
 */

/** Webhooks for which a server sends at the same time. */
const MAX_ACTIVE_WEBHOOKS = 256;
/** Part of `MAX_ACTIVE_WEBHOOKS`. */
const MAX_SLOW_WEBHOOKS = 128;
/**
 * A namespace holds at most `all` slots. Claimed webhooks that become slow may exceed `slow`. Up to `all - responsive` slow
 * webhooks take no slots from responsive webhooks; further slow webhooks do.
 */
const PER_NAMESPACE = { responsive: 32, slow: 16, all: 64 };

/** A claimed webhook. */
type ActiveWebhook = { namespaceId: string; isSlow: boolean };

/** How many webhooks may be claimed. */
export type ClaimQuota = {
  /** Slots in use, by namespace. */
  occupied: { namespaceId: string; isSlow: boolean; count: number }[];
  perNamespace: { responsive: number; slow: number };
  free: { all: number; slow: number };
};

/** The slots in use and the free slots, computed from the webhooks that are claimed at the moment. */
export class ConcurrencyLimits {
  readonly isFull: boolean;
  readonly quota: ClaimQuota;
  readonly #used = new Map<string, { responsive: number; slow: number }>();

  constructor(webhooks: Iterable<ActiveWebhook>) {
    const totals = { all: 0, slow: 0 };
    for (const { namespaceId, isSlow } of webhooks) {
      const used = this.#used.getOrInsert(namespaceId, { responsive: 0, slow: 0 });
      used[isSlow ? 'slow' : 'responsive']++;
      totals.all++;
      if (isSlow) totals.slow++;
    }
    this.isFull = totals.all >= MAX_ACTIVE_WEBHOOKS;
    this.quota = {
      occupied: [...this.#used.keys()].flatMap((namespaceId) => [
        { namespaceId, isSlow: true, count: this.#used.get(namespaceId)?.slow ?? 0 },
        { namespaceId, isSlow: false, count: this.#countResponsiveSlots(namespaceId) },
      ]),
      perNamespace: PER_NAMESPACE,
      free: {
        all: Math.max(0, MAX_ACTIVE_WEBHOOKS - totals.all),
        slow: Math.max(0, MAX_SLOW_WEBHOOKS - totals.slow),
      },
    };
  }

  /**
   * Whether an unclaimed responsive webhook may be waiting for a slot, so that a free slot is used at once. Slow webhooks
   * wait for the next poll.
   */
  get isLimiting(): boolean {
    return (
      this.isFull ||
      this.#used.keys().some((id) => this.#countResponsiveSlots(id) >= PER_NAMESPACE.responsive)
    );
  }

  /** Whether an unclaimed webhook may be waiting for the slot of this webhook, which then yields it (`sender.ts`). */
  isSlotWanted({ namespaceId, isSlow }: ActiveWebhook): boolean {
    if (this.isFull) return true;
    return isSlow
      ? (this.#used.get(namespaceId)?.slow ?? 0) >= PER_NAMESPACE.slow
      : this.#countResponsiveSlots(namespaceId) >= PER_NAMESPACE.responsive;
  }

  /** Slots of responsive webhooks in use, including those that surplus slow webhooks take. */
  #countResponsiveSlots(namespaceId: string): number {
    const { responsive, slow } = this.#used.get(namespaceId) ?? { responsive: 0, slow: 0 };
    const surplus = Math.max(0, slow - (PER_NAMESPACE.all - PER_NAMESPACE.responsive));
    return responsive + surplus;
  }
}
