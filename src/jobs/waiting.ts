/** How much waits in the pools. */

import type pg from 'pg';
import { GPUS, REGIONS } from '../base/hardware.ts';
import { inPoolTransaction } from '../platform/database/client.ts';

/** Of a pool no more are counted: a look at all pools is to cost milliseconds, whatever waits in them. */
const COUNTED = 10_000;

export type WaitingPool = { gpu: string; region: string; jobs: number; oldest: number };

/**
 * The pools in which jobs wait, how many (10,000 at most), and for how many seconds the first of those that were
 * counted has waited. It walks `jobs_waiting`, pool by pool: 10,000 jobs in 10 ms. Where most jobs of the table wait,
 * PostgreSQL would rather read all of it for each pool (120 ms), and so is told not to.
 */
export function waitingJobs({ pool }: { pool: pg.Pool }): Promise<WaitingPool[]> {
  return inPoolTransaction(pool, async (client) => {
    await client.query('set local enable_seqscan = off; set local enable_bitmapscan = off');
    const { rows } = await client.query<WaitingPool>(COUNT, [GPUS, REGIONS, COUNTED]);
    return rows;
  });
}

const COUNT = `
  select gpu, region, jobs::int, greatest(0, extract(epoch from now() - since))::float8 as oldest
  from unnest($1::text[]) as gpus (gpu) cross join unnest($2::text[]) as regions (region)
  cross join lateral (
    select count(*) as jobs, min(available_at) as since from (
      select available_at from jobs
      where jobs.gpu = gpus.gpu and jobs.region = regions.region
        and status = 'queued' and attempt_id is null
      limit $3
    ) counted
  ) each
  where jobs > 0`;
