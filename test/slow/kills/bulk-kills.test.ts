/** Servers that are killed while they cancel and delete thousands of jobs. */
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { submit } from '../../support/submit.ts';

const JOBS = 4_000;

test('a killed server changes each job completely or not at all', {
  timeout: 300_000,
}, async (ctx) => {
  const server = await startKillableServer(ctx);
  const { admin, pool } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  // No machine has this GPU, so the jobs wait.
  const job = { namespace: 'admin', repo: 'admin/code', command: 'true', gpu: 'H100_80GB' };
  await submit(admin, { ...job, name: 'j' });
  await pool.query(`create table copies as select * from jobs where name = 'j'`);
  for (let n = 1; n < JOBS; n++)
    await pool.query(
      `with changed as (update copies set id = 'job_' || lpad($1, 26, '0'), name = 'j-' || $1 returning *)
       insert into jobs select * from changed`,
      [`${n}`],
    );
  const count = async (where: string) => {
    const { rows } = await pool.query(`select count(*)::int as count from ${where}`);
    return rows[0].count as number;
  };
  const change = (verb: 'Cancel' | 'Delete') =>
    admin.gql(
      `mutation ($input: ${verb}JobsInput!) { changed: ${verb.toLowerCase()}Jobs(input: $input) { done } }`,
      { input: { namespace: 'admin', filter: { namePrefix: 'j' } } },
    );
  const left = {
    Cancel: () => count(`jobs where status = 'queued'`),
    Delete: () => count('jobs'),
  };
  for (const verb of ['Cancel', 'Delete'] as const) {
    const first = change(verb).catch(() => null);
    await eventually(async () => expect(await left[verb]()).toBeLessThan(JOBS - 200));
    await server.kill();
    expect(await first).toBe(null);
    const remaining = await left[verb]();
    expect(remaining).toBeGreaterThan(0);
    const done = JOBS - remaining;
    const type = verb === 'Cancel' ? 'job.cancelled' : 'job.deleted';
    expect(await count(`events where type = '${type}'`)).toBe(done);
    expect(await count(`audit_entries where action = 'job.${verb.toLowerCase()}'`)).toBe(done);
    if (verb === 'Cancel') expect(await count('jobs where completed_at is not null')).toBe(done);
    const { rows } = await pool.query('select sum(waiting)::int as waiting from queue_lines');
    expect(rows[0].waiting).toBe(await count(`jobs where status = 'queued'`));
    await server.start();
    expect((await change(verb)).changed.done).toBe(remaining);
    expect(await left[verb]()).toBe(0);
  }
});
