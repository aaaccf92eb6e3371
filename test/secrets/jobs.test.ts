/** Which jobs get which secrets and variables: at their creation, at the start of an attempt, and after changes in between. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { demandValues, readValues } from '../../src/repositories/secrets/secrets.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { job, lines, submit, submitRaw, until, variables } from '../support/submit.ts';

let app: TestApp;
let runner: FakeRunner;
let workspace: Workspace;
/** The owner of the namespace `ada`. */
let ada: Client;
/** A member with the role write. */
let wendy: Client;
let count = 0;
const unique = (name: string) => `${name}-${++count}`;

beforeAll(async () => {
  runner = fakeRunner();
  app = await startApp({ overrides: { runner } });
  workspace = await Workspace.open();
  ada = await app.user('ada');
  wendy = await app.user('wendy');
  await app.admin.setMembers('ada', { wendy: 'WRITE' });
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const setSecret = (input: object, who = app.admin) =>
  who.gql('mutation ($i: SetSecretInput!) { setSecret(input: $i) { secret { name } } }', {
    i: { namespace: 'ada', ...input },
  });
const setVariable = (input: object) =>
  ada.gql('mutation ($i: SetVariableInput!) { setVariable(input: $i) { variable { name } } }', {
    i: { namespace: 'ada', ...input },
  });
const deleteSecret = (input: object) =>
  ada.gql('mutation ($i: DeleteSecretInput!) { deleteSecret(input: $i) { id } }', {
    i: { namespace: 'ada', ...input },
  });
const setRule = (id: string, pattern: string, more: object = {}) =>
  app.admin.gql(
    'mutation ($i: SetBranchRuleInput!) { setBranchRule(input: $i) { repository { id } } }',
    { i: { id, pattern, ...more } },
  );
const deleteRule = (id: string, pattern: string) =>
  app.admin.gql(
    'mutation ($i: DeleteBranchRuleInput!) { deleteBranchRule(input: $i) { repository { id } } }',
    { i: { id, pattern } },
  );
const update = (id: string, more: object) =>
  app.admin.gql(
    'mutation ($i: UpdateRepositoryInput!) { updateRepository(input: $i) { repository { id } } }',
    { i: { id, ...more } },
  );

type Repository = { id: string; name: string; full: string };

/** A repository with a protected `main`, `release/1` for admins alone, and `feature`, which is not protected. */
async function createRepository(namespace = 'ada', client = ada): Promise<Repository> {
  const name = unique('repo');
  const id = await client.repository(`${namespace}/${name}`);
  for (const branch of ['release/1', 'feature', 'tags/v1'])
    await client.gql(
      'mutation ($i: CreateBranchInput!) { createBranch(input: $i) { repository { id } } }',
      { i: { id, name: branch } },
    );
  await update(id, { branchProtection: true });
  await setRule(id, 'release/*', { pushRole: 'ADMIN' });
  return { id, name, full: `${namespace}/${name}` };
}

type Input = { secretNames?: string[]; variableNames?: string[]; [field: string]: unknown };

/** Runs a job to its end. @returns the environment that it got */
async function run(who: Client, input: Input): Promise<Record<string, string>> {
  const { id } = await submit(who, {
    namespace: 'ada',
    name: unique('job'),
    command: 'true',
    ...input,
  });
  return eventually(() => {
    const spec = runner.started.find((one) => one.job.id === id);
    expect(spec).toBeDefined();
    return spec?.env ?? {};
  });
}

/** @returns the code and field of the error; fails if a job was created */
async function refusal(who: Client, input: Input): Promise<(string | undefined)[]> {
  const name = unique('refused');
  const { errors } = await submitRaw(who, { namespace: 'ada', name, command: 'true', ...input });
  const { rows } = await app.pool.query('select from jobs where name = $1', [name]);
  expect(rows).toEqual([]);
  const error = errors?.[0];
  return [error?.extensions.code, error?.extensions.field, error?.message];
}

const denied = (why: RegExp) => [
  'PERMISSION_DENIED',
  'secretNames',
  expect.stringMatching(new RegExp(`^secretNames: .*${why.source}`)),
];
const missing = (field = 'secretNames') => [
  'INVALID_REQUEST',
  field,
  expect.stringMatching(/there is no (secret|variable) \w+ in/),
];

describe('at creation', () => {
  let repository: Repository;
  let repo: string;
  beforeAll(async () => {
    repository = await createRepository();
    repo = repository.full;
    for (const [name, refs] of [
      ['PROTECTED', []],
      ['FEATURE', ['feature*']],
      ['TAGGED', ['tags/v*']],
      ['ANY', ['**']],
    ] as const)
      await setSecret({ repository: repository.name, name, refs, value: `value of ${name}` });
    await setSecret({ name: 'SHARED', value: 'value of SHARED' });
    await setSecret({ name: 'EVERYWHERE', value: 'value of EVERYWHERE', refs: ['**'] });
  });

  test('a job on a protected branch gets what it names, and nothing else', async () => {
    const env = await run(wendy, { repo, branch: 'main', secretNames: ['PROTECTED', 'SHARED'] });
    expect(env).toMatchObject({ PROTECTED: 'value of PROTECTED', SHARED: 'value of SHARED' });
    expect(env).not.toHaveProperty('ANY');
    expect(await run(wendy, { repo, branch: 'main' })).not.toHaveProperty('PROTECTED');
  });

  test('a secret of any name arrives', async () => {
    const value = 'value of the prototype';
    for (const name of ['__proto__', 'constructor', '_'])
      await setSecret({ repository: repository.name, name, value });
    const names = ['__proto__', 'constructor', '_'];
    const env = await run(wendy, { repo, branch: 'main', secretNames: names });
    expect(Object.entries(env).filter(([name]) => names.includes(name))).toHaveLength(3);
  });

  test('a job on an unprotected branch gets only secrets that allow it', async () => {
    const on = { repo, branch: 'feature' };
    expect(await refusal(ada, { ...on, secretNames: ['PROTECTED'] })).toEqual(
      denied(/PROTECTED is only for protected branches, and feature is not protected/),
    );
    expect(await refusal(ada, { ...on, secretNames: ['FEATURE', 'SHARED'] })).toEqual(
      denied(/SHARED/),
    );
    expect(await run(wendy, { ...on, secretNames: ['FEATURE', 'ANY'] })).toMatchObject({
      FEATURE: 'value of FEATURE',
      ANY: 'value of ANY',
    });
    expect(await refusal(ada, { repo, branch: 'main', secretNames: ['FEATURE'] })).toEqual(
      denied(/FEATURE is not for the branch main/),
    );
  });

  test('a branch whose name looks like a tag is none', async () => {
    expect(await refusal(ada, { repo, branch: 'tags/v1', secretNames: ['TAGGED'] })).toEqual(
      denied(/TAGGED is not for the branch tags\/v1/),
    );
  });

  test('whoever may not push to the branch gets no secret of it', async () => {
    const on = { repo, branch: 'release/1', secretNames: ['PROTECTED'] };
    expect(await refusal(wendy, on)).toEqual(denied(/only for those who may push/));
    expect(await run(ada, on)).toMatchObject({ PROTECTED: 'value of PROTECTED' });
    await setRule(repository.id, 'release/*', { pushRole: 'ADMIN', pushers: ['wendy'] });
    expect(await run(wendy, on)).toMatchObject({ PROTECTED: 'value of PROTECTED' });
    await setRule(repository.id, 'release/*', { pushRole: 'ADMIN' });
    expect(await refusal(wendy, on)).toEqual(denied(/only for those who may push/));
  });

  test('a credential that may not push gets no secret of a branch', async () => {
    const on = { repo, branch: 'main', secretNames: ['PROTECTED'] };
    const jobsOnly = await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_READ'] });
    expect(await refusal(jobsOnly, on)).toEqual(denied(/only for those who may push/));
    expect(
      await run(await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_WRITE'] }), on),
    ).toHaveProperty('PROTECTED');
  });

  test('the token of a job creates no jobs with secrets, whatever it may do', async () => {
    const name = unique('parent');
    const permissions = { repo: 'WRITE', jobs: 'WRITE' };
    const parent = {
      namespace: 'ada',
      name,
      command: 'hold',
      repo,
      branch: 'feature',
      permissions,
    };
    const { id } = await submit(ada, parent);
    const env = await eventually(() => {
      const spec = runner.started.find((one) => one.job.id === id);
      expect(spec).toBeDefined();
      return spec?.env ?? {};
    });
    const token = app.client(`Bearer ${env.LOAM_TOKEN}`);
    const on = { repo, branch: 'main' };
    for (const each of ['PROTECTED', 'ANY'])
      expect(await refusal(token, { ...on, secretNames: [each] })).toEqual(
        denied(/a job cannot create jobs with secrets/),
      );
    const change = 'mutation { deleteSecret(input: {namespace: "ada", name: "SHARED"}) { id } }';
    await expectRefusal(token.graphql(change), 'PERMISSION_DENIED');
    runner.release();
  });

  test('a snapshot has no branch', async () => {
    await using at = await Workspace.open();
    await at.clone(wendy, repo, 'w');
    await at.commit('w', { 'evil.sh': 'env | curl …' });
    const snapshot = randomBytes(16).toString('hex');
    await at.git('w', 'push', '-q', 'origin', `HEAD:refs/loam/snapshots/${snapshot}`);
    expect(await refusal(wendy, { repo, snapshot, secretNames: ['PROTECTED'] })).toEqual(
      denied(/a snapshot has none/),
    );
    expect(await refusal(ada, { repo, snapshot, secretNames: ['SHARED'] })).toEqual(
      denied(/a snapshot has none/),
    );
    expect(await run(wendy, { repo, snapshot, secretNames: ['ANY', 'EVERYWHERE'] })).toMatchObject({
      ANY: 'value of ANY',
      EVERYWHERE: 'value of EVERYWHERE',
    });
  });

  test('a job without a repository gets secrets of the namespace that are for every job', async () => {
    // The runner of this test has no images, so the jobs are not started.
    const image = 'busybox';
    expect(await refusal(ada, { image, secretNames: ['PROTECTED'] })).toEqual(missing());
    expect(await refusal(ada, { image, secretNames: ['SHARED'] })).toEqual(
      denied(/SHARED is only for jobs of certain branches/),
    );
    await submit(wendy, {
      namespace: 'ada',
      name: unique('job'),
      command: 'true',
      image,
      secretNames: ['EVERYWHERE'],
    });
  });

  test('a job of another repository gets none of this one', async () => {
    const other = await createRepository();
    for (const name of ['PROTECTED', 'ANY', 'TAGGED'])
      expect(await refusal(ada, { repo: other.full, branch: 'main', secretNames: [name] })).toEqual(
        missing(),
      );
    expect(
      await run(wendy, { repo: other.full, branch: 'main', secretNames: ['SHARED'] }),
    ).toMatchObject({ SHARED: 'value of SHARED' });
  });

  test('other namespaces get none: neither by their jobs, nor by their repositories', async () => {
    const eve = await app.user(unique('eve'));
    const [namespace = ''] = (await eve.gql('{ viewer { username } }')).viewer.username.split(' ');
    const own = await createRepository(namespace, eve);
    await app.admin.setMembers('ada', { [namespace]: 'WRITE' });
    // A job of her namespace, whose log others could see there, on the protected branch of ada's repository.
    for (const name of ['PROTECTED', 'ANY', 'SHARED', 'EVERYWHERE'])
      expect(await refusal(eve, { namespace, repo, branch: 'main', secretNames: [name] })).toEqual(
        missing(),
      );
    // A job of ada's namespace that runs her repository, in which she protects what she likes.
    const foreign = { repo: own.full, branch: 'main' };
    expect(await refusal(eve, { ...foreign, secretNames: ['SHARED'] })).toEqual(
      denied(/SHARED is only for jobs of certain branches or tags of a repository/),
    );
    expect(await refusal(eve, { ...foreign, secretNames: ['PROTECTED'] })).toEqual(missing());
    await app.admin.setMembers('ada', { [namespace]: 'READ' });
    expect((await refusal(eve, { repo, branch: 'main', secretNames: ['PROTECTED'] }))[0]).toBe(
      'PERMISSION_DENIED',
    );
  });

  test('each job of an array, and a job that waited for another, gets them', async () => {
    const on = {
      namespace: 'ada',
      command: 'true',
      repo,
      branch: 'main',
      secretNames: ['PROTECTED'],
    };
    const [name, later] = [unique('array'), unique('later')];
    await submit(wendy, { ...on, name, array: { size: 2 } });
    await submit(wendy, { ...on, name: later, needs: [{ job: `${name}-1` }] });
    for (const each of [`${name}-0`, `${name}-1`, later]) {
      const { id } = await until(ada, 'ada', each, 'SUCCEEDED');
      const spec = runner.started.find((one) => one.job.id === id);
      expect(spec?.env.PROTECTED).toBe('value of PROTECTED');
    }
    const release = { ...on, branch: 'release/1', array: { size: 2 } };
    expect(await refusal(wendy, release)).toEqual(denied(/only for those who may push/));
  });

  test('what belongs to the repository comes before what belongs to the namespace', async () => {
    const { name, full } = await createRepository();
    await setSecret({ name: 'NEAREST', value: 'of the namespace', refs: ['**'] });
    await setVariable({ name: 'PLACE', value: 'of the namespace' });
    const on = { repo: full, branch: 'main', secretNames: ['NEAREST'], variableNames: ['PLACE'] };
    const both = (value: string) => ({ NEAREST: value, PLACE: value });
    expect(await run(ada, on)).toMatchObject(both('of the namespace'));
    await setSecret({ repository: name, name: 'NEAREST', value: 'of the repository' });
    await setVariable({ repository: name, name: 'PLACE', value: 'of the repository' });
    expect(await run(ada, on)).toMatchObject(both('of the repository'));
    // The nearest one decides; it does not fall back to another secret that the branch might have.
    expect(await refusal(ada, { ...on, branch: 'feature' })).toEqual(denied(/NEAREST/));
  });

  test('names that are unknown, doubled, wrong or too many are refused with their field', async () => {
    await setVariable({ name: 'PLAIN', value: 'x' });
    const on = { repo, branch: 'main' };
    const field = async (more: Input) => (await refusal(ada, { ...on, ...more })).slice(0, 2);
    expect(await refusal(ada, { ...on, secretNames: ['NOTHING'] })).toEqual(missing());
    expect(await refusal(ada, { ...on, variableNames: ['PROTECTED'] })).toEqual(
      missing('variableNames'),
    );
    const wrong = (name: string) => ['INVALID_REQUEST', name];
    expect(await field({ secretNames: ['PROTECTED', 'PROTECTED'] })).toEqual(wrong('secretNames'));
    expect(await field({ secretNames: ['a-b'] })).toEqual(wrong('secretNames'));
    expect(await field({ secretNames: ['a\0'] })).toEqual(wrong('secretNames'));
    expect(await field({ secretNames: Array.from({ length: 101 }, (_, n) => `N${n}`) })).toEqual(
      wrong('secretNames'),
    );
    expect(await field({ secretNames: ['PROTECTED'], env: variables({ PROTECTED: 'x' }) })).toEqual(
      wrong('secretNames'),
    );
    expect(await field({ secretNames: ['ANY'], secrets: variables({ ANY: 'x' }) })).toEqual(
      wrong('secretNames'),
    );
    expect(await field({ variableNames: ['PLAIN'], env: variables({ PLAIN: 'x' }) })).toEqual(
      wrong('variableNames'),
    );
    expect(await field({ variableNames: ['PLAIN'], secretNames: ['PLAIN'] })).toEqual(
      wrong('secretNames'),
    );
    await setSecret({ name: 'LARGE', value: 'x'.repeat(40_000), refs: ['**'] });
    const large = variables({ OWN: 'x'.repeat(30_000) });
    expect(await field({ secretNames: ['LARGE'], secrets: large })).toEqual(wrong('secretNames'));
    expect(await run(ada, { ...on, secretNames: ['LARGE'], env: large })).toHaveProperty('LARGE');
  });
});

describe('a job whose command is that of a file at its ref', () => {
  test('the ref decides, whoever created the job', async () => {
    const { id, name } = await createRepository();
    await setSecret({ repository: name, name: 'PROTECTED', value: 'p' });
    await setSecret({ repository: name, name: 'TAGGED', value: 't', refs: ['tags/v*'] });
    const { namespace } = await ada.gql('{ namespace(name: "ada") { id } }');
    const request = (ref: string | null, secretName: string, repositoryId = id) => ({
      origin: { namespaceId: namespace.id, repositoryId, ref },
      names: { secretNames: [secretName], variableNames: [] },
      own: { env: {}, secrets: {} },
    });
    const services = app.app.services;
    const allowed = (...args: Parameters<typeof request>) =>
      demandValues(services, null, request(...args)).then(
        () => true,
        (error) => [error.code, error.field],
      );
    const no = ['permission_denied', 'secretNames'];
    expect(await allowed('refs/heads/main', 'PROTECTED')).toBe(true);
    expect(await allowed('refs/heads/release/1', 'PROTECTED')).toBe(true);
    // A changed file in a branch is a file of that branch.
    expect(await allowed('refs/heads/feature', 'PROTECTED')).toEqual(no);
    expect(await allowed('refs/tags/v1', 'PROTECTED')).toEqual(no);
    expect(await allowed('refs/tags/v1', 'TAGGED')).toBe(true);
    expect(await allowed('refs/tags/w1', 'TAGGED')).toEqual(no);
    expect(await allowed('refs/tags/main', 'PROTECTED')).toEqual(no);
    expect(await allowed('refs/loam/snapshots/main', 'PROTECTED')).toEqual(no);
    expect(await allowed(null, 'PROTECTED')).toEqual(no);
    const other = await createRepository();
    expect(await allowed('refs/heads/main', 'PROTECTED', other.id)).toEqual([
      'invalid_request',
      'secretNames',
    ]);
    const starting = {
      ...request('refs/heads/release/1', 'PROTECTED'),
      createdById: null,
      commandFromRef: true,
    };
    expect(await readValues(services, starting)).toEqual({ env: {}, secrets: { PROTECTED: 'p' } });
    expect(await readValues(services, { ...starting, commandFromRef: false })).toHaveProperty(
      'problem',
    );
    // A rerun through the API: its creator could push the tag.
    const { rows } = await app.pool.query("select id from users where username = 'wendy'");
    const again = { createdById: rows[0].id, commandFromRef: false };
    expect(
      await readValues(services, { ...request('refs/tags/v1', 'TAGGED'), ...again }),
    ).toMatchObject({ secrets: { TAGGED: 't' } });
    expect(
      await readValues(services, { ...request('refs/heads/release/1', 'PROTECTED'), ...again }),
    ).toHaveProperty('problem');
  });
});

describe('a rerun', () => {
  const RERUN = `mutation ($input: RerunJobInput!) { rerunJob(input: $input) { job { id name storedSecretNames } } }`;
  let repository: Repository;
  beforeEach(async () => {
    repository = await createRepository();
    await setSecret({ repository: repository.name, name: 'TOKEN', value: 'the token' });
  });
  const start = async (branch: string) => {
    const name = unique('run');
    const { full: repo } = repository;
    await submit(ada, {
      namespace: 'ada',
      name,
      command: 'true',
      repo,
      branch,
      secretNames: ['TOKEN'],
    });
    await until(ada, 'ada', name, 'SUCCEEDED');
    return name;
  };
  const rerun = async (who: Client, name: string, more: object = {}) => {
    const input = { namespace: 'ada', name, ...more };
    const { data, errors } = await who.graphql(RERUN, { input });
    return data?.rerunJob?.job ?? [errors?.[0]?.extensions.code, errors?.[0]?.extensions.field];
  };
  const NO = ['PERMISSION_DENIED', 'secretNames'];

  test('needs the right to push to the branch, as a new job does', async () => {
    const name = await start('release/1');
    expect(await rerun(wendy, name)).toEqual(NO);
    expect(await rerun(wendy, name, { newestCommit: true })).toEqual(NO);
    const again = await rerun(ada, name);
    expect(again.storedSecretNames).toEqual(['TOKEN']);
    await eventually(() =>
      expect(runner.started.find(({ job: { id } }) => id === again.id)?.env).toMatchObject({
        TOKEN: 'the token',
      }),
    );
    expect((await rerun(wendy, await start('main'))).storedSecretNames).toEqual(['TOKEN']);
  });

  test('is refused when the branch is not protected any more, or the secret is gone', async () => {
    const [released, main] = [await start('release/1'), await start('main')];
    await deleteRule(repository.id, 'release/*');
    expect(await rerun(ada, released)).toEqual(NO);
    await update(repository.id, { branchProtection: false });
    expect(await rerun(ada, main)).toEqual(NO);
    await update(repository.id, { branchProtection: true });
    await deleteSecret({ repository: repository.name, name: 'TOKEN' });
    expect(await rerun(ada, main)).toEqual(['INVALID_REQUEST', 'secretNames']);
  });
});

describe('between creation and the start of an attempt', () => {
  let repository: Repository;
  beforeEach(async () => {
    repository = await createRepository();
    await setSecret({ repository: repository.name, name: 'TOKEN', value: 'first-value' });
  });

  /** A job whose first attempt runs until it is released, and fails. `change` happens before its second attempt. */
  async function changeBetweenAttempts(
    who: Client,
    change: () => Promise<unknown>,
    { command = 'hold; exit 1', ...more }: Input & { command?: string } = {},
  ) {
    const name = unique('twice');
    const { id } = await submit(who, {
      namespace: 'ada',
      name,
      command,
      repo: repository.full,
      branch: 'release/1',
      secretNames: ['TOKEN'],
      retries: 1,
      ...more,
    });
    const attempts = () => runner.started.filter((one) => one.job.id === id);
    await eventually(() => expect(attempts()).toHaveLength(1));
    expect(attempts()[0]?.env.TOKEN).toBe('first-value');
    await change();
    runner.release();
    return { name, attempts };
  }

  const transfer = async () => {
    const organization = unique('acme');
    await app.organization(organization);
    await app.admin.gql(
      'mutation ($i: TransferRepositoryInput!) { transferRepository(input: $i) { repository { id } } }',
      { i: { id: repository.id, newNamespace: organization } },
    );
    return organization;
  };

  test.each<[string, RegExp, () => Promise<unknown>]>([
    [
      'the secret was deleted',
      /^There is no secret TOKEN in the repository or its namespace$/,
      () => deleteSecret({ repository: repository.name, name: 'TOKEN' }),
    ],
    [
      'the branch rule was renamed',
      /^The secret TOKEN is only for protected branches, and release\/1 is not protected$/,
      async () => {
        await deleteRule(repository.id, 'release/*');
        await setRule(repository.id, 'releases/*', { pushRole: 'ADMIN' });
      },
    ],
    [
      'the secret is for other branches now',
      /^The secret TOKEN is not for the branch release\/1$/,
      () => setSecret({ repository: repository.name, name: 'TOKEN', refs: ['main'] }),
    ],
    [
      'the repository was transferred',
      /^There is no secret TOKEN in the job's namespace$/,
      transfer,
    ],
    [
      'the repository was deleted',
      /^There is no secret TOKEN in the job's namespace$/,
      () => ada.delete(`/auth/v1/repository/ada/${repository.id}`),
    ],
    [
      'the secrets are too long now',
      /^The secrets of the job must not be longer than 65536 bytes in total$/,
      () => setSecret({ repository: repository.name, name: 'TOKEN', value: 'x'.repeat(65_000) }),
    ],
  ])('an attempt does not start without its secret: %s', async (_what, reason, change) => {
    const secrets = variables({ OWN: 'y'.repeat(1_000) });
    const { name, attempts } = await changeBetweenAttempts(ada, change, { secrets });
    const { exitCode, progress } = await until(ada, 'ada', name, 'FAILED');
    expect(exitCode).toBe(125);
    expect((await lines(ada, 'ada', name)).at(-1)).toMatch(reason);
    expect(progress).toMatch(/^failed: /);
    expect(attempts()).toHaveLength(1);
  });

  test.each<[string, RegExp, (username: string) => Promise<unknown>]>([
    [
      'may not push to the branch any more',
      /^The secret TOKEN is only for those who may push to the branch release\/1/,
      () => setRule(repository.id, 'release/*', { pushRole: 'ADMIN' }),
    ],
    [
      'has lost the role',
      /^The secret TOKEN is not for this job: its creator may not create jobs/,
      (username) => app.admin.setMembers('ada', { [username]: 'READ' }),
    ],
    [
      'was removed',
      /^The secret TOKEN is not for this job/,
      (username) =>
        app.admin.gql('mutation ($i: RemoveMemberInput!) { removeMember(input: $i) { id } }', {
          i: { namespace: 'ada', username },
        }),
    ],
    [
      'was disabled',
      /^The secret TOKEN is not for this job/,
      (username) =>
        app.admin.gql(
          'mutation ($i: DisableUserInput!) { disableUser(input: $i) { user { id } } }',
          {
            i: { username },
          },
        ),
    ],
    [
      'was deleted',
      /^The secret TOKEN is not for this job/,
      (username) =>
        app.admin.gql('mutation ($i: DeleteUserInput!) { deleteUser(input: $i) { id } }', {
          i: { username },
        }),
    ],
  ])('an attempt gets no secret if the creator of its job %s', async (_what, reason, change) => {
    const username = unique('member');
    const member = await app.user(username);
    await app.admin.setMembers('ada', { [username]: 'WRITE' });
    await setRule(repository.id, 'release/*', { pushRole: 'ADMIN', pushers: [username] });
    const { name, attempts } = await changeBetweenAttempts(member, () => change(username));
    expect((await until(ada, 'ada', name, 'FAILED')).exitCode).toBe(125);
    expect((await lines(ada, 'ada', name)).at(-1)).toMatch(reason);
    expect(attempts()).toHaveLength(1);
  });

  test('the next attempt gets a new value, and each log is masked with its own', async () => {
    const { name, attempts } = await changeBetweenAttempts(
      ada,
      () => setSecret({ repository: repository.name, name: 'TOKEN', value: 'second-value' }),
      {
        command: 'echo it is first-value; echo it is second-value; hold; exit 1',
      },
    );
    await eventually(() => expect(attempts()).toHaveLength(2));
    expect(attempts()[1]?.env.TOKEN).toBe('second-value');
    runner.release();
    await until(ada, 'ada', name, 'FAILED');
    expect(await lines(ada, 'ada', name)).toEqual([
      'it is ***',
      'it is second-value',
      'it is first-value',
      'it is ***',
    ]);
  });

  test('a transferred repository keeps its secrets, for jobs of its new namespace', async () => {
    await setRule(repository.id, 'release/*');
    const namespace = await transfer();
    await app.admin.setMembers(namespace, { wendy: 'WRITE' });
    const repo = `${namespace}/${repository.name}`;
    const on = { repo, branch: 'release/1', secretNames: ['TOKEN'] };
    expect(await run(wendy, { ...on, namespace })).toMatchObject({ TOKEN: 'first-value' });
    expect(await refusal(wendy, { ...on, namespace: 'ada' })).toEqual(missing());
    // Secrets of the old namespace are not for it any more.
    await setSecret({ name: 'OF_ADA', value: 'x' });
    expect(await refusal(wendy, { ...on, secretNames: ['OF_ADA'], namespace })).toEqual(missing());
  });

  test('a renamed repository keeps its secrets', async () => {
    const name = unique('renamed');
    await ada.put(`/auth/v1/repository/ada/${repository.id}/name`, { name });
    const on = { repo: `ada/${name}`, branch: 'main', secretNames: ['TOKEN'] };
    expect(await run(ada, on)).toMatchObject({ TOKEN: 'first-value' });
  });
});

test('the log is masked with the values of its attempt, also after a restart and a rotation', async () => {
  const { name: repository, full: repo } = await createRepository();
  await setSecret({ repository, name: 'TOKEN', value: 'rotated-away' });
  const name = unique('restarted');
  const { id } = await submit(ada, {
    namespace: 'ada',
    name,
    command: 'echo before; hold; echo it is rotated-away',
    repo,
    branch: 'main',
    secretNames: ['TOKEN'],
  });
  const given = async () =>
    (
      await app.pool.query('select given_values from job_attempts where job_id = $1', [id])
    ).rows.map((row) => row.given_values);
  await eventually(async () => expect(await lines(ada, 'ada', name)).toEqual(['before']));
  const [sealed] = await given();
  expect(sealed.toString('latin1')).not.toContain('rotated-away');
  await deleteSecret({ repository, name: 'TOKEN' });
  await app.restart();
  runner.release();
  await until(ada, 'ada', name, 'SUCCEEDED');
  expect(await lines(ada, 'ada', name)).toEqual(['before', 'it is ***']);
  expect(await given()).toEqual([null]);
});

test('a job shows the names of what it gets, and no answer, event or entry has a value', async () => {
  const { name: repository, full: repo } = await createRepository();
  await setSecret({ repository, name: 'TOKEN', value: 'never-to-be-seen' });
  await setVariable({ repository, name: 'REGION', value: 'eu' });
  const name = unique('shown');
  const input = { repo, branch: 'main', secretNames: ['TOKEN'], variableNames: ['REGION'] };
  await submit(ada, { namespace: 'ada', name, command: 'true', ...input });
  await until(ada, 'ada', name, 'SUCCEEDED');
  const { job: shown } = await ada.gql(
    'query ($name: String!) { job(namespace: "ada", name: $name) { secretNames storedSecretNames storedVariableNames } }',
    { name },
  );
  expect(shown).toEqual({
    secretNames: [],
    storedSecretNames: ['TOKEN'],
    storedVariableNames: ['REGION'],
  });
  const { repository: owner } = await ada.gql(
    'query ($repository: String!) { repository(namespace: "ada", name: $repository) { secrets { nodes { name lastUsedAt } } variables { nodes { lastUsedAt } } } }',
    { repository },
  );
  expect(Date.parse(owner.secrets.nodes[0].lastUsedAt)).toBeGreaterThan(Date.now() - 120_000);
  expect(owner.variables.nodes[0].lastUsedAt).not.toBeNull();
  const { rows } = await app.pool.query(
    `select to_jsonb(t)::text as text from events t union all select to_jsonb(t)::text from audit_entries t
     union all select to_jsonb(t)::text from jobs t union all select to_jsonb(t)::text from job_attempts t`,
  );
  expect(JSON.stringify(rows)).not.toContain('never-to-be-seen');
});

test('while secrets are set and deleted, each attempt gets a whole set of values or fails', async () => {
  const { name: repository, full: repo } = await createRepository();
  const names = ['LEFT', 'RIGHT'];
  const setBoth = (value: string) =>
    Promise.all(names.map((name) => setSecret({ repository, name, value })));
  await setBoth('value-0');
  let isDone = false;
  const changing = (async () => {
    for (let round = 1; !isDone; round++) {
      if (round % 3 === 0)
        await Promise.all(names.map((name) => deleteSecret({ repository, name })));
      await setBoth(`value-${round}`);
    }
  })();
  const made = await Promise.all(
    Array.from({ length: 30 }, async () => {
      const name = unique('racing');
      const input = { repo, branch: 'main', secretNames: names };
      const { data } = await submitRaw(ada, {
        namespace: 'ada',
        name,
        command: 'true',
        ...input,
      });
      return data?.createJob?.job as { id: string; name: string } | undefined;
    }),
  );
  const created = made.filter((one) => one !== undefined);
  await Promise.all(
    created.map(({ name }) =>
      eventually(async () =>
        expect((await job(ada, 'ada', name)).status).toMatch(/SUCCEEDED|FAILED/),
      ),
    ),
  );
  isDone = true;
  await changing;
  for (const { id, name } of created) {
    const spec = runner.started.find((one) => one.job.id === id);
    if (spec) for (const each of names) expect(spec.env[each]).toMatch(/^value-\d+$/);
    else {
      expect((await job(ada, 'ada', name)).exitCode).toBe(125);
      expect((await lines(ada, 'ada', name)).at(-1)).toMatch(/^There is no secret (LEFT|RIGHT)/);
    }
  }
});

test('a process gets the values, and the log hides the forms in which it prints them', async () => {
  await using real = await startApp({ config: { runner: 'process' } });
  const client = await real.user('ada');
  await client.post('/auth/v1/repository/ada', { name: 'code' });
  const value =
    'p4ss/w+rd with spaces & a line\nthat is long enough to be wrapped by base64 and friends';
  await setSecret({ name: 'TOKEN', value, refs: ['main'] }, client);
  await submit(client, {
    namespace: 'ada',
    name: 'leaky',
    command: `printf %s "$TOKEN" | wc -c; echo "<$TOKEN>"; printf %s "$TOKEN" | base64; printf %s "user:$TOKEN" | base64 -w0; echo
      printf %s "$TOKEN" | od -An -v -tx1 | tr -d ' \\n'; echo; echo "$TOKEN" | tr -d '\\n' | tail -c 5`,
    repo: 'ada/code',
    branch: 'main',
    secretNames: ['TOKEN'],
  });
  await until(client, 'ada', 'leaky', 'SUCCEEDED');
  const [length, ...shown] = await lines(client, 'ada', 'leaky');
  expect(Number(length)).toBe(value.length);
  expect(shown).toEqual([
    '<***',
    '***>',
    '***',
    '***',
    // The next character has bits of the secret.
    'dXNlcj***',
    '***',
    'iends',
  ]);
});
