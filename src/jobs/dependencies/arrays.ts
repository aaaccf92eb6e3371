/** Reads arrays of jobs. */
import type pg from 'pg';
import type { JobStatus } from '../../../prisma/generated/enums.ts';

/** The viewer may see a job of the array, and so all of them: they have the same repository. */
export async function countArrayJobs(
  { pool }: { pool: pg.Pool },
  arrayId: string,
): Promise<{ status: JobStatus; count: number }[]> {
  const { rows } = await pool.query<{ status: JobStatus; count: number }>({
    name: 'loam-array-counts',
    text: `select status, count(*)::int as count from jobs where array_id = $1 and array_id is not null
      group by status order by status`,
    values: [arrayId],
  });
  return rows;
}
