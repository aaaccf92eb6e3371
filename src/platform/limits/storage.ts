/**
 * Reserves storage for pushes that are being checked and for uploads of large files. Without reservations, several concurrent
 * writers could each pass the check although the space suffices for only one of them.
 *
 * A reservation is a row, so all servers see it. A push has a row in `storage_reservations`; an upload uses its row in
 * `large_uploads`. Reservations of a killed server expire.
 */
import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import { quotaLock } from '../../base/advisory-locks.ts';
import type { Config } from '../../base/config/config.ts';
import { notFound } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { withConnection } from '../database/client.ts';
import { RESERVED_BYTES, requireStorage, storageLeft, storageLimit } from './quotas.ts';

type Deps = { pool: pg.Pool; config: Config; log: Logger };

/** Stored and reserved bytes of a namespace. */
type StorageUse = { plan: Plan; storageBytes: bigint };

/**
 * Reserves `bytes` of a namespace; `writeRow` writes the row of the reservation. Reservations of one namespace are made one
 * at a time, so that each counts the earlier ones.
 * @throws AppError 403 `quota_exceeded`; then nothing is written
 */
export async function reserveStorage(
  { pool, config }: Pick<Deps, 'pool' | 'config'>,
  namespaceId: string,
  bytes: number,
  writeRow: (client: pg.PoolClient) => Promise<unknown>,
): Promise<void> {
  const useBefore = await withConnection(pool, async (client) => {
    await client.query('begin');
    await client.query(`select pg_advisory_xact_lock(hashtextextended($1, 0))`, [
      quotaLock('storageBytes', namespaceId),
    ]);
    await writeRow(client);
    const { rows } = await client.query<StorageUse>(
      `select plan, storage_bytes + ${RESERVED_BYTES} - $2::bigint as "storageBytes"
       from namespaces n where id = $1`,
      [namespaceId, bytes],
    );
    const [row] = rows;
    const use = row && { plan: row.plan, storageBytes: BigInt(row.storageBytes) };
    const fits = use && bytes <= storageLeft({ config }, use);
    await client.query(fits ? 'commit' : 'rollback');
    return use;
  });
  if (!useBefore) throw notFound('Namespace');
  requireStorage({ config }, useBefore, bytes);
}

/** Time from the check of a push until it is recorded: a minute for the check, and time for git and the record. */
const PUSH_MINUTES = 10;

/** Reservation of one push, from `take` until `release`. */
export class PushReservation {
  readonly #deps: Deps;
  readonly #id: string;
  #isTaken = false;

  /** @param id of the event that will announce the push */
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

  /** Never rejects; a reservation that cannot be released expires. */
  async release(): Promise<void> {
    if (!this.#isTaken) return;
    this.#isTaken = false;
    const { pool, log } = this.#deps;
    await pool
      .query('delete from storage_reservations where id = $1', [this.#id])
      .catch((err) =>
        log.warn({ err }, 'cannot release the storage reservation of a push; it will expire'),
      );
  }
}
