import { expect, test } from 'vitest';
import { startApp } from './harness.ts';

test('a new user has a namespace of the same name', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { viewer, whoami } = await alice.gql(
    '{ viewer { id username email plan namespace { name kind viewerRole members { role user { username } } } } whoami { userId username email namespace } }',
  );
  expect(viewer).toMatchObject({
    username: 'alice',
    email: 'alice@example.com',
    plan: 'UNLIMITED',
    namespace: {
      name: 'alice',
      kind: 'USER',
      viewerRole: 'ADMIN',
      members: [{ role: 'ADMIN', user: { username: 'alice' } }],
    },
  });
  expect(whoami).toEqual({
    userId: viewer.id,
    username: 'alice',
    email: 'alice@example.com',
    namespace: 'alice',
  });
});
