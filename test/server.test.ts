import { expect, test } from 'vitest';
import { startApp } from './harness.ts';

test('it says that it lives, is ready, and which one it is', async () => {
  await using app = await startApp();
  expect((await app.anonymous.get('/livez')).text).toBe('ok');
  expect((await app.anonymous.get('/readyz')).text).toBe('ok');
  const { data } = await app.anonymous.graphql('{ health { status } version { version build } }');
  expect(data).toEqual({
    health: { status: 'ok' },
    version: { version: 'v1', build: expect.any(String) },
  });
});

test('a request id is kept when it is sane, and made when it is not', async () => {
  await using app = await startApp();
  const kept = await app.anonymous.get('/nowhere', { 'X-Request-Id': 'abc-1' });
  expect(kept.headers.get('x-request-id')).toBe('abc-1');
  expect(kept.body.error).toMatchObject({ code: 'not_found', request_id: 'abc-1' });
  const made = await app.anonymous.get('/nowhere', { 'X-Request-Id': 'not sane' });
  expect(made.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
});
