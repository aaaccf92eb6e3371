/** The signing secrets of webhooks. Signing needs the plain secret, so secrets are encrypted and not hashed. */
import type { Sealer } from '../platform/crypto/keys.ts';

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
  sealer: Sealer,
  webhookId: string,
  before: SealedSecrets['secret'],
  secret: string | null,
): SealedSecrets | undefined {
  if (secret === null && before === null) return undefined;
  if (secret === null) return { secret: null, formerSecret: null, formerUntil: null };
  const former = before && openOrNull(sealer, webhookId, before);
  if (former === secret) return undefined;
  return {
    secret: sealer.seal(webhookId, secret),
    formerSecret: former === null ? null : before,
    formerUntil: former === null ? null : new Date(Date.now() + FORMER_MS),
  };
}

/** @returns null if the server key has changed: then the secret can no longer sign */
function openOrNull(sealer: Sealer, webhookId: string, sealed: Uint8Array): string | null {
  try {
    return sealer.open(webhookId, sealed);
  } catch {
    return null;
  }
}
