/** Concurrent requests on one repository: each response is as if the requests were sequential. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  await app.user('bob');
  await app.admin.setMembers('bob', { ada: 'ADMIN' });
});
afterAll(() => app[Symbol.asyncDispose]());

const times = <T>(n: number, make: (i: number) => Promise<T>) =>
  Promise.all(Array.from({ length: n }, (_, i) => make(i)));

test('20 renames, 10 transfers and 10 deletions of one repository run concurrently', async () => {
  for (let round = 0; round < 5; round++) {
    const { id } = (await ada.post('/auth/v1/repository/ada', { name: `raced-${round}` })).body;
    const path = `/auth/v1/repository/ada/${id}`;
    const [renames, transfers, deletions] = await Promise.all([
      times(20, (i) => ada.put(`${path}/name`, { name: `raced-${round}-${i % 7}` })),
      times(10, (i) => ada.post(`${path}/transfer`, { new_namespace: i % 2 ? 'bob' : 'ada' })),
      times(10, (i) => ada.delete(i % 2 ? path : path.replace('/ada/', '/bob/'))),
    ]);
    for (const { status, text } of renames) expect([200, 404], text).toContain(status);
    for (const { status, text } of transfers) expect([200, 400, 404], text).toContain(status);
    const statuses = deletions.map(({ status }) => status);
    expect(statuses.filter((status) => status === 204).length).toBeLessThanOrEqual(1);
    for (const { status, text } of deletions) expect([204, 404], text).toContain(status);
    for (const owner of ['ada', 'bob']) await ada.delete(`/auth/v1/repository/${owner}/${id}`);
    const { git } = app.app.services;
    expect(await git.disk.pendingOperations()).toEqual([]);
  }
});

test('concurrent transfers in both directions do not deadlock', async () => {
  const make = async (owner: string, i: number) =>
    (await ada.post(`/auth/v1/repository/${owner}`, { name: `both-${owner}-${i}` })).body.id;
  const own = await times(10, (i) => make('ada', i));
  const others = await times(10, (i) => make('bob', i));
  const { pool } = app.app.services;
  // A transfer locks a namespace only if its storage changes.
  await pool.query('update repositories set size_bytes = 1024 where id = any($1)', [
    [...own, ...others],
  ]);
  const move = (from: string, to: string) => (id: string) =>
    ada.post(`/auth/v1/repository/${from}/${id}/transfer`, { new_namespace: to });
  const answers = await Promise.all([
    ...own.map(move('ada', 'bob')),
    ...others.map(move('bob', 'ada')),
  ]);
  expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
});

test('a deletion that PostgreSQL rolls back because of a deadlock is repeated', async () => {
  const { id } = (await ada.post('/auth/v1/repository/ada', { name: 'deadlocked' })).body;
  const { pool } = app.app.services;
  // Only the deletion of a repository with a size locks its namespace.
  await pool.query('update repositories set size_bytes = 1024 where id = $1', [id]);
  const other = await pool.connect();
  try {
    await other.query(`begin; set local deadlock_timeout = '1min'`);
    await other.query(`select from namespaces where name = 'ada' for no key update`);
    const deletion = ada.delete(`/auth/v1/repository/ada/${id}`);
    await eventually(async () => {
      const { rowCount } = await pool.query(
        `select from pg_stat_activity where wait_event_type = 'Lock' and query ilike '%delete%repositories%'
         and datname = current_database()`,
      );
      expect(rowCount).toBe(1);
    });
    await other.query('select from repositories where id = $1 for no key update', [id]);
    await other.query('rollback');
    const { status, text } = await deletion;
    expect(status, text).toBe(204);
  } finally {
    other.release();
  }
});
