/**
 * Every way in which a request reaches git, while git cannot work: the repository's folder is missing, the program is
 * missing, no descriptor is free. Each request gets an answer, and the server keeps running. The server is a process of
 * its own here, because these faults could end it.
 */
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startGit } from '../../../src/git/processes/run.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';

const TOKEN = 'a-token-for-the-failures';
const REPOSITORIES = '/auth/v1/repository/admin';

let dataDir: string;
let path: string;
let workspace: Workspace;
let server: ServerProcess;
let admin: Client;
const cleanup = new AsyncDisposableStack();

beforeAll(async () => {
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  dataDir = await mkdtemp(join(tmpdir(), 'loam-failures-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  // The server has its own PATH, so that the test can remove git from it.
  path = join(dataDir, 'bin');
  await mkdir(path);
  for (const folder of (process.env.PATH ?? '').split(':'))
    for (const name of await readdir(folder).catch(() => []))
      await symlink(join(folder, name), join(path, name)).catch(() => {});
  workspace = cleanup.use(await Workspace.open());
  server = await startServer(
    {
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: dataDir,
      LOAM_ADMIN_TOKEN: TOKEN,
      LOAM_RATE_LIMITS: 'off',
      PATH: path,
    },
    { descriptors: 256 },
  );
  cleanup.defer(async () => void (await server.stop()));
  admin = new Client(server.base, `Bearer ${TOKEN}`);
});
afterAll(() => cleanup.disposeAsync());

/** A public repository with one text file and one large file, and a clone of it in the workspace. */
async function seeded(name: string): Promise<{ id: string; dir: string; blob: string }> {
  const { id } = (await admin.post(REPOSITORIES, { name, visibility: 'public' })).body;
  await workspace.clone(admin, `admin/${name}`);
  await workspace.commit(name, { 'a.txt': 'a\n', 'big.txt': 'line\n'.repeat(300_000) });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  await workspace.commit(name, { 'b.txt': 'b\n' });
  const { body } = await admin.get(`${REPOSITORIES}/${id}/file/big.txt`);
  const dir = join(dataDir, 'repositories', id.slice(-2), id.slice(-4, -2), `${id}.git`);
  return { id, dir, blob: body.download_url };
}

type Seeded = Awaited<ReturnType<typeof seeded>>;

/** Every operation that reads or writes an existing repository with git: its name → the status of the answer. */
function entries(name: string, { id, blob }: Seeded): Record<string, () => Promise<number>> {
  const rest = (what: string) => async () =>
    (await admin.get(`${REPOSITORIES}/${id}/${what}`)).status;
  const graphql = (selection: string) => async () => {
    const query = `query ($id: ID!) { node(id: $id) { ... on Repository { ${selection} } } }`;
    const [error] = (await admin.graphql(query, { id })).errors ?? [];
    if (error?.extensions.code === 'NOT_FOUND') return 404;
    return error ? (/try again in \d+ s/.test(error.message) ? 503 : 500) : 200;
  };
  const smart = (service: string) => async () =>
    (
      await admin.request('POST', `/admin/${name}.git/git-${service}`, {
        body: '0000',
        headers: { 'Content-Type': `application/x-git-${service}-request` },
      })
    ).status;
  /** Derives the server's status from the error output of git. */
  const git =
    (...args: string[]) =>
    async () => {
      const fresh = args.map((arg) => arg.replace('FRESH', crypto.randomUUID()));
      const { code, stderr } = await workspace.try(name, ...fresh);
      if (code === 0) return 200;
      if (/repository '.*' not found/.test(stderr)) return 404;
      const status = /returned error: (\d+)/.exec(stderr)?.[1];
      // Reported within a response that had already started.
      if (status) return Number(status);
      if (/remote|early EOF|hung up|RPC failed|expected|disconnect|index-pack/.test(stderr))
        return 410;
      throw new Error(`git ${fresh.join(' ')} ended with ${code}: ${stderr}`);
    };
  const anonymous = `${server.base}/admin/${name}.git`;
  return {
    tree: rest('tree/'),
    file: rest('file/a.txt'),
    'large file': rest('file/big.txt'),
    commits: rest('commits/main'),
    'commit by id': rest(`commits/${'a'.repeat(40)}`),
    download: async () => (await admin.get(blob)).status,
    branches: graphql('branches { edges { node { name } } }'),
    tags: graphql('tags { edges { node { name } } }'),
    'tree and file': graphql('tree { path } file(path: "a.txt") { path }'),
    job: async () =>
      (
        await admin.post('/auth/v1/seed/admin/jobs', {
          name: `j${crypto.randomUUID()}`,
          command: 'true',
          repo: `admin/${name}`,
          gpu: 'none',
          cpu: 2,
          memory_gb: 2,
        })
      ).status,
    'ls-remote': git('ls-remote', anonymous),
    'ls-remote v0': git('-c', 'protocol.version=0', 'ls-remote', anonymous),
    'fetch request': smart('upload-pack'),
    'push request': smart('receive-pack'),
    fetch: git('fetch', anonymous),
    clone: git('clone', anonymous, '../FRESH'),
    push: git('push', 'origin', 'HEAD'),
    'push of a branch': git('push', 'origin', 'HEAD:FRESH'),
  };
}

/** All operations at once, and again one by one. @returns their answers by name */
async function drive(name: string, repository: Seeded): Promise<Record<string, number>> {
  const all = Object.entries(entries(name, repository));
  await Promise.all(all.map(([, run]) => run()));
  const answers: Record<string, number> = {};
  for (const [entry, run] of all) answers[entry] = await run();
  return answers;
}

function expectAlive(): void {
  expect(server.child.exitCode, server.output()).toBeNull();
  expect(server.child.signalCode, server.output()).toBeNull();
}

test('a repository whose folder is missing gives an error, and the others are served', async () => {
  const lost = await seeded('lost');
  const other = await seeded('other');
  await rename(lost.dir, `${lost.dir}.moved`);
  const answers = await drive('lost', lost);
  expectAlive();
  expect(new Set(Object.values(answers)), JSON.stringify(answers)).toEqual(new Set([500]));
  const { body } = await admin.get(`${REPOSITORIES}/${lost.id}/tree/`);
  expect(body.error).toMatchObject({
    code: 'internal_error',
    message: expect.stringContaining("The repository's data is missing on the server"),
  });
  // Logged for the operator once, not with every request.
  expect(server.output().split('the data of a repository is missing')).toHaveLength(2);

  for (const [entry, status] of Object.entries(await drive('other', other)))
    expect(status, entry).toBeLessThan(300 + (entry === 'commit by id' ? 200 : 0));
  expect((await admin.get(`${REPOSITORIES}/${lost.id}`)).status).toBe(200);
  expect((await admin.delete(`${REPOSITORIES}/${lost.id}`)).status).toBe(204);
});

test('a repository that is deleted during a read is not found', async () => {
  for (let round = 0; round < 4; round++) {
    const name = `doomed-${crypto.randomUUID()}`;
    const repository = await seeded(name);
    const under = Object.entries(entries(name, repository)).map(async ([entry, run]) => ({
      entry,
      status: await run(),
    }));
    expect((await admin.delete(`${REPOSITORIES}/${repository.id}`)).status).toBe(204);
    for (const { entry, status } of await Promise.all(under))
      expect([200, 201, 404, 410], `${entry} of ${name}\n${server.output()}`).toContain(status);
    const { body } = await admin.get(`${REPOSITORIES}/${repository.id}/tree/`);
    expect(body.error.code).toBe('not_found');
  }
  expectAlive();
});

test('a git process does not recreate the folder of a repository that is deleted while it runs', async () => {
  const { dir } = await seeded('vanishing');
  const head = await workspace.git('vanishing', 'rev-parse', 'origin/HEAD');
  const process = await startGit(['update-ref', '--stdin'], { dir });
  process.stdin.write('start\n');
  await once(process.stdout, 'data');
  await rename(dir, `${dir}.moved`);
  process.stdin.end(`create refs/heads/deep/er ${head}\ncommit\n`);
  process.stdout.resume();
  expect(await process.ended).toMatchObject({ code: 0 });
  await expect(stat(dir)).rejects.toThrow('ENOENT');
  await rename(`${dir}.moved`, dir);
});

test('without git on the PATH each request is refused with a time to retry, and works when git is back', async () => {
  const repository = await seeded('without-git');
  await rename(join(path, 'git'), join(path, 'git-away'));
  try {
    const answers = await drive('without-git', repository);
    expectAlive();
    // Reads that need no new process use the running ones; refs are read from files if the client has all of their commits.
    const { tree, file, job, 'commit by id': byId, fetch, 'ls-remote': refs, ...rest } = answers;
    expect([tree, file, job, byId, fetch, refs]).toEqual([200, 200, 201, 404, 200, 200]);
    expect(new Set(Object.values(rest)), JSON.stringify(rest)).toEqual(new Set([503]));
    const refused = await admin.get('/admin/without-git.git/info/refs?service=git-upload-pack');
    expect(refused.status).toBe(503);
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
    // Neither creation nor deletion of a repository needs git.
    const made = await admin.post(REPOSITORIES, { name: 'meanwhile' });
    expect((await admin.delete(`${REPOSITORIES}/${made.body.id}`)).status).toBe(204);
  } finally {
    await rename(join(path, 'git-away'), join(path, 'git'));
  }
  const answers = await drive('without-git', repository);
  expect(answers).toMatchObject({ tree: 200, clone: 200, push: 200, branches: 200, job: 201 });
});

test('without free descriptors requests fail, and the server keeps running', async () => {
  const repository = await seeded('starved');
  const {
    fetch: _,
    'push of a branch': __,
    ...all
  } = entries('starved', repository) as Record<string, () => Promise<number>>;
  const { clone, push, job, ...cheap } = all;
  const answers: number[] = [];
  for (let round = 0; round < 2; round++) {
    const flood = Array.from({ length: 20 }, () => Object.values(cheap)).flat();
    // A connection that is not even accepted counts as 0.
    answers.push(...(await Promise.all(flood.map((run) => run().catch(() => 0)))));
    expectAlive();
  }
  expect(answers, 'the limit was met').toContain(503);
  // When the earlier connections are closed.
  for (const run of [clone, push, job])
    await eventually(async () => expect(await run?.()).toBeLessThan(300));
  expectAlive();
  const [server = ''] = await readdir(join(dataDir, 'repositories/new'));
  expect(await readdir(join(dataDir, 'repositories/new', server))).toEqual([]);
});
