/**
 * The secrets of webhooks, with which receivers verify what they get.
 *
 * They must be known to sign, so they are not hashed but sealed, under a key that is never in the database, and for
 * one webhook, so that a row's secret cannot be moved to another.
 */
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';

export type WebhookSecrets = {
  seal(webhookId: string, secret: string): Uint8Array<ArrayBuffer>;
  /** @throws Error when the key is another, or the bytes were changed. */
  open(webhookId: string, sealed: Uint8Array): string;
};

export function createWebhookSecrets(keys: Keys): WebhookSecrets {
  const key = keys.derive('secrets of webhooks');
  return {
    seal: (webhookId, secret) => seal(key, Buffer.from(secret), webhookId),
    open: (webhookId, sealed) => open(key, sealed, webhookId).toString(),
  };
}

/** For so long a secret goes on signing beside the one that took its place. */
export const FORMER_MS = 24 * 3_600_000;

/** The columns of a webhook that hold its secrets. */
export type SealedSecrets = {
  secret: Uint8Array<ArrayBuffer> | null;
  formerSecret: Uint8Array<ArrayBuffer> | null;
  formerUntil: Date | null;
};

/**
 * What becomes of them when a secret is set. The one before signs beside it for a day, so that receivers can change
 * over without refusing anything. The same secret again changes nothing: a client that repeats its request would
 * otherwise end the former one.
 * @param secret null removes it, and the former with it: nothing is signed any more
 * @returns undefined when nothing changes
 */
export function rotated(
  secrets: WebhookSecrets,
  webhookId: string,
  before: SealedSecrets['secret'],
  secret: string | null,
): SealedSecrets | undefined {
  if (secret === null && before === null) return undefined;
  if (secret === null) return { secret: null, formerSecret: null, formerUntil: null };
  const former = before && openOrNull(secrets, webhookId, before);
  if (former === secret) return undefined;
  return {
    secret: secrets.seal(webhookId, secret),
    formerSecret: former === null ? null : before,
    formerUntil: former === null ? null : new Date(Date.now() + FORMER_MS),
  };
}

/** Null when the server has another key by now: such a secret signs nothing, and a new one takes its place. */
function openOrNull(secrets: WebhookSecrets, webhookId: string, sealed: Uint8Array): string | null {
  try {
    return secrets.open(webhookId, sealed);
  } catch {
    return null;
  }
}
