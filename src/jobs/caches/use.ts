/** What an attempt has restored and saved of the caches that its job names: a column of the job. */
import type pg from 'pg';

export type CacheUse = {
  path: string;
  /** With its variables replaced. */
  key: string;
  /** Null: none was found, or it could not be restored. */
  restoredKey: string | null;
  /** Bytes of the files. */
  restoredBytes: number | null;
  isSaved: boolean;
  /** Why it was not restored or not saved. It completes the sentence "The cache … was …". */
  note?: string;
};

type Deps = { pool: pg.Pool };

export function readCacheUse({ cacheUse }: { cacheUse: unknown }): CacheUse[] {
  return cacheUse as CacheUse[];
}

/** Does nothing if the attempt no longer holds the job. */
export async function writeCacheUse(
  { pool }: Deps,
  { attemptId, jobId }: { attemptId: string; jobId: string },
  uses: readonly CacheUse[],
): Promise<void> {
  await pool.query('update jobs set cache_use = $3 where id = $1 and attempt_id = $2', [
    jobId,
    attemptId,
    JSON.stringify(uses),
  ]);
}

/** @returns null if the attempt no longer holds the job; `isTouched`: a shell was opened in it */
export async function findCacheUse(
  { pool }: Deps,
  { attemptId, jobId }: { attemptId: string; jobId: string },
): Promise<{ uses: CacheUse[]; isTouched: boolean } | null> {
  const { rows } = await pool.query<{ uses: CacheUse[]; isTouched: boolean }>(
    `select j.cache_use as uses, a.shell_opened as "isTouched"
     from jobs j join job_attempts a on a.id = j.attempt_id where j.id = $1 and a.id = $2`,
    [jobId, attemptId],
  );
  return rows[0] ?? null;
}
