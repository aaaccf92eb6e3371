/** A secret as receivers of Standard Webhooks expect it: 32 random bytes in base64, after `whsec_`. */
export function newSecret(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return `whsec_${btoa(String.fromCharCode(...bytes))}`;
}
