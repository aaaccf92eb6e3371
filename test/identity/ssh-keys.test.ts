/** Keys for git over SSH: which are accepted, to whom they belong, and who sees and deletes them. */
import { execFileSync } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { parsePublicKey } from '../../src/identity/ssh-keys.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { line, newPublicKey } from '../support/ssh-key.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
beforeAll(async () => {
  app = await startApp();
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
});
afterAll(() => app[Symbol.asyncDispose]());

const ADD = `mutation ($input: AddSshKeyInput!) {
  addSshKey(input: $input) { sshKey { id title fingerprint publicKey createdAt lastUsedAt } } }`;
const DELETE = `mutation ($input: DeleteSshKeyInput!) { deleteSshKey(input: $input) { id } }`;
const ADD_DEPLOY = `mutation ($input: AddDeployKeyInput!) {
  addDeployKey(input: $input) { deployKey { id title fingerprint write repositoryId } } }`;
const DELETE_DEPLOY = `mutation ($input: DeleteDeployKeyInput!) { deleteDeployKey(input: $input) { id } }`;

const codes = async (client: Client, query: string, input: object) => {
  const { errors } = await client.graphql(query, { input });
  return errors?.flatMap(({ extensions }) => [extensions.code, extensions.field ?? null]);
};

test('keys of ssh-keygen are accepted, with the fingerprint that it shows', (ctx) => {
  needs(ctx, 'ssh');
  const folder = mkdtempSync(join(tmpdir(), 'loam-keys-'));
  try {
    for (const [type, bits] of [
      ['ed25519', ''],
      ['ecdsa', '256'],
      ['ecdsa', '384'],
      ['ecdsa', '521'],
      ['rsa', '2048'],
    ] as const) {
      const file = join(folder, type + bits);
      const size = bits ? ['-b', bits] : [];
      execFileSync('ssh-keygen', ['-q', '-t', type, ...size, '-N', '', '-C', 'a b', '-f', file]);
      const shown = execFileSync('ssh-keygen', ['-l', '-f', file], { encoding: 'utf8' });
      const { fingerprint, comment } = parsePublicKey(readFileSync(`${file}.pub`, 'utf8'));
      expect(shown).toContain(` ${fingerprint} `);
      expect(comment).toBe('a b');
    }
    const rsa = join(folder, 'small');
    execFileSync('ssh-keygen', ['-q', '-t', 'rsa', '-b', '1024', '-N', '', '-f', rsa]);
    expect(() => parsePublicKey(readFileSync(`${rsa}.pub`, 'utf8'))).toThrow('has 1024 bits');
    expect(() => parsePublicKey(readFileSync(rsa, 'utf8'))).toThrow('this is a private key');
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('keys of security keys are accepted, and invalid keys are refused with the reason', () => {
  const { x = '', y = '' } = generateKeyPairSync('ec', { namedCurve: 'P-256' }).publicKey.export({
    format: 'jwk',
  });
  const bytes = (text: string) => Buffer.from(text, 'base64url');
  const point = Buffer.concat([Buffer.from([4]), bytes(x), bytes(y)]);
  const taken = [
    line('sk-ssh-ed25519@openssh.com', [randomBytes(32), 'ssh:']),
    line('sk-ecdsa-sha2-nistp256@openssh.com', ['nistp256', point, 'ssh:']),
  ];
  for (const text of taken) expect(parsePublicKey(text).text).toBe(text.replace(/ test$/, ''));

  const modulus = Buffer.concat([Buffer.from([0, 0xff]), randomBytes(254), Buffer.from([1])]);
  const e = Buffer.from([1, 0, 1]);
  expect(parsePublicKey(line('ssh-rsa', [e, modulus])).type).toBe('ssh-rsa');
  const off = Buffer.from(point);
  off[40] = (off[40] ?? 0) ^ 1;
  for (const [text, why] of [
    ['', 'must begin with a supported key type'],
    ['hello', 'must begin with a supported key type'],
    ['constructor AAAA', 'must begin with a supported key type'],
    ['command="ls" ssh-ed25519 AAAA', 'must begin with a supported key type'],
    [line('ssh-dss', [randomBytes(128)]), 'DSA keys are too weak'],
    [line('ssh-ed25519-cert-v01@openssh.com', [randomBytes(32)]), 'is a certificate'],
    [`${newPublicKey()}\n${newPublicKey()}`, 'must be one line'],
    ['ssh-ed25519', 'not valid base64'],
    ['ssh-ed25519 AAAA!', 'not valid base64'],
    [`ssh-rsa ${newPublicKey().split(' ')[1]}`, 'contains another type'],
    [line('ssh-ed25519', [randomBytes(31)]), 'is not 32 bytes long'],
    [line('ssh-ed25519', [randomBytes(32), 'more']), 'has trailing bytes'],
    [line('ssh-ed25519', []), 'is cut off'],
    [line('ecdsa-sha2-nistp256', ['nistp384', point]), 'is of another curve'],
    [line('ecdsa-sha2-nistp256', ['nistp256', off]), 'holds no point'],
    [line('ecdsa-sha2-nistp256', ['nistp256', randomBytes(65)]), 'holds no point'],
    [line('ssh-rsa', [Buffer.from([1]), modulus]), 'exponent'],
    [line('ssh-rsa', [Buffer.from([2]), modulus]), 'exponent'],
    [line('ssh-rsa', [e, modulus.subarray(1)]), 'a number in a wrong form'],
    [line('ssh-rsa', [e, Buffer.alloc(257)]), 'a number in a wrong form'],
    [line('ssh-rsa', [e, Buffer.concat([Buffer.from([1]), randomBytes(2_048)])]), 'at most 16384'],
  ] as const)
    expect(() => parsePublicKey(text), text.slice(0, 60)).toThrow(why);
});

test('only the user adds, sees and deletes their keys', async () => {
  const key = newPublicKey('ada@laptop');
  const { addSshKey } = await ada.gql(ADD, { input: { title: '', key } });
  const { id } = addSshKey.sshKey;
  expect(addSshKey.sshKey).toMatchObject({
    id: expect.stringMatching(/^ssh_/),
    title: 'ada@laptop',
    publicKey: key.replace(/ ada@laptop$/, ''),
    fingerprint: parsePublicKey(key).fingerprint,
    lastUsedAt: null,
  });
  const list = '{ viewer { sshKeys { totalCount nodes { id title } } } }';
  expect((await ada.gql(list)).viewer.sshKeys).toEqual({
    totalCount: 1,
    nodes: [{ id, title: 'ada@laptop' }],
  });
  const find = `{ node(id: "${id}") { ... on SshKey { id } } }`;
  expect((await ada.gql(find)).node).toEqual({ id });
  expect((await bob.gql(find)).node).toBeNull();

  // A key belongs to one account, whatever its comment.
  const again = { title: 'mine', key: key.replace('ada@laptop', 'bob') };
  expect(await codes(bob, ADD, again)).toEqual(['ALREADY_EXISTS', 'key']);
  expect(await codes(ada, ADD, again)).toEqual(['ALREADY_EXISTS', 'key']);
  expect(await codes(bob, DELETE, { id })).toEqual(['NOT_FOUND', null]);
  for (const title of ['x'.repeat(101), ' x', 'a\nb'])
    expect(await codes(ada, ADD, { title, key: newPublicKey() })).toEqual([
      'INVALID_REQUEST',
      'title',
    ]);
  expect(await codes(ada, ADD, { title: '', key: newPublicKey('') })).toEqual([
    'INVALID_REQUEST',
    'title',
  ]);
  expect(await codes(ada, ADD, { title: 'x', key: 'nonsense' })).toEqual([
    'INVALID_REQUEST',
    'key',
  ]);

  // A limited credential can neither add nor see keys.
  const { body } = await ada.post('/auth/v1/pat', { name: 'narrow', scopes: ['repo:admin'] });
  const narrow = app.client(`Bearer ${body.token}`);
  expect(await codes(narrow, ADD, { title: 'x', key: newPublicKey() })).toEqual([
    'PERMISSION_DENIED',
    null,
  ]);
  expect((await narrow.gql(find)).node).toBeNull();

  expect(await ada.gql(DELETE, { input: { id } })).toEqual({ deleteSshKey: { id } });
  expect(await codes(ada, DELETE, { id })).toEqual(['NOT_FOUND', null]);
  expect(await codes(bob, ADD, again)).toBeUndefined();
});

test('a deploy key belongs to one repository, whose admins manage it', async () => {
  const { body: repository } = await ada.post('/auth/v1/repository/ada', { name: 'deployed' });
  const input = { repositoryId: repository.id, title: 'ci', key: newPublicKey() };
  const { addDeployKey } = await ada.gql(ADD_DEPLOY, { input });
  const { deployKey } = addDeployKey;
  expect(deployKey).toMatchObject({ title: 'ci', write: false, repositoryId: repository.id });
  expect(await codes(ada, ADD, { title: 'x', key: input.key })).toEqual(['ALREADY_EXISTS', 'key']);
  expect(await codes(bob, ADD_DEPLOY, input)).toEqual(['PERMISSION_DENIED', null]);
  const unknown = { ...input, repositoryId: 'repo_01h455vb4pex5vsknk084sn02q' };
  expect(await codes(ada, ADD_DEPLOY, unknown)).toEqual(['NOT_FOUND', null]);
  expect(await codes(bob, DELETE_DEPLOY, { id: deployKey.id })).toEqual([
    'PERMISSION_DENIED',
    null,
  ]);
  // It is not an SSH key of its user.
  expect(
    (await ada.gql('{ viewer { sshKeys { nodes { title } } } }')).viewer.sshKeys.nodes,
  ).toEqual([]);
  expect(await codes(ada, DELETE, { id: deployKey.id })).toEqual(['NOT_FOUND', null]);

  const list = `{ repository(namespace: "ada", name: "deployed") { deployKeys { nodes { id write } } } }`;
  expect((await ada.gql(list)).repository.deployKeys.nodes).toEqual([
    { id: deployKey.id, write: false },
  ]);
  await ada.post(`/auth/v1/repository/ada/${repository.id}/visibility`, { visibility: 'public' });
  const { data, errors } = await bob.graphql(list);
  expect(data.repository.deployKeys).toBeNull();
  expect(errors?.[0]?.extensions.code).toBe('PERMISSION_DENIED');

  // Deleting the repository deletes its keys, which can be used again.
  await ada.delete(`/auth/v1/repository/ada/${repository.id}`);
  expect(await codes(ada, DELETE_DEPLOY, { id: deployKey.id })).toEqual(['NOT_FOUND', null]);
  expect(await codes(bob, ADD, { title: 'x', key: input.key })).toBeUndefined();
});

test('a user can have 100 keys, and a repository 100 deploy keys', async () => {
  const carl = await app.user('carl');
  const { body: repository } = await carl.post('/auth/v1/repository/carl', { name: 'many' });
  const { db } = app.app.services;
  const { id: userId } = await db.user.findUniqueOrThrow({ where: { username: 'carl' } });
  const rows = (kind: 'ssh' | 'deploy', more: object) =>
    db.sshKey.createMany({
      data: Array.from({ length: 99 }, () => {
        const id = newId(kind);
        return { id, userId, title: 'x', publicKey: id, fingerprint: id, ...more };
      }),
    });
  await rows('ssh', {});
  await rows('deploy', { repositoryId: repository.id });
  const key = () => ({ title: 'x', key: newPublicKey() });
  const add = [
    () => codes(carl, ADD, key()),
    () => codes(carl, ADD_DEPLOY, { repositoryId: repository.id, ...key() }),
  ];
  // Of concurrent additions of the last key, one succeeds.
  for (const one of add) {
    const answers = await Promise.all([one(), one(), one()]);
    expect(answers.filter((answer) => answer === undefined)).toHaveLength(1);
    expect(answers.filter(Boolean)).toEqual([
      ['CONFLICT', null],
      ['CONFLICT', null],
    ]);
  }
});
