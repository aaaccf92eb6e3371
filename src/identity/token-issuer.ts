/**
 * Issues the identity tokens of jobs: JWTs that other systems verify with the published keys (OpenID Connect).
 *
 * A new key is published for a day before it signs, because relying parties cache the keys. It signs for 90 days. The old key
 * stays published until its last token has expired. All of this follows from the times at which keys were created, so
 * servers agree without further state.
 */
import { randomUUID } from 'node:crypto';
import type { CryptoKey, JWK } from 'jose';
import type pg from 'pg';
import { SIGNING_KEYS_LOCK } from '../base/advisory-locks.ts';
import { createSealer, type Keys, type Sealer } from '../platform/crypto/keys.ts';
import { inPoolTransaction } from '../platform/database/client.ts';

/** AWS and Ceph verify no other algorithm. */
const ALGORITHM = 'RS256';
export const MAX_TOKEN_SECONDS = 3_600;
/** Clocks of relying parties may be behind by this much. */
const CLOCK_SKEW_SECONDS = 60;

const HOUR_MS = 3_600_000;
/** How long a key is published before it signs, unless it is the only one. */
const AHEAD_MS = 24 * HOUR_MS;
const SIGNING_MS = 90 * 24 * HOUR_MS;
/** How long a key is published after it has signed its last token: the life of the token, and cached lists of keys. */
const AFTER_MS = 2 * HOUR_MS;
/** Servers read the keys this often, so an operator who deletes a key waits this long. */
const CACHE_MS = 60_000;

type StoredKey = { id: string; publicKey: JWK; privateKey: Buffer; createdAt: Date };
type KeySet = { keys: readonly StoredKey[]; readAt: number };

/** The claims of one token, besides those that the issuer sets. */
export type TokenClaims = {
  issuer: string;
  subject: string;
  audience: string;
  /** At most `MAX_TOKEN_SECONDS`. */
  lifetimeSeconds: number;
  extraClaims: Readonly<Record<string, string>>;
};

export class TokenIssuer {
  readonly #pool: pg.Pool;
  readonly #sealer: Sealer;
  #keySet: Promise<KeySet> | undefined;
  /** The private key with its id. */
  #signer: { id: string; key: CryptoKey } | undefined;

  constructor(pool: pg.Pool, keys: Keys) {
    this.#pool = pool;
    this.#sealer = createSealer(keys, 'identity tokens of jobs');
  }

  async sign({
    issuer,
    subject,
    audience,
    lifetimeSeconds,
    extraClaims,
  }: TokenClaims): Promise<string> {
    const { SignJWT, importPKCS8 } = await import('jose');
    const { keys } = await this.#readKeys();
    const { id, privateKey } = chooseSigningKey(keys, Date.now());
    if (this.#signer?.id !== id) {
      const text = this.#sealer.open(id, privateKey);
      this.#signer = { id, key: await importPKCS8(text, ALGORITHM) };
    }
    const now = Math.floor(Date.now() / 1_000);
    return new SignJWT(extraClaims)
      .setProtectedHeader({ alg: ALGORITHM, typ: 'JWT', kid: id })
      .setIssuer(issuer)
      .setSubject(subject)
      .setAudience(audience)
      .setIssuedAt(now)
      .setNotBefore(now - CLOCK_SKEW_SECONDS)
      .setExpirationTime(now + Math.min(lifetimeSeconds, MAX_TOKEN_SECONDS))
      .setJti(randomUUID())
      .sign(this.#signer.key);
  }

  /** The public keys of all tokens that may be valid, and of the next key. */
  async listPublicKeys(): Promise<JWK[]> {
    const { keys } = await this.#readKeys();
    return keys.map(({ id, publicKey }) => ({ ...publicKey, kid: id, alg: ALGORITHM, use: 'sig' }));
  }

  async #readKeys(): Promise<KeySet> {
    const last = await this.#keySet?.catch(() => undefined);
    if (last && Date.now() - last.readAt < CACHE_MS) return last;
    this.#keySet = this.#loadKeys();
    return this.#keySet;
  }

  async #loadKeys(): Promise<KeySet> {
    const readAt = Date.now();
    const keys = await listStoredKeys(this.#pool);
    if (keys.length > 0) return { keys, readAt };
    await this.#createAndRemoveKeys();
    return { keys: await listStoredKeys(this.#pool), readAt };
  }

  /** Maintenance task: creates the next key when it is due, and removes keys whose tokens have expired. */
  async rotate(): Promise<boolean> {
    // The first token creates the first key: most servers need none.
    if ((await listStoredKeys(this.#pool)).length > 0) await this.#createAndRemoveKeys();
    return false;
  }

  /** Like `rotate`, but also creates the first key. Under a lock, so that concurrent servers create one key. */
  async #createAndRemoveKeys(): Promise<void> {
    await inPoolTransaction(this.#pool, async (client) => {
      await client.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [
        SIGNING_KEYS_LOCK,
      ]);
      const keys = await listStoredKeys(client);
      const { isDue, expired } = planRotation(keys, Date.now());
      if (isDue) await this.#createKey(client);
      if (expired.length > 0)
        await client.query('delete from signing_keys where id = any($1)', [expired]);
    });
    this.#keySet = undefined;
  }

  async #createKey(client: pg.PoolClient): Promise<void> {
    const { calculateJwkThumbprint, exportJWK, exportPKCS8, generateKeyPair } = await import(
      'jose'
    );
    const { publicKey, privateKey } = await generateKeyPair(ALGORITHM, { extractable: true });
    const jwk = await exportJWK(publicKey);
    const id = await calculateJwkThumbprint(jwk);
    const sealed = this.#sealer.seal(id, await exportPKCS8(privateKey));
    await client.query(
      'insert into signing_keys (id, public_key, private_key, created_at) values ($1, $2, $3, $4)',
      [id, jwk, sealed, new Date()],
    );
  }
}

async function listStoredKeys(client: pg.Pool | pg.PoolClient): Promise<StoredKey[]> {
  const { rows } = await client.query<StoredKey>(
    `select id, public_key as "publicKey", private_key as "privateKey", created_at as "createdAt"
     from signing_keys order by created_at, id`,
  );
  return rows;
}

/** The newest key that has been published for long enough, otherwise the oldest. @param keys at least one, oldest first */
function chooseSigningKey(keys: readonly StoredKey[], now: number): StoredKey {
  const published = keys.findLast(({ createdAt }) => createdAt.getTime() + AHEAD_MS <= now);
  const key = published ?? keys[0];
  if (!key) throw new Error('there is no key for identity tokens');
  return key;
}

/** @param keys oldest first */
export function planRotation(
  keys: readonly { id: string; createdAt: Date }[],
  now: number,
): { isDue: boolean; expired: string[] } {
  const newest = keys.at(-1);
  const isDue = !newest || newest.createdAt.getTime() + SIGNING_MS <= now;
  const expired = keys.flatMap(({ id }, at) => {
    const successor = keys[at + 1];
    const replacedAt = successor && successor.createdAt.getTime() + AHEAD_MS;
    return replacedAt !== undefined && replacedAt + AFTER_MS <= now ? [id] : [];
  });
  return { isDue, expired };
}
