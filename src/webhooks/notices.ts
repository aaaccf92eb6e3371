/** Tells those who follow the deliveries of a webhook that there is something to read. */
import type pg from 'pg';
import type { Logger } from '../base/log.ts';

/** Of one webhook at most so often, however many deliveries it has. */
const EVERY_MS = 300;

export type Notices = AsyncDisposable & {
  add(webhookIds: Iterable<string>): void;
};

/** What a killed server has not told of is found by the readers themselves, who look again by and by. */
export function openNotices({ pool, log }: { pool: pg.Pool; log: Logger }): Notices {
  const changed = new Set<string>();
  let timer: NodeJS.Timeout | undefined;
  let telling: Promise<void> = Promise.resolve();

  async function tell(): Promise<void> {
    const ids = [...changed];
    changed.clear();
    timer = undefined;
    if (ids.length === 0) return;
    await pool
      .query(`select pg_notify('loam', 'webhook:' || id) from unnest($1::text[]) as webhook (id)`, [
        ids,
      ])
      .catch((error) => log.debug({ err: error }, 'followers of deliveries were not told'));
  }

  return {
    add(webhookIds) {
      for (const id of webhookIds) changed.add(id);
      timer ??= setTimeout(() => {
        telling = telling.then(tell);
      }, EVERY_MS);
    },
    async [Symbol.asyncDispose]() {
      clearTimeout(timer);
      await telling.then(tell);
    },
  };
}
