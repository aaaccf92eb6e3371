import { expect, test } from 'vitest';
import { eventually, startApp } from './harness.ts';

const PATH = '/auth/v1/pat';

test('the same request under the same key is done once and answered alike', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const key = { 'Idempotency-Key': 'a key of mine' };
  const first = await alice.post(PATH, { name: 'ci' }, key);
  expect(first.status).toBe(201);
  expect(first.headers.get('idempotency-replayed')).toBeNull();

  const again = await alice.post(PATH, { name: 'ci' }, key);
  expect([again.status, again.text]).toEqual([201, first.text]);
  expect(again.headers.get('idempotency-replayed')).toBe('true');
  expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'));
  expect(again.headers.get('x-request-id')).not.toBe(first.headers.get('x-request-id'));

  const other = await alice.post(PATH, { name: 'other' }, key);
  expect([other.status, other.body.error.code]).toEqual([422, 'invalid_request']);
  const elsewhere = await alice.post('/auth/v1/api_keys', { name: 'ci' }, key);
  expect(elsewhere.status).toBe(422);

  // Another credential's keys are its own; an answer that refuses is an answer too.
  const bob = await app.user('bob');
  expect((await bob.post(PATH, { name: 'ci' }, key)).status).toBe(201);
  const taken = await alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': '2' });
  const replayed = await alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': '2' });
  expect([taken.status, replayed.status, replayed.text]).toEqual([409, 409, taken.text]);

  const stored = JSON.stringify(await app.app.services.db.idempotentRequest.findMany());
  expect(stored).not.toContain(first.body.token);

  for (const bad of ['', ' ', 'x'.repeat(256), 'schlüssel'])
    expect((await alice.post(PATH, { name: 'x' }, { 'Idempotency-Key': bad })).status).toBe(400);
});

test('while the first request runs the second gets 409, and one whose server died is taken over', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const post = (name: string) => alice.post(PATH, { name }, { 'Idempotency-Key': 'k' });
  const age = (interval: string) =>
    pool.query(`update idempotent_requests set created_at = now() - $1::interval`, [interval]);

  // Holds the first one where it writes.
  const blocker = await pool.connect();
  await blocker.query('begin; lock table access_tokens in exclusive mode');
  const first = post('ci');
  const claimed = () => db.idempotentRequest.findFirstOrThrow({ select: { createdAt: true } });
  await eventually(claimed);
  const second = await post('ci');
  expect([second.status, second.body.error.code]).toEqual([409, 'conflict']);
  expect(second.headers.get('retry-after')).toBe('1');
  expect((await post('other')).status).toBe(422);

  // As if its server had died half a minute ago.
  await age('31 seconds');
  expect((await post('other')).status).toBe(422);
  const old = (await claimed()).createdAt;
  const heir = post('ci');
  await eventually(async () => expect((await claimed()).createdAt).not.toEqual(old));
  await blocker.query('commit');
  blocker.release();
  const answers = await Promise.all([first, heir]);
  expect(answers.map(({ status }) => status).sort()).toEqual([201, 409]);
  // The answer that is kept is the one of who took over.
  expect((await post('ci')).text).toBe(answers[1].text);

  await age('24 hours');
  expect((await post('anew')).status).toBe(201);
});

test('an answer of 5xx is not kept', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const post = () => alice.post('/auth/v1/api_keys', { name: 'ci' }, { 'Idempotency-Key': 'k' });
  await pool.query('alter table api_keys rename column hash to hidden');
  expect((await post()).status).toBe(500);
  expect(await db.idempotentRequest.count()).toBe(0);
  await pool.query('alter table api_keys rename column hidden to hash');
  expect((await post()).status).toBe(201);
});
