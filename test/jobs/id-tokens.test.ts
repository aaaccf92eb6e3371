/** Identity tokens of jobs, verified as relying parties do. */
import { randomBytes } from 'node:crypto';
import {
  createRemoteJWKSet,
  decodeJwt,
  decodeProtectedHeader,
  exportJWK,
  generateKeyPair,
  jwtVerify,
  SignJWT,
  UnsecuredJWT,
} from 'jose';
import * as oidc from 'openid-client';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { planRotation, TokenIssuer } from '../../src/identity/token-issuer.ts';
import { issueIdTokens } from '../../src/jobs/attempts/id-tokens.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { lines, submit, submitRaw, until, variables } from '../support/submit.ts';

let app: TestApp;
let runner: FakeRunner;
let ada: Client;
/** A writer of Ada's namespace. */
let bob: Client;
let workspace: Workspace;
let repositoryId: string;

const AUDIENCE = 'sts.example.com';
const REPO = { repo: 'ada/model' };
const TOKENS = { idTokens: [{ variable: 'CLOUD_TOKEN', audience: AUDIENCE }] };

beforeAll(async () => {
  runner = fakeRunner({ images: true });
  app = await startApp({ config: { jobSlots: 100 }, overrides: { runner } });
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
  await ada.setMembers('ada', { bob: 'WRITE' });
  repositoryId = await ada.repository('ada/model');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

/** Submits a job and returns it with its tokens. */
async function startJob(by: Client, input: { name: string; [field: string]: unknown }) {
  const job = await submit(by, {
    namespace: 'ada',
    command: 'hold',
    ...TOKENS,
    ...input,
  });
  const find = () => runner.running().find((one) => one.job.id === job.id);
  const spec = await eventually(() => {
    const found = find();
    if (!found) throw new Error('the job does not run yet');
    return found;
  });
  return {
    job,
    spec,
    token: spec.files.CLOUD_TOKEN ?? '',
    current: () => find()?.files.CLOUD_TOKEN,
  };
}

const keys = () => createRemoteJWKSet(new URL(`${app.base}/.well-known/jwks.json`));
const verify = (token: string) =>
  jwtVerify(token, keys(), { issuer: app.base, audience: AUDIENCE, algorithms: ['RS256'] });
const refusalOf = async (by: Client, input: object) =>
  (await submitRaw(by, { namespace: 'ada', name: 'refused', command: 'true', ...TOKENS, ...input }))
    .errors?.[0];

test('a relying party discovers the issuer and verifies a token of a branch', async () => {
  const { job, token } = await startJob(ada, { name: 'train', ...REPO, timeoutMinutes: 600 });
  const config = await oidc.discovery(new URL(app.base), 'party', undefined, undefined, {
    execute: [oidc.allowInsecureRequests],
  });
  const { issuer, jwks_uri = '' } = config.serverMetadata();
  const { payload, protectedHeader } = await jwtVerify(
    token,
    createRemoteJWKSet(new URL(jwks_uri)),
    {
      issuer,
      audience: AUDIENCE,
    },
  );
  expect(protectedHeader).toEqual({ alg: 'RS256', typ: 'JWT', kid: expect.any(String) });
  const { viewer, namespace } = await ada.gql('{ viewer { id } namespace(name: "ada") { id } }');
  const { iat = 0 } = payload;
  expect(payload).toEqual({
    iss: app.base,
    sub: 'repo:ada/model:ref:refs/heads/main',
    aud: AUDIENCE,
    iat,
    nbf: iat - 60,
    exp: iat + 3_600,
    jti: expect.any(String),
    namespace: 'ada',
    namespace_id: namespace.id,
    repository: 'ada/model',
    repository_id: repositoryId,
    ref: 'refs/heads/main',
    sha: job.commitSha,
    job: 'train',
    job_id: job.id,
    actor: 'ada',
    actor_id: viewer.id,
  });
  const query = `{ node(id: "${job.id}") { ... on Job { idTokens { variable audience } } }
    namespace(name: "ada") { auditLog(first: 1, action: JOB_CREATE) { nodes { details } } } }`;
  const shown = await ada.gql(query);
  expect(shown.node.idTokens).toEqual(TOKENS.idTokens);
  expect(shown.namespace.auditLog.nodes[0].details).toMatchObject({ audiences: [AUDIENCE] });
});

test('a job without a repository has the identity of its namespace, for no longer than its timeout', async () => {
  const { token } = await startJob(ada, { name: 'bare', image: 'debian:12', timeoutMinutes: 2 });
  const { payload } = await verify(token);
  expect(payload.sub).toBe('namespace:ada');
  expect(payload).not.toHaveProperty('repository');
  expect((payload.exp ?? 0) - (payload.iat ?? 0)).toBe(120);
});

test('a snapshot is no branch', async () => {
  await workspace.clone(ada, 'ada/model', 'snapshot');
  await workspace.commit('snapshot', { 'a.txt': 'a' });
  const id = randomBytes(16).toString('hex');
  await workspace.git('snapshot', 'push', '-q', 'origin', `HEAD:refs/loam/snapshots/${id}`);
  const { token } = await startJob(ada, { name: 'snapshot', ...REPO, snapshot: id });
  const { payload } = await verify(token);
  expect(payload.sub).toBe(`repo:ada/model:ref:refs/loam/snapshots/${id}`);
});

test('a relying party refuses another audience, another issuer, no signature, another key and a changed token', async () => {
  const { token } = await startJob(ada, { name: 'refused-by-parties', ...REPO });
  const claims = decodeJwt(token);
  const header = decodeProtectedHeader(token);
  await expect(jwtVerify(token, keys(), { issuer: app.base, audience: 'other' })).rejects.toThrow(
    /aud/,
  );
  await expect(
    jwtVerify(token, keys(), { issuer: 'https://other.example', audience: AUDIENCE }),
  ).rejects.toThrow(/iss/);
  await expect(verify(new UnsecuredJWT(claims).encode())).rejects.toThrow();
  const { privateKey } = await generateKeyPair('RS256');
  const forged = await new SignJWT(claims)
    .setProtectedHeader({ alg: 'RS256', kid: header.kid })
    .sign(privateKey);
  await expect(verify(forged)).rejects.toThrow(/signature/);
  const [head, , signature] = token.split('.');
  const changed = Buffer.from(
    JSON.stringify({ ...claims, sub: 'repo:ada/model:ref:refs/heads/x' }),
  );
  await expect(verify(`${head}.${changed.toString('base64url')}.${signature}`)).rejects.toThrow();
  // The public key as the secret of a symmetric algorithm.
  const { body } = await app.anonymous.get('/.well-known/jwks.json');
  const symmetric = await new SignJWT(claims)
    .setProtectedHeader({ alg: 'HS256', kid: header.kid })
    .sign(new TextEncoder().encode(JSON.stringify(body.keys[0])));
  await expect(verify(symmetric)).rejects.toThrow();
});

test('an identity token is no credential for Loam', async () => {
  const { token } = await startJob(ada, { name: 'no-credential', ...REPO });
  expect((await app.client(`Bearer ${token}`).get('/auth/v1/whoami')).status).toBe(401);
});

test('the published keys have no private parts, and each document has one address', async () => {
  const { body, headers } = await app.anonymous.get('/.well-known/jwks.json');
  expect(headers.get('cache-control')).toBe('public, max-age=300');
  for (const key of body.keys)
    expect(Object.keys(key).sort()).toEqual(['alg', 'e', 'kid', 'kty', 'n', 'use']);
  expect((await app.anonymous.post('/.well-known/jwks.json', {})).status).toBe(405);
  const page = await app.anonymous.get('/.well-known/openid-configuration', {
    accept: 'text/html',
  });
  expect(page.body.issuer).toBe(app.base);
  expect((await app.anonymous.get('/.well-known/other')).status).toBe(404);
});

test('only who may push to the branch gets its identity', async () => {
  await ada.gql(
    'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }',
    { input: { id: repositoryId, pattern: 'main', pushRole: 'ADMIN', pushers: [] } },
  );
  // Bob may create jobs that run main, with a command of his choice.
  const denied = { extensions: { code: 'PERMISSION_DENIED' } };
  expect(await refusalOf(bob, REPO)).toMatchObject(denied);
  expect(await refusalOf(bob, { ...REPO, idTokens: [] })).toBeUndefined();
  await startJob(ada, { name: 'by-admin', ...REPO });
  const RERUN = `mutation { rerunJob(input: { namespace: "ada", name: "by-admin" }) { job { idTokens { audience } } } }`;
  expect((await bob.graphql(RERUN)).errors?.[0]).toMatchObject(denied);
  expect((await ada.gql(RERUN)).rerunJob.job.idTokens).toEqual([{ audience: AUDIENCE }]);
  // A token without the right to push, and a repository of another namespace.
  const limited = await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_READ'] });
  expect(await refusalOf(limited, REPO)).toMatchObject(denied);
  await bob.repository('bob/public', { visibility: 'PUBLIC' });
  expect(await refusalOf(ada, { repo: 'bob/public' })).toMatchObject({
    extensions: { code: 'INVALID_REQUEST', field: 'idTokens' },
  });
});

test('a job cannot get the identity of another branch through jobs that it creates', async () => {
  const { spec } = await startJob(ada, {
    name: 'parent',
    ...REPO,
    permissions: { jobs: 'WRITE', repo: 'WRITE' },
  });
  const child = app.client(`Bearer ${spec.env.LOAM_TOKEN}`);
  expect(await refusalOf(child, REPO)).toMatchObject({ extensions: { code: 'PERMISSION_DENIED' } });
});

test('requests that make no sense are refused, naming the field', async () => {
  const bad: [string, string][] = [
    ['1X', AUDIENCE],
    ['LOAM_TOKEN', AUDIENCE],
    ['PATH', AUDIENCE],
    ['X'.repeat(101), AUDIENCE],
    ['X', ''],
    ['X', 'a b'],
    ['X', 'x'.repeat(256)],
    ['X', 'a\nb'],
  ];
  for (const [variable, audience] of bad)
    expect(await refusalOf(ada, { ...REPO, idTokens: [{ variable, audience }] })).toMatchObject({
      extensions: { code: 'INVALID_REQUEST', field: 'idTokens' },
    });
  const twice = [{ variable: 'X', audience: AUDIENCE }];
  for (const input of [
    { idTokens: [...twice, ...twice] },
    { idTokens: [...twice, { variable: 'X_FILE', audience: AUDIENCE }] },
    { idTokens: twice, env: variables({ X_FILE: 'x' }) },
    { idTokens: Array.from({ length: 11 }, (_, i) => ({ variable: `X${i}`, audience: AUDIENCE })) },
  ])
    expect(await refusalOf(ada, { ...REPO, ...input })).toMatchObject({
      extensions: { code: 'INVALID_REQUEST', field: 'idTokens' },
    });
});

test('a job of a creator who may no longer run it does not start', async () => {
  await using stopped = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  const eve = await stopped.user('eve');
  await stopped.user('fay');
  await eve.repository('eve/model');
  const created = await submit(eve, {
    namespace: 'eve',
    name: 'late',
    command: 'true',
    repo: 'eve/model',
    ...TOKENS,
  });
  expect(created.status).toBe('QUEUED');
  await stopped.admin.gql('mutation { disableUser(input: { username: "eve" }) { user { id } } }');
  await stopped.pool.query(`update jobs set attempt_id = 'att_1'`);
  await expect(issueIdTokens(stopped.app.services, 'att_1')).rejects.toThrow(
    'eve, who created it, may not run jobs in its namespace any more',
  );
  await stopped.admin.gql('mutation { enableUser(input: { username: "eve" }) { user { id } } }');
  const id = (await eve.gql('{ repository(namespace: "eve", name: "model") { id } }')).repository
    .id;
  const setRule = (pushRole: string) =>
    stopped.admin.gql(
      'mutation ($input: SetBranchRuleInput!) { setBranchRule(input: $input) { repository { id } } }',
      { input: { id, pattern: 'main', pushRole, pushers: [] } },
    );
  await stopped.admin.setMembers('eve', { fay: 'WRITE' });
  await setRule('ADMIN');
  const createdBy = (username: string) =>
    stopped.pool.query(
      `update jobs set created_by_id = (select id from users where username = $1)`,
      [username],
    );
  await createdBy('fay');
  await expect(issueIdTokens(stopped.app.services, 'att_1')).rejects.toThrow(
    'fay, who created it, may not push to the branch main any more',
  );
  await createdBy('eve');
  // A name that another repository has now is not in the token.
  await eve.gql(
    `mutation { renameRepository(input: { id: "${id}", name: "renamed" }) { repository { id } } }`,
  );
  await eve.repository('eve/model');
  const tokens = await issueIdTokens(stopped.app.services, 'att_1');
  expect(decodeJwt(tokens?.CLOUD_TOKEN ?? '').sub).toBe('repo:eve/renamed:ref:refs/heads/main');
  expect(await issueIdTokens(stopped.app.services, 'att_2')).toBeNull();
});

test('keys rotate: the next one is published before it signs, and the old one until its tokens have expired', async () => {
  const { token } = await startJob(ada, { name: 'rotating', ...REPO });
  const listed = async () =>
    (await new TokenIssuer(app.pool, testKeys).listPublicKeys()).map(({ kid }) => kid);
  const testKeys = { derive: () => sealing };
  const age = (days: number) =>
    app.pool.query(`update signing_keys set created_at = created_at - make_interval(hours => $1)`, [
      days * 24,
    ]);
  const [first] = await listed();
  await app.app.services.tokenIssuer.rotate();
  expect(await listed()).toEqual([first]);
  await age(91);
  await app.app.services.tokenIssuer.rotate();
  const [old, next] = await listed();
  expect(old).toBe(first);
  expect(next).toBeDefined();
  // A server that reads the keys anew still signs with the old one for a day.
  await app.restart();
  const kidOf = async (name: string) =>
    decodeProtectedHeader((await startJob(ada, { name, ...REPO })).token).kid;
  expect(await kidOf('before')).toBe(first);
  await age(1);
  await app.restart();
  expect(await kidOf('after')).toBe(next);
  // The old key still verifies its tokens.
  await verify(token);
  await age(1);
  await app.app.services.tokenIssuer.rotate();
  expect(await listed()).toEqual([next]);
  await expect(verify(token)).rejects.toThrow();
});
const sealing = randomBytes(32);

test('servers that need the first key at once create one', async () => {
  await using fresh = await startApp();
  const issuers = Array.from(
    { length: 5 },
    () => new TokenIssuer(fresh.pool, { derive: () => sealing }),
  );
  const sets = await Promise.all(issuers.map((issuer) => issuer.listPublicKeys()));
  expect(new Set(sets.flat().map(({ kid }) => kid)).size).toBe(1);
});

test('a key is due after 90 days and removed 26 hours after its successor was created', () => {
  const hour = 3_600_000;
  const keysAt = (...hours: number[]) =>
    hours.map((at) => ({ id: `${at}`, createdAt: new Date(at * hour) }));
  const plan = (hours: number[], now: number) => planRotation(keysAt(...hours), now * hour);
  expect(plan([], 0)).toEqual({ isDue: true, expired: [] });
  expect(plan([0], 90 * 24 - 1)).toEqual({ isDue: false, expired: [] });
  expect(plan([0], 90 * 24)).toEqual({ isDue: true, expired: [] });
  expect(plan([0, 100], 125)).toEqual({ isDue: false, expired: [] });
  expect(plan([0, 100], 126)).toEqual({ isDue: false, expired: ['0'] });
});

test('a stored key is useless without the secret key of the server', async () => {
  const { rows } = await app.pool.query('select public_key, private_key from signing_keys');
  const { publicKey } = await generateKeyPair('RS256');
  expect(Object.keys(rows[0].public_key).sort()).toEqual(
    Object.keys(await exportJWK(publicKey)).sort(),
  );
  expect(rows[0].private_key.toString('latin1')).not.toContain('PRIVATE');
});

test('the log masks the tokens', async () => {
  const { token } = await startJob(ada, { name: 'leaky', ...REPO });
  const input = {
    namespace: 'ada',
    name: 'printing',
    command: `echo "token ${token}."`,
    ...REPO,
    ...TOKENS,
  };
  await submit(ada, input);
  await until(ada, 'ada', 'printing', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'printing')).toEqual(['token ***.']);
});
