/**
 * Storage that is promised before it is used: to pushes that are being judged and to uploads of large files. Without
 * it many at once would each find the room that there is for one.
 *
 * A promise is a row, so it holds for all servers. A push has one in `storage_reservations`, an upload the row of
 * `large_uploads` that also keeps what has come of it. What a killed server leaves ends by itself.
 */

import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { notFound } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { onConnection } from '../database/client.ts';
import { demandStorage, RESERVED_BYTES, storageLeft, storageLimit } from './quotas.ts';

type Deps = { pool: pg.Pool; config: Config; log: Logger };

/** Of a namespace: what it stores and what is promised. */
type Used = { plan: Plan; storageBytes: bigint };

/**
 * Promises `bytes` of a namespace: `note` writes the row that counts from then on. Reservations of a namespace are made one
 * after the other, so each sees those before it.
 * @throws AppError 403 `quota_exceeded`, and then nothing is written
 */
export async function reserveStorage(
  { pool, config }: Pick<Deps, 'pool' | 'config'>,
  namespaceId: string,
  bytes: number,
  note: (client: pg.PoolClient) => Promise<unknown>,
): Promise<void> {
  const room = await onConnection(pool, async (client) => {
    await client.query('begin');
    await client.query(`select pg_advisory_xact_lock(hashtextextended($1, 0))`, [
      `storageBytes ${namespaceId}`,
    ]);
    await note(client);
    const { rows } = await client.query<Used>(
      `select plan, storage_bytes + ${RESERVED_BYTES} - $2::bigint as "storageBytes"
       from namespaces n where id = $1`,
      [namespaceId, bytes],
    );
    const [row] = rows;
    const used = row && { plan: row.plan, storageBytes: BigInt(row.storageBytes) };
    const fits = used && bytes <= storageLeft({ config }, used);
    await client.query(fits ? 'commit' : 'rollback');
    return used;
  });
  if (!room) throw notFound('Namespace');
  demandStorage({ config }, room, bytes);
}

/** From the judge's look at a push to its record. A minute of looking, and what git and the record need. */
const PUSH_MINUTES = 10;

/** The room of one push, which counts as used from `take` until `release`. */
export class PushReservation {
  readonly #deps: Deps;
  readonly #id: string;
  #isTaken = false;

  /** @param id of the event that will tell of the push */
  constructor(deps: Deps, id: string) {
    this.#deps = deps;
    this.#id = id;
  }

  /** @throws AppError 403 `quota_exceeded` */
  async take(namespaceId: string, plan: Plan, bytes: number): Promise<void> {
    if (bytes === 0 || storageLimit(this.#deps, plan) >= Number.MAX_SAFE_INTEGER) return;
    await reserveStorage(this.#deps, namespaceId, bytes, async (client) => {
      await client.query(
        'delete from storage_reservations where namespace_id = $1 and expires_at < now()',
        [namespaceId],
      );
      await client.query(
        `insert into storage_reservations (id, namespace_id, bytes, expires_at)
         values ($1, $2, $3, now() + make_interval(mins => $4))`,
        [this.#id, namespaceId, bytes, PUSH_MINUTES],
      );
    });
    this.#isTaken = true;
  }

  /** Never rejects: what cannot be released expires. */
  async release(): Promise<void> {
    if (!this.#isTaken) return;
    this.#isTaken = false;
    const { pool, log } = this.#deps;
    await pool
      .query('delete from storage_reservations where id = $1', [this.#id])
      .catch((err) => log.warn({ err }, 'the storage that a push reserved is not released yet'));
  }
}
