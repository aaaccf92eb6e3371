/**
 * Random concurrent requests of several callers on the same few repositories: renames, transfers, deletions, visibility,
 * pushes, clones, reads, jobs. No answer is a 5xx, and afterwards disk and database agree.
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { expectConsistent, expectNoGit } from '../../support/fuzz/agreement.ts';
import { count } from '../../support/fuzz/world.ts';
import { Workspace } from '../../support/git.ts';
import { type Client, startApp } from '../../support/harness.ts';

const OWNERS = ['ada', 'bob'];
const NAMES = ['one', 'two', 'three'];
const BATCH = 24;

const STEPS = [
  'rename',
  'rename',
  'transfer',
  'delete',
  'visibility',
  'protect',
  'push',
  'push',
  'pushDelete',
  'clone',
  'lsRemote',
  'tree',
  'commits',
  'refs',
  'job',
  'list',
  'create',
] as const;

type Step = {
  what: (typeof STEPS)[number];
  repository: number;
  owner: string;
  name: string;
  caller: number;
};

const step: fc.Arbitrary<Step> = fc.record({
  what: fc.constantFrom(...STEPS),
  repository: fc.nat(NAMES.length - 1),
  owner: fc.constantFrom(...OWNERS),
  name: fc.constantFrom(...NAMES, 'four', 'five'),
  caller: fc.nat(2),
});

test('every concurrent request to the same repositories is answered, and the repositories stay intact', async () => {
  await using app = await startApp();
  await using workspace = await Workspace.open();
  const callers: Client[] = [];
  for (const name of OWNERS) callers.push(await app.user(name));
  for (const [namespace, username] of [
    ['ada', 'bob'],
    ['bob', 'ada'],
  ])
    await app.admin.gql(
      'mutation ($input: SetMemberInput!) { setMember(input: $input) { member { role } } }',
      { input: { namespace, username, role: 'ADMIN' } },
    );
  callers.push(app.anonymous);
  const [ada] = callers as [Client];

  await workspace.git('.', 'init', '-q', '-b', 'main', 'work');
  await workspace.commit('work', { 'a.py': 'print(1)\n' });
  const path = (owner: string, id: string) => `/auth/v1/repository/${owner}/${id}`;
  let made = 0;
  /** The last known name of each repository; other callers may have moved it meanwhile. */
  const ids: string[] = [];
  const restore = async () => {
    for (let i = 0; i < NAMES.length; i++) {
      const found = await app.app.services.db.repository.findUnique({
        where: { id: ids[i] ?? '' },
        select: { id: true },
      });
      if (found) continue;
      const { body } = await ada.post('/auth/v1/repository/ada', { name: `fresh-${made++}` });
      ids[i] = body.id;
    }
  };
  const placeOf = async (id: string) => {
    const row = await app.app.services.db.repository.findUnique({
      where: { id },
      select: { name: true, namespace: { select: { name: true } } },
    });
    return row ? `${row.namespace.name}/${row.name}` : 'ada/gone';
  };
  const remoteOf = (client: Client, place: string) => {
    const url = new URL(`${app.base}/${place}.git`);
    if (client.token) Object.assign(url, { username: 'x', password: client.token });
    return url.href;
  };

  const seen = new Map<string, number>();
  async function take({ what, repository, owner, name, caller }: Step): Promise<void> {
    const client = callers[caller] ?? ada;
    const id = ids[repository] ?? '';
    const answered = (status: number, text = '') => {
      expect(status, `${what} ${text.slice(0, 500)}`).toBeLessThan(500);
      seen.set(`${what} ${status}`, (seen.get(`${what} ${status}`) ?? 0) + 1);
    };
    const rest = async (request: ReturnType<Client['get']>) => {
      const { status, text } = await request;
      answered(status, text);
    };
    const stock = async (...args: string[]) => {
      const place = await placeOf(id);
      const all = args.map((arg) => (arg === 'REMOTE' ? remoteOf(client, place) : arg));
      const { code, stderr } = await workspace.try('work', ...all);
      // What git prints for a 5xx, and for an error reported within its protocol.
      expect(stderr, what).not.toMatch(/(error:|HTTP) 5\d\d|because of a server error/);
      answered(code === 0 ? 200 : 400);
    };
    const fresh = crypto.randomUUID();
    switch (what) {
      case 'rename':
        return rest(client.put(`${path(owner, id)}/name`, { name }));
      case 'transfer':
        return rest(
          client.post(`${path(owner, id)}/transfer`, {
            new_namespace: name.length % 2 ? 'ada' : 'bob',
          }),
        );
      case 'delete':
        // New repositories are created now and then, so that there is always something to race for.
        return name === 'five' ? rest(client.delete(path(owner, id))) : undefined;
      case 'visibility':
        return rest(
          client.post(`${path(owner, id)}/visibility`, {
            visibility: name.length % 2 ? 'public' : 'private',
          }),
        );
      case 'protect':
        return rest(
          client.post('/graphql', {
            query: `mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }`,
            variables: { input: { id, secretScanning: name.length % 2 === 0 } },
          }),
        );
      case 'push':
        return stock('push', '-q', 'REMOTE', `HEAD:refs/heads/${name}`, `HEAD:refs/tags/${fresh}`);
      case 'pushDelete':
        return stock('push', '-q', 'REMOTE', `:refs/heads/${name}`);
      case 'clone':
        return stock('clone', '-q', '--bare', 'REMOTE', join(workspace.path, 'clones', fresh));
      case 'lsRemote':
        return stock('ls-remote', 'REMOTE');
      case 'tree':
        return rest(client.get(`${path(owner, id)}/tree/?ref=${name}`));
      case 'commits':
        return rest(client.get(`${path(owner, id)}/commits/${name}`));
      case 'refs':
        return rest(
          client.post('/graphql', {
            query: `query ($id: ID!) { node(id: $id) { ... on Repository { branchCount branches(first: 9) { nodes { name sha } } tree { path } } } }`,
            variables: { id },
          }),
        );
      case 'job':
        return rest(
          client.post('/auth/v1/seed/ada/jobs', {
            name: fresh,
            command: 'true',
            repo: await placeOf(id),
            branch: name,
            gpu: 'none',
            cpu: 2,
            memory_gb: 2,
          }),
        );
      case 'list':
        return rest(client.get(`/auth/v1/repository/${owner}?per_page=100`));
      case 'create':
        return rest(client.post(`/auth/v1/repository/${owner}`, { name }));
    }
  }

  await mkdir(join(workspace.path, 'clones'));
  const property = fc.asyncProperty(
    fc.array(step, { minLength: BATCH, maxLength: BATCH }),
    async (steps) => {
      await restore();
      await Promise.all(steps.map(take));
    },
  );
  // No shrinking: a race seldom has the same result twice, so one failing run is enough.
  await fc.assert(property, { numRuns: count(12, 80), endOnFailure: true });
  console.log('races:', Object.fromEntries([...seen].sort()));
  await expectConsistent(app);
  await expectNoGit(app.config.dataDir);
});
