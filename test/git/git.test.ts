/** Stock git clients against the smart HTTP endpoints. */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { invalid } from '../../src/base/errors.ts';
import { newId } from '../../src/base/ids.ts';
import { withRepositoryFolder } from '../../src/repositories/folder.ts';
import { recoverRepositories } from '../../src/repositories/recovery.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { pushNote } from '../support/push-note.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  bob = await app.user('bob');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const FIELDS = `id name defaultBranch sizeBytes language branchCount tagCount createdAt updatedAt pushedAt`;

async function create(name: string, more: object = {}): Promise<{ id: string; name: string }> {
  return { id: await ada.repository(`ada/${name}`, more), name };
}

async function read(name: string) {
  const query = `query ($name: String!) { repository(namespace: "ada", name: $name) { ${FIELDS} } }`;
  return (await ada.gql(query, { name })).repository;
}

async function update(id: string, changes: object) {
  const query = `mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }`;
  await ada.gql(query, { input: { id, ...changes } });
}

/** Creates a repository, clones it, and pushes a first commit. */
async function seeded(name: string, more: object = {}) {
  const repository = await create(name, more);
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, {
    'src/main.py': 'print("hello")\n'.repeat(20),
    'README.md': '# x\n',
  });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  return repository;
}

test('clone, push and the updated repository record', async () => {
  await seeded('first');
  await workspace.git('first', 'checkout', '-q', '-b', 'topic/a');
  await workspace.git('first', 'tag', '-a', 'v1', '-m', 'one');
  await workspace.git('first', 'push', '-q', 'origin', 'topic/a', 'v1');
  const record = await read('first');
  expect(record).toMatchObject({ language: 'Python', branchCount: 2, tagCount: 1 });
  expect(record.sizeBytes).toBeGreaterThan(0);
  expect(Date.parse(record.pushedAt)).toBeGreaterThan(Date.parse(record.createdAt));
  expect(record.updatedAt).toBe(record.pushedAt);
  await workspace.clone(ada, 'ada/first', 'again');
  expect(await workspace.git('again', 'rev-list', '--count', 'HEAD')).toBe('2');
  expect(await workspace.git('again', 'fsck', '--strict')).toBe('');

  await workspace.git('first', 'push', '-q', 'origin', ':topic/a');
  expect(await read('first')).toMatchObject({ branchCount: 1 });
});

test('shallow, partial and single fetches over protocol v2', async () => {
  await seeded('fetches');
  const tip = await workspace.commit('fetches', { 'big.bin': randomBytes(50_000) });
  await workspace.git('fetches', 'push', '-q', 'origin', 'HEAD');
  const url = remote(ada, 'ada/fetches');

  await workspace.git('.', 'clone', '-q', '--depth=1', url, 'shallow');
  expect(await workspace.git('shallow', 'rev-list', '--count', 'HEAD')).toBe('1');
  await workspace.git('shallow', 'fetch', '-q', '--unshallow');
  expect(await workspace.git('shallow', 'rev-list', '--count', 'HEAD')).toBe('3');

  await workspace.git('.', 'clone', '-q', '--no-checkout', '--filter=blob:none', url, 'partial');
  const missing = await workspace.git(
    'partial',
    'rev-list',
    '--objects',
    '--missing=print',
    'HEAD',
  );
  expect(missing.match(/^\?/gm)).toHaveLength(3);
  await workspace.git('partial', 'checkout', '-q', 'main');

  await workspace.git('.', 'init', '-q', 'single');
  await workspace.git('single', 'fetch', '-q', '--depth=1', url, tip);

  const advertisement = await ada.get('/ada/fetches.git/info/refs?service=git-upload-pack', {
    'Git-Protocol': 'version=2',
  });
  expect(advertisement.headers.get('content-type')).toBe(
    'application/x-git-upload-pack-advertisement',
  );
  expect(advertisement.text).toMatch(/^000eversion 2\n/);
});

test('gzip request bodies are decompressed while they arrive', async () => {
  await seeded('packed');
  const line = (text: string) => (text.length + 4).toString(16).padStart(4, '0') + text;
  const request = `${line('command=ls-refs\n')}0001${line('peel\n')}0000`;
  const ask = (body: Uint8Array<ArrayBuffer>, encoding: string) =>
    ada.request('POST', '/ada/packed.git/git-upload-pack', {
      body,
      headers: {
        'Content-Type': 'application/x-git-upload-pack-request',
        'Content-Encoding': encoding,
        'Git-Protocol': 'version=2',
      },
    });
  const answer = await ask(new Uint8Array(gzipSync(request)), 'gzip');
  expect(answer.text).toContain('refs/heads/main');
  expect((await ask(new Uint8Array(Buffer.from(request)), 'gzip')).status).toBe(400);
  expect((await ask(new Uint8Array(Buffer.from(request)), 'br')).status).toBe(400);
});

test('read and push permissions', async () => {
  await seeded('guarded', { visibility: 'PRIVATE' });
  await seeded('shown', { visibility: 'PUBLIC' });
  await seeded('inside', { visibility: 'INTERNAL' });
  const refs = (client: Client, name: string, service: string) =>
    client.get(`/ada/${name}/info/refs?service=git-${service}`);
  const statuses = async (client: Client, name: string) => [
    (await refs(client, name, 'upload-pack')).status,
    (await refs(client, name, 'receive-pack')).status,
  ];
  const key = app.client(`Basic ${Buffer.from(`x:${ada.token}`).toString('base64')}`);
  expect(await statuses(ada, 'guarded.git')).toEqual([200, 200]);
  expect(await statuses(key, 'guarded')).toEqual([200, 200]);
  expect(await statuses(bob, 'guarded.git')).toEqual([404, 404]);
  expect(await statuses(bob, 'inside.git')).toEqual([200, 403]);
  expect(await statuses(bob, 'shown.git')).toEqual([200, 403]);
  expect(await statuses(app.anonymous, 'guarded.git')).toEqual([401, 401]);
  expect(await statuses(app.anonymous, 'inside.git')).toEqual([401, 401]);
  expect(await statuses(app.anonymous, 'shown.git')).toEqual([200, 401]);
  expect(await statuses(app.client('Bearer loam_pat_wrong'), 'shown.git')).toEqual([401, 401]);
  expect(await statuses(ada, 'none.git')).toEqual([404, 404]);
  expect(await statuses(app.anonymous, 'none.git')).toEqual([401, 401]);
  expect(await statuses(ada, '%00.git')).toEqual([404, 404]);

  const asked = await refs(app.anonymous, 'guarded.git', 'upload-pack');
  expect(asked.headers.get('www-authenticate')).toBe('Bearer realm="loam", Basic realm="loam"');
  expect((await ada.get('/ada/shown.git/info/refs')).status).toBe(403);
  const { stderr } = await workspace.try('.', 'clone', remote(bob, 'ada/guarded'), 'stolen');
  expect(stderr).toContain('remote: Repository ada/guarded not found');
  await workspace.git('.', 'clone', '-q', `${app.base}/ADA/Shown`, 'anonymous');
});

test('after a rename, the old URL stops working and the new URL works', async () => {
  const { id } = await seeded('before');
  await ada.gql(
    `mutation ($input: RenameRepositoryInput!) { renameRepository(input: $input) { repository { id } } }`,
    {
      input: { id, name: 'after' },
    },
  );
  const { stderr } = await workspace.try('before', 'fetch');
  expect(stderr).toContain('not found');
  await workspace.git('before', 'remote', 'set-url', 'origin', remote(ada, 'ada/after'));
  await workspace.git('before', 'fetch', '-q');
});

test('a protected default branch refuses deletion and forced pushes, other branches do not', async () => {
  const { id } = await seeded('protected');
  await update(id, { branchProtection: true });
  const before = await workspace.git('protected', 'rev-parse', 'HEAD');
  await workspace.git('protected', 'commit', '-q', '--amend', '-m', 'rewritten');
  const forced = await workspace.try('protected', 'push', '-f', 'origin', 'HEAD');
  expect(forced.code).not.toBe(0);
  expect(forced.stderr).toContain('remote: The branch main is protected: only fast-forward');
  const deleted = await workspace.try('protected', 'push', 'origin', ':main');
  expect(deleted.stderr).toContain('remote: The branch main is protected and cannot be deleted');
  expect(await workspace.git('protected', 'ls-remote', 'origin', 'main')).toContain(before);

  await workspace.git('protected', 'push', '-q', 'origin', 'HEAD:topic');
  await workspace.git('protected', 'push', '-qf', 'origin', 'HEAD~1:topic');
  await workspace.git('protected', 'reset', '-q', '--hard', before);
  await workspace.commit('protected', { 'more.txt': 'more' });
  await workspace.git('protected', 'push', '-q', 'origin', 'HEAD', ':topic');

  await update(id, { branchProtection: false });
  await workspace.git('protected', 'commit', '-q', '--amend', '-m', 'rewritten');
  await workspace.git('protected', 'push', '-qf', 'origin', 'HEAD');
  await workspace.git('protected', 'push', '-q', 'origin', ':main');
});

const SECRET = `AKIA${'Z7Q3M2X5K6W4T2PA'}`;

test('a push that adds a secret is rejected with file and line, and leaves no files behind', async () => {
  const { id } = await seeded('scanned');
  await update(id, { secretScanning: true });
  const pushed = (await read('scanned')).pushedAt;
  await workspace.commit('scanned', { 'src/deep dir/ü.env': `A=1\nB=2\nKEY=${SECRET}\n` });
  await workspace.commit('scanned', { 'src/deep dir/ü.env': 'A=1\n' }, 'take it out again');
  const { code, stderr } = await workspace.try('scanned', 'push', 'origin', 'HEAD');
  expect(code).not.toBe(0);
  expect(stderr).toContain('remote:   src/deep dir/ü.env:3 adds an AWS access key id');
  expect(stderr).toContain('pre-receive hook declined');
  expect((await read('scanned')).pushedAt).toBe(pushed);
  const dir = app.app.services.git.disk.pathOf(id);
  expect(await readdir(`${dir}/objects/pack`)).toHaveLength(2);

  await update(id, { secretScanning: false });
  await workspace.git('scanned', 'push', '-q', 'origin', 'HEAD');
  await update(id, { secretScanning: true });
  // A secret that is in the repository already does not block other changes to the file.
  await workspace.commit('scanned', { 'src/deep dir/ü.env': 'A=2\n' });
  await workspace.git('scanned', 'push', '-q', 'origin', 'HEAD');
});

test('a secret that only a merge commit adds is found', async () => {
  const { id } = await seeded('merged');
  await update(id, { secretScanning: true });
  await workspace.git('merged', 'checkout', '-q', '-b', 'side');
  await workspace.commit('merged', { 'side.txt': 'side\n' });
  await workspace.git('merged', 'checkout', '-q', 'main');
  await workspace.commit('merged', { 'main.txt': 'main\n' });
  await workspace.git('merged', 'merge', '-q', '--no-commit', 'side');
  await workspace.commit('merged', { 'main.txt': `main\n${SECRET}\n` }, 'merge');
  const { stderr } = await workspace.try('merged', 'push', 'origin', 'HEAD');
  expect(stderr).toContain('main.txt:2 adds an AWS access key id');
});

test('a secret from a side branch is found even if the merge removes it', async () => {
  const { id } = await seeded('unmerged');
  await update(id, { secretScanning: true });
  await workspace.git('unmerged', 'checkout', '-q', '-b', 'side');
  await workspace.commit('unmerged', { 'k.txt': `side\n${SECRET}\n` });
  await workspace.git('unmerged', 'checkout', '-q', 'main');
  await workspace.commit('unmerged', { 'k.txt': 'main\n' });
  await workspace.git('unmerged', 'merge', '-q', '-s', 'ours', 'side');
  const { stderr } = await workspace.try('unmerged', 'push', 'origin', 'HEAD');
  expect(stderr).toContain('k.txt:2 adds an AWS access key id');
});

test('secrets are found in files with unusual names and in files with many versions', async () => {
  const { id } = await seeded('hidden');
  await update(id, { secretScanning: true });
  const content = `K=${SECRET}\n`;
  await workspace.commit('hidden', { 'a\nb.env': content, 'c.env': content });
  const lines = await workspace.try('hidden', 'push', 'origin', 'HEAD');
  expect(lines.stderr).toMatch(/a\?b\.env:1 adds|c\.env:1 adds/);
  await workspace.git('hidden', 'reset', '-q', '--hard', 'origin/main');
  // Many large versions, and a last version of empty lines.
  for (let version = 0; version < 5; version++) {
    const keys = Array.from(
      { length: 200 },
      (_, n) =>
        `AKIA${String(version * 1000 + n)
          .padStart(4, '0')
          .replace(/[0189]/g, (d) => 'ABCD'['0189'.indexOf(d)] ?? d)}M2X5K6W4T2PQ`,
    );
    await workspace.commit('hidden', { 'k.env': `${keys.join('\n')}\n` });
  }
  await workspace.commit('hidden', { 'k.env': '\n'.repeat(300_000) });
  const many = await workspace.try('hidden', 'push', 'origin', 'HEAD');
  expect(many.stderr).toContain('k.env:');
  expect(many.stderr.match(/adds an AWS access key id/g)).toHaveLength(5);
});

test('a push option allows a secret once, and the audit log records it', async () => {
  const { id } = await seeded('allowed');
  await update(id, { secretScanning: true });
  const other = SECRET.replace('Z7Q3', 'Q3Z7');
  const path = ':(odd) "path"\\.env';
  await workspace.commit('allowed', { [path]: `A=1\nKEY=${SECRET}\n`, 'b.env': `${other}\n` });
  const refused = await workspace.try('allowed', 'push', 'origin', 'HEAD');
  const findings = [
    ...refused.stderr.matchAll(/^remote: {3}(.*):(\d+) adds .*finding (\w{10})\)/gm),
  ];
  expect(findings.map(([, where, line]) => `${where}:${line}`).sort()).toEqual([
    `${path}:2`,
    'b.env:1',
  ]);
  const ids = findings.map(([, , , finding]) => finding as string);

  const options = (...all: string[]) => all.flatMap((one) => ['-o', one]);
  const push = (...all: string[]) =>
    workspace.try('allowed', 'push', ...options(...all), 'origin', 'HEAD');
  const one = await push(`secret.allow=${ids[0]}`, 'ci.skip', '.', `+${id}`);
  expect([one.code, one.stderr]).toEqual([1, expect.stringContaining(`finding ${ids[1]}`)]);
  expect(one.stderr).not.toContain(`finding ${ids[0]}`);
  expect((await allowedIn('allowed')).nodes).toEqual([]);
  const both = await push(...ids.map((finding) => `secret.allow=${finding}`), 'secret.allow=none');
  expect([both.code, both.stderr]).toEqual([
    0,
    expect.stringContaining('secret.allow=none had no effect'),
  ]);

  const { nodes } = await allowedIn('allowed');
  expect(nodes.map((node: { path: string }) => node.path).sort()).toEqual([path, 'b.env']);
  expect(nodes[0]).toMatchObject({ kind: 'an AWS access key id', allowedBy: 'ada' });
  const { rows } = await app.app.services.pool.query(
    `select details->>'finding' as finding from audit_entries where action = 'secret.allow' and subject = $1`,
    [id],
  );
  expect(rows.map(({ finding }) => finding).sort()).toEqual([...ids].sort());

  // The secret stays allowed in the whole repository until the permission is revoked.
  await workspace.commit('allowed', { 'copy.env': `KEY=${SECRET}\n` });
  expect((await workspace.try('allowed', 'push', 'origin', 'HEAD')).code).toBe(0);
  const finding = nodes.find((node: { path: string }) => node.path === path).finding;
  await ada.gql(
    `mutation ($input: DisallowSecretInput!) { disallowSecret(input: $input) { repository { allowedSecrets { totalCount } } } }`,
    { input: { id, finding } },
  );
  expect((await allowedIn('allowed')).totalCount).toBe(1);
  await workspace.commit('allowed', { 'again.env': `KEY=${SECRET}\n# again\n` });
  expect((await workspace.try('allowed', 'push', 'origin', 'HEAD')).stderr).toContain(
    'again.env:1',
  );
});

async function allowedIn(name: string) {
  const { repository } = await ada.gql(
    `query ($name: String!) { repository(namespace: "ada", name: $name) { allowedSecrets { totalCount nodes { finding kind path allowedBy createdAt } } } }`,
    { name },
  );
  return repository.allowedSecrets;
}

test('the first branch pushed to an empty repository becomes its default', async () => {
  await create('empty', { autoInit: false });
  expect(await read('empty')).toMatchObject({ branchCount: 0, defaultBranch: 'main' });
  await workspace.git('.', 'init', '-q', '-b', 'trunk', 'empty');
  await workspace.commit('empty', { 'a.go': 'package a\n' });
  await workspace.git('empty', 'push', '-q', remote(ada, 'ada/empty'), 'trunk');
  expect(await read('empty')).toMatchObject({
    branchCount: 1,
    defaultBranch: 'trunk',
    language: 'Go',
  });
  await workspace.clone(ada, 'ada/empty', 'filled');
  expect(await workspace.git('filled', 'branch', '--show-current')).toBe('trunk');
});

test('concurrent pushes all take effect, and the record shows the final state', async () => {
  await seeded('crowded');
  const names = Array.from({ length: 6 }, (_, i) => `b${i}`);
  for (const name of names) {
    await workspace.clone(ada, 'ada/crowded', `crowded-${name}`);
    await workspace.commit(`crowded-${name}`, { [`${name}.txt`]: name });
  }
  await Promise.all(
    names.map((name) => workspace.git(`crowded-${name}`, 'push', '-q', 'origin', `HEAD:${name}`)),
  );
  expect(await read('crowded')).toMatchObject({ branchCount: 7 });
  const { pool } = app.app.services;
  const { rows } = await pool.query(
    `select data from events join repositories r on r.id = subject where type = 'repository.pushed' and r.name = 'crowded'`,
  );
  expect(rows).toHaveLength(7);
  expect(rows[6].data).toMatchObject({
    repository: { name: 'crowded', namespace: 'ada' },
    push: { pusher: 'ada', ref_count: 1 },
  });
});

test('a push of many refs packs them, and their values stay the same', async () => {
  const { id } = await seeded('many-refs');
  const dir = app.app.services.git.disk.pathOf(id);
  const sha = await workspace.git('many-refs', 'rev-parse', 'HEAD');
  const names = Array.from({ length: 120 }, (_, i) => `refs/heads/topic/${i}`);
  await workspace.git('many-refs', 'push', '-q', 'origin', ...names.map((name) => `HEAD:${name}`));
  await eventually(async () => {
    const left = await readdir(join(dir, 'refs'), { recursive: true, withFileTypes: true });
    expect(left.filter((entry) => entry.isFile())).toEqual([]);
  });
  const listed = await workspace.git('many-refs', 'ls-remote', 'origin', 'refs/heads/*');
  expect(listed.split('\n')).toEqual(
    [...names, 'refs/heads/main'].sort().map((name) => `${sha}\t${name}`),
  );
  await workspace.git('many-refs', 'push', '-q', 'origin', ':topic/7', 'HEAD:refs/heads/topic/new');
  expect((await read('many-refs')).branchCount).toBe(121);
});

test('a client that disconnects during a push leaves no files behind', async () => {
  const { id } = await seeded('broken');
  const before = await read('broken');
  const stop = new AbortController();
  const body = new ReadableStream({
    start(controller) {
      const line = `${'0'.repeat(40)} ${'1'.repeat(40)} refs/heads/x\0report-status\n`;
      const head = (line.length + 4).toString(16).padStart(4, '0') + line;
      controller.enqueue(Buffer.from(`${head}0000PACK\0\0\0\x02\0\0\0\x09`));
    },
  });
  const push = fetch(`${app.base}/ada/broken.git/git-receive-pack`, {
    method: 'POST',
    body,
    signal: stop.signal,
    headers: {
      authorization: ada.authorization as string,
      'content-type': 'application/x-git-receive-pack-request',
    },
    // A spread, because the type of `fetch` lacks this field.
    ...{ duplex: 'half' },
  });
  const dir = app.app.services.git.disk.pathOf(id);
  const quarantined = async () =>
    (await readdir(`${dir}/objects`)).filter((name) => name.startsWith('tmp_objdir'));
  await eventually(async () => expect(await quarantined()).toHaveLength(1));
  stop.abort();
  await expect(push).rejects.toThrow();
  await eventually(async () => expect(await quarantined()).toHaveLength(0));
  expect(await read('broken')).toEqual(before);
});

test('a push to a repository that is deleted during the push has no effect', async () => {
  const { id } = await seeded('doomed');
  const before = await workspace.git('doomed', 'rev-parse', 'HEAD');
  const after = await workspace.commit('doomed', { 'x.bin': randomBytes(20_000) });
  const pack = execFileSync('git', ['pack-objects', '--revs', '--stdout', '-q'], {
    cwd: join(workspace.path, 'doomed'),
    input: `${after}\n^${before}\n`,
  });
  const command = `${before} ${after} refs/heads/main\0report-status\n`;
  const head = (command.length + 4).toString(16).padStart(4, '0') + command;
  const { git } = app.app.services;
  const dir = git.disk.pathOf(id);
  const answer = await fetch(`${app.base}/ada/doomed.git/git-receive-pack`, {
    method: 'POST',
    headers: {
      authorization: ada.authorization as string,
      'content-type': 'application/x-git-receive-pack-request',
    },
    body: new ReadableStream({
      async start(controller) {
        controller.enqueue(Buffer.from(`${head}0000`));
        controller.enqueue(pack.subarray(0, 1_000));
        await eventually(async () =>
          expect((await readdir(`${dir}/objects`)).join()).toContain('tmp_objdir'),
        );
        await ada.gql(
          `mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }`,
          {
            input: { id },
          },
        );
        controller.enqueue(pack.subarray(1_000));
        controller.close();
      },
    }),
    // A spread, because the type of `fetch` lacks this field.
    ...{ duplex: 'half' },
  });
  expect(await answer.text()).not.toContain('ok refs/heads/main');
  await expect(readdir(dir)).rejects.toThrow('ENOENT');
});

test('a fetch of a repository that is deleted before its response is not found', async () => {
  const { id } = await seeded('vanished');
  const deletion = `mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }`;
  const answer = await fetch(`${app.base}/ada/vanished.git/git-upload-pack`, {
    method: 'POST',
    headers: {
      authorization: ada.authorization as string,
      'content-type': 'application/x-git-upload-pack-request',
    },
    // A body that does not end.
    body: new ReadableStream({
      async start(controller) {
        controller.enqueue(Buffer.from('0032'));
        await ada.gql(deletion, { input: { id } });
      },
    }),
    ...{ duplex: 'half' },
  });
  expect(answer.status).toBe(404);
});

test('what git says about a folder that was deleted under it is not found', async () => {
  const { services } = app.app;
  const { id } = await create('undermined');
  // Git names no folder then: "unable to read current working directory".
  const fail = () => Promise.reject(invalid(null, 'unable to read current working directory'));
  await expect(withRepositoryFolder(services, id, fail)).rejects.toMatchObject({ status: 400 });
  await ada.gql(
    `mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }`,
    { input: { id } },
  );
  await expect(withRepositoryFolder(services, id, fail)).rejects.toMatchObject({ status: 404 });
});

test('the next start finishes or undoes operations of a killed server', async () => {
  const { id } = await seeded('survivor');
  const { services } = app.app;
  const { disk } = services.git;
  const dir = disk.pathOf(id);
  const tip = await workspace.git('survivor', 'rev-parse', 'HEAD');
  const none = '0'.repeat(40);

  // Killed after git had updated the ref, before the push was recorded.
  const commands = [{ ref: 'refs/heads/late', before: none, after: tip }];
  await disk.beginOperation(id, pushNote(commands));
  execFileSync('git', ['-C', dir, 'update-ref', 'refs/heads/late', tip]);
  // Killed before git updated the ref: no effect.
  const lost = [{ ref: 'refs/heads/never', before: none, after: tip }];
  await disk.beginOperation(id, pushNote(lost));
  // Killed before the row of a new repository was committed.
  const orphan = newId('repo');
  await disk.beginOperation(orphan, { kind: 'create' });
  await disk.create(orphan, 'main');

  const before = await read('survivor');
  await recoverRepositories(services);
  const after = await read('survivor');
  expect(after.branchCount).toBe(2);
  expect(Date.parse(after.pushedAt)).toBeGreaterThan(Date.parse(before.pushedAt));
  await expect(readdir(disk.pathOf(orphan))).rejects.toThrow('ENOENT');
  expect(await disk.pendingOperations()).toEqual([]);
});

test('an invalid git request is answered with an error', async () => {
  await seeded('strict');
  const post = (path: string, body: string, type: string, more: Record<string, string> = {}) =>
    ada.request('POST', path, { body, headers: { 'Content-Type': type, ...more } });
  const fetched = '/ada/strict.git/git-upload-pack';
  const type = 'application/x-git-upload-pack-request';
  expect((await post(fetched, 'nonsense', type)).status).toBe(400);
  expect((await post(fetched, '0000', 'application/json')).status).toBe(400);
  // A response-end packet, on which git aborts with SIGABRT.
  const aborted = await post(fetched, '0002', type, { 'Git-Protocol': 'version=2' });
  expect([aborted.status, aborted.text]).toEqual([400, 'The request is not a valid git request\n']);
  expect((await ada.get('/ada/strict.git/info/refs?service=git-shell')).status).toBe(403);
});
