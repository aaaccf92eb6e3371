/**
 * Writing the order of the queue anew.
 *
 * Each claim and each end changes a few rows of the queue (`queue_shares`, `queue_lines`). Their former versions stay in the
 * tables and indexes while any other transaction may still see them, a dump or a report of hours; and who looks for
 * a namespace, or for the first in turn, finds them before the present ones. After 20,000 claims beside such a transaction
 * a claim took 10 ms in place of one. So the rows bear a number, their generation, which stands first in
 * the order; and once two thousand jobs have been claimed, all rows of what waits get the next one. What is looked for
 * is of the present number, and versions of earlier ones are passed by.
 *
 * The trigger that counts the queue holds `COUNTING` until its transaction ends, shared with all others, so that the number
 * it has read stays the present one. We take that lock alone. We wait for those that commit at this moment, and who comes
 * then waits for us; but where that takes long, as behind a namespace that is being deleted, the rows stay as they are until a
 * hundred more jobs have been claimed.
 */
import type { Pool } from 'pg';
import { onConnection } from '../../database/client.ts';
import { isStillLocked } from '../../database/outage.ts';

/** Claims of all workers follow each other by this advisory lock. */
export const CLAIMING = 465825750385;
/** The present generation, which stays as it is under that lock. */
export const PRESENT = '(select number from queue_generation)';
/** Of `count_queue` (`prisma/migrations`), which has it as a number too. */
const COUNTING = 465825750386;
/**
 * Of one server. Each leaves two versions of the lines of its namespace, mostly one: a claim passes by them in 0.25 µs each,
 * in a millisecond all together.
 */
const CLAIMS = 2_000;

/** Meanwhile nothing is counted, and so no job is queued, started or ended. */
const PATIENCE_MS = 50;

const LOCK = `
  select set_config('synchronous_commit', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('idle_in_transaction_session_timeout', '5s', true), pg_advisory_xact_lock(${CLAIMING}),
    set_config('lock_timeout', '${PATIENCE_MS}ms', true)`;

/**
 * A namespace that is being deleted has its rows locked, and nobody knows yet whether it will be gone. Then nothing is
 * changed: what was left in an earlier generation would not be found any more.
 */
const RENEW = `
  with waiting as (
    select count(*) as lines, count(distinct namespace_id) as namespaces from queue_lines
    where generation = ${PRESENT} and open
  ), lines as materialized (
    select namespace_id from queue_lines
    where generation = ${PRESENT} and open for update skip locked
  ), shares as materialized (
    select namespace_id from queue_shares
    where namespace_id in (select namespace_id from lines) and generation = ${PRESENT}
    for update skip locked
  ), next as materialized (
    select number + 1 as number from queue_generation, waiting
    where waiting.lines = (select count(*) from lines) and waiting.namespaces = (select count(*) from shares)
  ), renewed_lines as (
    update queue_lines set generation = next.number from next
    where generation = ${PRESENT} and open
  ), renewed_shares as (
    update queue_shares set generation = next.number from next
    where namespace_id in (select namespace_id from shares) and generation = ${PRESENT}
  )
  update queue_generation set number = next.number from next, waiting returning waiting.lines::int`;

/** After each claim: writes the order anew when enough has been claimed since it last did. */
export type Renewal = { claimed(jobs: number): Promise<void> };

/** @param most how many claims leave their versions to those that follow */
export function openRenewal({ pool }: { pool: Pool }, most = CLAIMS): Renewal {
  let claimed = 0;
  let due = most;
  return {
    async claimed(jobs) {
      claimed += jobs;
      if (claimed < due) return;
      // Also after an error, or each claim would meet it.
      claimed = 0;
      const lines = await renew(pool);
      // However many lines there are, a claim pays for one of them at most: 10,000 took 150 ms.
      due = lines === null ? Math.ceil(most / 20) : Math.max(most, lines);
    },
  };
}

/** @returns how many lines it wrote, or null when it would have had to wait for somebody */
function renew(pool: Pool): Promise<number | null> {
  return onConnection(pool, async (client) => {
    await client.query(`begin; ${LOCK}`);
    try {
      await client.query(`select pg_advisory_xact_lock(${COUNTING})`);
    } catch (error) {
      if (!isStillLocked(error)) throw error;
      await client.query('rollback');
      return null;
    }
    const { rows } = await client.query<{ lines: number }>(RENEW);
    await client.query('commit');
    return rows[0]?.lines ?? null;
  });
}
