/** A log as plain text. */
import type pg from 'pg';
import { decodePage } from './pages.ts';
import { walkStep } from './walk.ts';

/**
 * The lines that are there when it begins, some pages at a time; of a job that is deleted meanwhile, those before.
 * `timestamps`: each line begins with its time.
 */
export async function* logText(
  services: { pool: pg.Pool },
  jobId: string,
  { timestamps }: { timestamps: boolean },
): AsyncGenerator<string> {
  const { rows } = await services.pool.query<{ next_seq: string }>({
    name: 'loam-log-end',
    text: 'select next_seq from jobs where id = $1',
    values: [jobId],
  });
  const end = Number(rows[0]?.next_seq ?? 1) - 1;
  for (let from = 0; from < end; ) {
    const { pages, reached, isEnd } = await walkStep(services, jobId, { from, order: 'asc' });
    for (const page of pages) {
      const entries = await decodePage(page);
      let text = '';
      for (const { kind, seq, timestamp, message } of entries) {
        if (kind !== 'log' || seq <= from || seq > end) continue;
        text += timestamps ? `${timestamp.toISOString()} ${message}\n` : `${message}\n`;
      }
      if (text) yield text;
    }
    if (isEnd) return;
    from = reached;
  }
}
