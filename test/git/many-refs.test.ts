/**
 * Pushes with many refs, which are synced together. No client sees success before the refs are on disk, and incomplete
 * ref files after a power loss are removed.
 */
import { execFileSync } from 'node:child_process';
import { chmod, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recoverRepositories } from '../../src/repositories/recovery.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { pushNote } from '../support/push-note.ts';
import { sshUser } from '../support/ssh-client.ts';

const NONE = '0'.repeat(40);
const MANY = 150;
const ALL = 'refs/heads/*:refs/heads/*';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
const path = process.env.PATH;
/** While this file exists, the second packing of refs waits. */
let held: string;

beforeAll(async () => {
  workspace = await Workspace.open();
  const bin = join(workspace.path, 'bin');
  held = join(workspace.path, 'held');
  await mkdir(bin);
  const real = execFileSync('sh', ['-c', 'command -v git'], { encoding: 'utf8' }).trim();
  // Makes the server's `pack-refs` wait after git has updated refs. The client does not run `pack-refs`.
  await writeFile(
    join(bin, 'git'),
    `#!/bin/sh
if [ "$1" = pack-refs ] && [ -e '${held}' ] && [ -e refs/heads/topic/0 ]; then
  touch '${held}.waits'
  while [ -e '${held}' ]; do sleep 0.02; done
fi
exec '${real}' "$@"
`,
  );
  await chmod(join(bin, 'git'), 0o755);
  process.env.PATH = `${bin}:${path}`;
  app = await startApp({ config: { ssh: { host: '127.0.0.1', port: 0 } } });
  ada = await app.user('ada');
  await workspace.git('.', 'init', '-q', '-b', 'main', 'source');
  const commit = await workspace.commit('source', { 'a.txt': 'a' });
  const lines = Array.from({ length: MANY }, (_, i) => `create refs/heads/topic/${i} ${commit}\n`);
  execFileSync('git', ['update-ref', '--stdin'], {
    cwd: join(workspace.path, 'source'),
    input: lines.join(''),
  });
});
afterAll(async () => {
  process.env.PATH = path;
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function create(name: string): Promise<{ id: string; dir: string }> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name, auto_init: false });
  return { id: body.id, dir: app.app.services.git.disk.pathOf(body.id) };
}

async function events(id: string): Promise<number> {
  const { rows } = await app.pool.query(
    `select count(*)::int as n from events where subject = $1 and type = 'repository.pushed'`,
    [id],
  );
  return rows[0].n;
}

test.for(['http', 'ssh'] as const)(
  'over %s, a push succeeds only after its refs are on disk',
  async (how, ctx) => {
    if (how === 'ssh') needs(ctx, 'ssh');
    const { id, dir } = await create(how);
    await writeFile(held, '');
    let isOver = false;
    const pushed = (
      how === 'http'
        ? workspace.try('source', 'push', remote(ada, `ada/${how}`), ALL)
        : (await sshUser(ada, workspace, app.app.ssh?.port ?? 0)).try(
            'source',
            ...['push', `ssh://git@127.0.0.1:${app.app.ssh?.port}/ada/${how}.git`, ALL],
          )
    ).finally(() => {
      isOver = true;
    });
    await eventually(async () => expect(await stat(`${held}.waits`)).toBeDefined());
    await rm(`${held}.waits`);
    // All refs are updated; neither the client nor subscribers know yet.
    expect(await readFile(join(dir, `refs/heads/topic/${MANY - 1}`), 'utf8')).toHaveLength(41);
    expect([isOver, await events(id)]).toEqual([false, 0]);
    await rm(held);
    const { code, stderr } = await pushed;
    expect([code, stderr.match(/\[new branch\]/g)?.length]).toEqual([0, MANY + 1]);
    expect(await events(id)).toBe(1);
    const packed = await readFile(join(dir, 'packed-refs'), 'utf8');
    expect(packed.match(/refs\/heads\/topic\//g)).toHaveLength(MANY);
    expect((await ada.get(`/auth/v1/repository/ada/${id}`)).body.branches).toBe(MANY + 1);

    // Deletions, an update and a deletion of a missing ref in one push.
    const work = `work-${how}`;
    await workspace.clone(ada, `ada/${how}`, work);
    await workspace.commit(work, { b: how });
    const deletions = Array.from({ length: MANY - 10 }, (_, i) => `:refs/heads/topic/${i + 10}`);
    const mixed = await workspace.try(
      work,
      ...['push', 'origin', 'HEAD:main', ':refs/heads/none', 'HEAD~1:refs/heads/new', ...deletions],
    );
    expect(mixed.stderr).toContain('HEAD -> main');
    const left = await workspace.git(work, 'ls-remote', '--heads', 'origin');
    expect(left.split('\n')).toHaveLength(12);
  },
);

test('a push whose commands never end is answered', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'endless' });
  expect(body.full_name).toBe('ada/endless');
  const line = Buffer.alloc(65_520, 'x').fill('fff0', 0, 4);
  const answer = await fetch(`${app.base}/ada/endless.git/git-receive-pack`, {
    method: 'POST',
    headers: {
      authorization: `Basic ${Buffer.from(`x:${ada.token}`).toString('base64')}`,
      'content-type': 'application/x-git-receive-pack-request',
    },
    body: Buffer.concat([line, line, line, line]),
  });
  await answer.text();
  expect(answer.status).toBeLessThan(500);
});

test('packed-refs is synced before its rename, packs are synced, and loose refs are not', async (ctx) => {
  needs(ctx, 'strace');
  await create('synced');
  const { PATH } = process.env;
  const bin = join(workspace.path, 'traced');
  const trace = join(workspace.path, 'trace');
  await mkdir(bin);
  await writeFile(
    join(bin, 'git'),
    // The tracer is a child of git. The other way round, a tracer that is killed leaves git behind, stopped.
    `#!/bin/sh
strace -f -y -e trace=fsync,rename -A -o '${trace}' -p $$ </dev/null >/dev/null 2>&1 &
until grep -q 'TracerPid:.*[1-9]' /proc/$$/status; do kill -0 $! || exit 1; done
exec '${join(workspace.path, 'bin/git')}' "$@"
`,
  );
  await chmod(join(bin, 'git'), 0o755);
  process.env.PATH = `${bin}:${PATH}`;
  try {
    await workspace.git('source', 'push', '-q', remote(ada, 'ada/synced'), ALL);
  } finally {
    process.env.PATH = PATH;
  }
  const calls = (await readFile(trace, 'utf8')).split('\n');
  const at = (pattern: RegExp) => calls.findLastIndex((line) => pattern.test(line));
  const [synced, placed] = [/fsync\(.*packed-refs\.new/, /rename\(.*packed-refs\.new/].map(at);
  expect(synced).toBeGreaterThan(-1);
  expect(placed).toBeGreaterThan(synced as number);
  expect(calls.some((line) => /fsync\(.*refs\/heads\/topic/.test(line))).toBe(false);
  expect(calls.some((line) => /fsync\(.*\/pack\/tmp_pack/.test(line))).toBe(true);
});

test('refs whose files a power loss left empty get their values from before the push', async () => {
  const { id, dir } = await create('power');
  const url = remote(ada, 'ada/power');
  await workspace.git('source', 'push', '-q', url, ALL);
  const before = await workspace.git('source', 'ls-remote', url);
  const head = await workspace.git('source', 'rev-parse', 'main');
  const commands = ['topic/1', 'topic/2', 'new/a'].map((name) => ({
    ref: `refs/heads/${name}`,
    before: name === 'new/a' ? NONE : head,
    after: head.replace(/./g, 'a'),
  }));
  await app.app.services.git.disk.beginOperation(id, pushNote(commands));
  await mkdir(join(dir, 'refs/heads/topic'), { recursive: true });
  await mkdir(join(dir, 'refs/heads/new'), { recursive: true });
  for (const { ref } of commands) await writeFile(join(dir, ref), '');
  await recoverRepositories(app.app.services);
  expect(await workspace.git('source', 'ls-remote', url)).toBe(before);
  expect(await events(id)).toBe(1);
  expect(await app.app.services.git.disk.pendingOperations()).toEqual([]);
  await workspace.git('source', 'push', '-q', url, 'main:refs/heads/new/a');
});
