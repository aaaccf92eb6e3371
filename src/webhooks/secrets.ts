/**
 * Encrypts the signing secrets of webhooks.
 *
 * Signing needs the plain secret, so secrets are encrypted and not hashed. The key is never in the database. A ciphertext is
 * bound to its webhook, so that a secret cannot be moved to the row of another webhook.
 */
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';

export type WebhookSecrets = {
  seal(webhookId: string, secret: string): Uint8Array<ArrayBuffer>;
  /** @throws Error if the secret was encrypted with another key, or the bytes were changed */
  open(webhookId: string, sealed: Uint8Array): string;
};

export function createWebhookSecrets(keys: Keys): WebhookSecrets {
  const key = keys.derive('secrets of webhooks');
  return {
    seal: (webhookId, secret) => seal(key, Buffer.from(secret), webhookId),
    open: (webhookId, sealed) => open(key, sealed, webhookId).toString(),
  };
}

/** Grace period of the previous secret after a new secret is set: deliveries are signed with both. */
const FORMER_MS = 24 * 3_600_000;

/** The columns of a webhook that hold its secrets. */
type SealedSecrets = {
  secret: Uint8Array<ArrayBuffer> | null;
  formerSecret: Uint8Array<ArrayBuffer> | null;
  formerUntil: Date | null;
};

/**
 * Returns the columns after a secret is set. Deliveries are also signed with the previous secret for a day, so that receivers
 * can switch without refusing deliveries. Setting the same secret changes nothing, so that a repeated request does not
 * replace the previous secret.
 * @param secret null removes both secrets, so that deliveries are no longer signed
 * @returns undefined if nothing changes
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

/** @returns null if the server key has changed: then the secret can no longer sign */
function openOrNull(secrets: WebhookSecrets, webhookId: string, sealed: Uint8Array): string | null {
  try {
    return secrets.open(webhookId, sealed);
  } catch {
    return null;
  }
}
