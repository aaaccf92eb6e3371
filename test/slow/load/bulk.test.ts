/** One call changes thousands of jobs. */
import { expect, test } from 'vitest';
import { addJobs, change } from '../../support/bulk.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp } from '../../support/harness.ts';
import { startProcessClock } from '../../support/process-clock.ts';
import { submit, until } from '../../support/submit.ts';

const create = (client: Client, namespace: string, name: string) =>
  submit(client, { namespace, name, command: 'exit 0', image: 'debian:12' });

test('10,000 jobs at most are cancelled and deleted by a call, and the queue goes on', async () => {
  // It has no worker, so jobs wait.
  await using waiting = await startApp({ config: { jobSlots: 0 } });
  const eve = await waiting.user('eve');
  await create(eve, 'eve', 'big');
  await addJobs(waiting, 'eve', { count: 10_049, like: 'big', prefix: 'big-', status: 'queued' });
  const count = async (status: string) => {
    const { rows } = await waiting.pool.query(
      'select count(*)::int as count from jobs where status = $1',
      [status],
    );
    return rows[0].count;
  };
  const input = { namespace: 'eve', filter: { namePrefix: 'big' } };
  for (const verb of ['cancel', 'delete'] as const) {
    const before = verb === 'cancel' ? 'queued' : 'cancelled';
    let left = 10_050;
    for (let after: string | null = null; left > 0; ) {
      const part = await change(eve, verb, { ...input, after });
      // A call also ends after 20 seconds, which is less than a slow machine needs for as many jobs.
      expect(part.matched).toBeLessThanOrEqual(10_000);
      expect(part).toMatchObject({ done: part.matched, skipped: [] });
      left -= part.done;
      expect(await count(before)).toBe(left);
      after = part.endCursor;
      expect(after === null).toBe(left === 0);
    }
  }
  const { rows } = await waiting.pool.query('select waiting, open from queue_lines');
  expect(rows).toEqual([{ waiting: 0, open: false }]);
  const entries = await waiting.pool.query(
    `select action, count(*)::int as count, count(distinct subject)::int as jobs from audit_entries
     where action in ('job.cancel', 'job.delete') group by action order by action`,
  );
  expect(entries.rows).toEqual(
    ['job.cancel', 'job.delete'].map((action) => ({ action, count: 10_050, jobs: 10_050 })),
  );
});

test('while thousands of jobs are cancelled and deleted, other jobs of the namespace start at once', async () => {
  await using app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  const ada = await app.user('ada');
  await create(ada, 'ada', 'crowd');
  await until(ada, 'ada', 'crowd', 'SUCCEEDED');
  // No machine has this GPU, so they wait.
  await app.pool.query(`update jobs set gpu = 'T4' where name = 'crowd'`);
  await addJobs(app, 'ada', { count: 5_000, like: 'crowd', prefix: 'crowd-', status: 'queued' });
  const input = { namespace: 'ada', filter: { namePrefix: 'crowd-' } };
  let isOver = false;
  const changing = (async () => {
    await change(ada, 'cancel', input);
    await change(ada, 'delete', input);
    isOver = true;
  })();
  const took: number[] = [];
  while (!isOver) {
    using clock = startProcessClock();
    const name = `meanwhile-${took.length}`;
    await create(ada, 'ada', name);
    await until(ada, 'ada', name, 'SUCCEEDED');
    took.push(clock.ms);
  }
  await changing;
  for (const ms of took) expect(ms).toBeLessThan(10_000);
});
