/** Branch rules, tested with stock git. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { matchesPattern, validatePattern } from '../../src/repositories/branch-patterns.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;
let id: string;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  bob = await app.user('bob');
  await ada.repository('ada/ruled');
  await app.admin.setMembers('ada', { bob: 'WRITE' });
  ({ id } = (await ada.gql('{ repository(namespace: "ada", name: "ruled") { id } }')).repository);
  for (const [name, client] of Object.entries({ ada, bob }))
    await workspace.clone(client, 'ada/ruled', name);
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const SET =
  'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { branchRules { totalCount nodes { pattern pushRole pushers allowsForcePushes allowsDeletions } } } } }';
const set = async (pattern: string, more: object = {}) =>
  (await ada.gql(SET, { input: { id, pattern, ...more } })).setBranchRule.repository.branchRules;

/** Returns null if the push is accepted, else the reason. */
async function push(who: string, ...args: string[]): Promise<string | null> {
  const { code, stderr } = await workspace.try(who, 'push', 'origin', ...args);
  if (code === 0) return null;
  return /^remote: (.*protected.*?)\s*$/m.exec(stderr)?.[1] ?? stderr;
}

test.each([
  ['main', 'main', true],
  ['main', 'mains', false],
  ['release/*', 'release/1.0', true],
  ['release/*', 'release/1/0', false],
  ['release/**', 'release/1/0', true],
  ['*', 'a/b', false],
  ['**', 'a/b', true],
  ['**/fix', 'a/b/fix', true],
  ['v?', 'v1', true],
  ['v?', 'v/', false],
  ['v?', 'v', false],
  ['*-[x]', 'a-[x]', true],
  ['*.*', 'a.b', true],
  ['*.*', 'ab', false],
  ['*/**x', 'a/b/x', true],
  ['**a*/b', 'x/a/ca/b', true],
  ['**a*/b', 'x/a/c/d', false],
  ['a**', 'a', true],
])('%j and %j: %j', (pattern, name, expected) => {
  expect(matchesPattern(pattern, name)).toBe(expected);
});

test('the matching time of a pattern is bounded, also for crafted patterns', () => {
  expect(validatePattern(`${'*a'.repeat(8)}b`)).toBeNull();
  const begun = process.cpuUsage();
  for (let times = 0; times < 1_000; times++) {
    expect(matchesPattern(`${'*a'.repeat(8)}b`, 'a'.repeat(240))).toBe(false);
    expect(matchesPattern(`${'**a*'.repeat(4)}b`, 'a'.repeat(240))).toBe(false);
  }
  expect(process.cpuUsage(begun).user).toBeLessThan(20e6);
  for (const pattern of [
    '',
    '/',
    'a b',
    'refs/heads/x',
    '***',
    '*a'.repeat(9),
    'x'.repeat(241),
    'a..b',
  ])
    expect([pattern, validatePattern(pattern)]).toEqual([pattern, expect.any(String)]);
});

test('a rule rejects force pushes and deletions of matching branches only', async () => {
  expect(await set('release/*')).toEqual({
    totalCount: 1,
    nodes: [
      {
        pattern: 'release/*',
        pushRole: 'WRITE',
        pushers: [],
        allowsForcePushes: false,
        allowsDeletions: false,
      },
    ],
  });
  await workspace.commit('bob', { 'a.txt': 'a' });
  expect(await push('bob', 'HEAD:refs/heads/release/1', 'HEAD:refs/heads/topic')).toBeNull();
  await workspace.git('bob', 'commit', '-q', '--amend', '-m', 'other');
  expect(await push('bob', '--force', 'HEAD:refs/heads/release/1')).toBe(
    'The branch release/1 is protected: only fast-forward pushes are accepted',
  );
  expect(await push('bob', ':refs/heads/release/1')).toBe(
    'The branch release/1 is protected and cannot be deleted',
  );
  expect(await push('bob', '--force', 'HEAD:refs/heads/topic')).toBeNull();
  expect(await push('bob', ':refs/heads/topic')).toBeNull();
  await set('release/*', { allowsForcePushes: true, allowsDeletions: true });
  expect(await push('bob', '--force', 'HEAD:refs/heads/release/1')).toBeNull();
  expect(await push('bob', ':refs/heads/release/1')).toBeNull();
});

test('a forged parent does not make a push a fast-forward, for rules and for default branch protection', async () => {
  await ada.repository('ada/forged');
  const ask = async (fields: string) =>
    (await ada.gql(`{ repository(namespace: "ada", name: "forged") { ${fields} } }`)).repository;
  const { id: forged } = await ask('id');
  await ada.gql(SET, { input: { id: forged, pattern: 'ruled' } });
  await workspace.clone(bob, 'ada/forged');
  const tip = await workspace.commit('forged', { 'a.txt': 'a' });
  expect(await push('forged', 'HEAD:main', 'HEAD:refs/heads/ruled')).toBeNull();
  await ada.gql(
    'mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }',
    { input: { namespace: 'ada', id: forged, branchProtection: true } },
  );
  const sha = await workspace.forgeParent('forged', tip);
  for (const branch of ['main', 'ruled'])
    expect(await push('forged', '--force', `${sha}:refs/heads/${branch}`)).toBe(
      `The branch ${branch} is protected: only fast-forward pushes are accepted`,
    );
  // On an unprotected branch the commit is accepted and shown as git parses it.
  expect(await push('forged', `${sha}:refs/heads/other`)).toBeNull();
  const { commit } = await ask('commit(revision: "other") { sha parents }');
  expect(commit).toEqual({ sha, parents: [] });
  await workspace.commit('forged', { 'a.txt': 'b' });
  expect(await push('forged', 'HEAD:main', 'HEAD:refs/heads/ruled')).toBeNull();
});

test('a rule can restrict pushes to administrators and named users; all matching rules apply', async () => {
  await set('**', { allowsForcePushes: true, allowsDeletions: true });
  await set('prod', { pushRole: 'ADMIN' });
  await workspace.commit('bob', { 'b.txt': 'b' });
  expect(await push('bob', 'HEAD:refs/heads/prod')).toBe(
    'The branch prod is protected: the rule for prod allows only administrators to push to it',
  );
  // One rejected ref rejects the whole push.
  expect(await push('bob', 'HEAD:refs/heads/free', 'HEAD:refs/heads/prod')).toContain('prod');
  expect(await workspace.git('bob', 'ls-remote', 'origin', 'free')).toBe('');
  await workspace.commit('ada', { 'c.txt': 'c' });
  expect(await push('ada', 'HEAD:refs/heads/prod')).toBeNull();
  expect(await push('ada', ':refs/heads/prod')).toContain('cannot be deleted');

  const { nodes } = await set('prod', { pushRole: 'ADMIN', pushers: ['BOB', 'bob'] });
  expect(nodes.find((rule: { pattern: string }) => rule.pattern === 'prod').pushers).toEqual([
    'bob',
  ]);
  await workspace.git('bob', 'pull', '-q', '--rebase', 'origin', 'prod');
  expect(await push('bob', 'HEAD:refs/heads/prod')).toBeNull();
  // Rules do not apply to tags.
  expect(await push('bob', 'HEAD:refs/tags/prod')).toBeNull();

  await ada.gql(
    'mutation ($input: DeleteBranchRuleInput!) { deleteBranchRule(input: $input) { repository { id } } }',
    { input: { id, pattern: 'prod' } },
  );
  expect(await push('bob', ':refs/heads/prod')).toBeNull();
});

test('an invalid rule is rejected with the name of the field', async () => {
  for (const [input, code, message] of [
    [{ pattern: 'a b' }, 'INVALID_REQUEST', 'pattern'],
    [{ pattern: 'nul\0' }, 'INVALID_REQUEST', 'pattern'],
    [{ pattern: 'x', pushRole: 'READ' }, 'INVALID_REQUEST', 'pushRole'],
    [{ pattern: 'x', pushers: ['nobody'] }, 'NOT_FOUND', 'User'],
    [{ pattern: 'x', pushers: Array(101).fill('bob') }, 'INVALID_REQUEST', 'pushers'],
    [{ pattern: 'x', id: 'repo_x' }, 'NOT_FOUND', 'Repository'],
  ] as const) {
    const { errors } = await ada.graphql(SET, { input: { id, ...input } });
    expect(errors?.[0]).toMatchObject({
      extensions: { code },
      message: expect.stringContaining(message),
    });
  }
  const { errors } = await bob.graphql(SET, { input: { id, pattern: 'x' } });
  expect(errors?.[0]).toMatchObject({ extensions: { code: 'PERMISSION_DENIED' } });
});
