/**
 * Encrypts the signing secrets of webhooks.
 *
 * Signing needs the plain secret, so it is encrypted and not hashed. The key is never in the database, and the ciphertext
 * is bound to the webhook, so that a secret cannot be moved to the row of another webhook.
 */
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';

export type WebhookSecrets = {
  seal(webhookId: string, secret: string): Uint8Array<ArrayBuffer>;
  /** @throws Error when the key is a different one, or the bytes were changed */
  open(webhookId: string, sealed: Uint8Array): string;
};

export function createWebhookSecrets(keys: Keys): WebhookSecrets {
  const key = keys.derive('secrets of webhooks');
  return {
    seal: (webhookId, secret) => seal(key, Buffer.from(secret), webhookId),
    open: (webhookId, sealed) => open(key, sealed, webhookId).toString(),
  };
}

/** How long the previous secret signs as well after a new one was set. */
export const FORMER_MS = 24 * 3_600_000;

/** The columns of a webhook that hold its secrets. */
export type SealedSecrets = {
  secret: Uint8Array<ArrayBuffer> | null;
  formerSecret: Uint8Array<ArrayBuffer> | null;
  formerUntil: Date | null;
};

/**
 * The columns after a secret is set. The previous secret signs as well for a day, so that receivers can switch without
 * refusing deliveries. Setting the same secret changes nothing; otherwise a repeated request would end the previous one.
 * @param secret null removes both secrets, so nothing is signed any more
 * @returns undefined when nothing changes
 */
export function rotateSecret(
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

/** Null when the server key has changed: such a secret cannot sign any more. */
function openOrNull(secrets: WebhookSecrets, webhookId: string, sealed: Uint8Array): string | null {
  try {
    return secrets.open(webhookId, sealed);
  } catch {
    return null;
  }
}
