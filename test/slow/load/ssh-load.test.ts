/** Large transfers over SSH, many at once or refused halfway: their memory, and their cleanup. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { watch } from '../../../bench/process.ts';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { type SshUser, sshUser } from '../../support/ssh-client.ts';

const TOKEN = 'a-token-for-large-transfers';
const MB = 1_000_000;
const AT_ONCE = 8;

let server: ServerProcess;
let dataDir: string;
let admin: Client;
let workspace: Workspace;
let user: SshUser;
let pool: pg.Pool;
const cleanup = new AsyncDisposableStack();

beforeEach((ctx) => needs(ctx, 'ssh'));
beforeAll(async () => {
  if (!has('ssh')) return;
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  dataDir = await mkdtemp(join(tmpdir(), 'loam-ssh-load-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  workspace = cleanup.use(await Workspace.open());
  pool = new pg.Pool({ connectionString: database.url });
  cleanup.defer(() => pool.end());
  const port = await freePort();
  server = await startServer({
    DATABASE_URL: database.url,
    LOAM_DATA_DIR: dataDir,
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    LOAM_SSH_PORT: `${port}`,
  });
  cleanup.defer(async () => void (await server.stop()));
  admin = new Client(server.base, `Bearer ${TOKEN}`);
  user = await sshUser(admin, workspace, port);
});
afterAll(() => cleanup.disposeAsync());

/** A repository with one commit of this many random bytes, in the workspace and, if `pushed`, on the server. */
async function large(name: string, bytes: number, pushed: boolean): Promise<string> {
  const { body } = await admin.post('/auth/v1/repository/admin', { name, auto_init: false });
  await workspace.git('.', 'init', '-q', '-b', 'main', name);
  for (let i = 0; i < 4; i++)
    await writeFile(join(workspace.path, name, `${i}.bin`), randomBytes(bytes / 4));
  await workspace.commit(name, {});
  if (pushed) await workspace.git(name, 'push', '-q', remote(admin, `admin/${name}`), 'main');
  return body.id;
}

async function front(): Promise<number> {
  const pid = server.child.pid as number;
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  for (const child of children.trim().split(' ')) {
    const command = await readFile(`/proc/${child}/cmdline`, 'utf8').catch(() => '');
    if (command.includes('ssh/front')) return Number(child);
  }
  throw new Error('there is no process for SSH');
}

async function gitRunning(): Promise<string[]> {
  const pid = server.child.pid as number;
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  const names = await Promise.all(
    children
      .trim()
      .split(' ')
      .map((child) => readFile(`/proc/${child}/comm`, 'utf8').catch(() => '')),
  );
  return names.filter((name) => name.trim() === 'git');
}

test(`${AT_ONCE} large clones at once beside a slow reader use little memory, and others are served`, async () => {
  await large('large', 40 * MB, true);
  const clone = (to: string) => user.git('.', 'clone', '-q', '--bare', user.url('admin/large'), to);
  // The first clone allocates memory that stays allocated.
  await clone('first');
  const tip = await workspace.git('large', 'rev-parse', 'HEAD');
  const slow = spawn('ssh', [...user.options, 'git@127.0.0.1', "git-upload-pack 'admin/large'"]);
  slow.stdin.on('error', () => {});
  try {
    await once(slow.stdout, 'data');
    slow.stdin.write(`0032want ${tip}\n00000009done\n`);
    await once(slow.stdout, 'data');
    slow.stdout.pause();

    const delays: number[] = [];
    let isOver = false;
    const asking = (async () => {
      while (!isOver) {
        const at = performance.now();
        const { status } = await admin.get('/auth/v1/repository/admin');
        expect(status).toBe(200);
        delays.push(performance.now() - at);
      }
    })();
    let tookMs = 0;
    const all = async () => {
      const begun = performance.now();
      await Promise.all(Array.from({ length: AT_ONCE }, (_, i) => clone(`clone-${i}`))).finally(
        () => {
          isOver = true;
          tookMs = performance.now() - begun;
        },
      );
    };
    const ofFront = watch(await front(), all);
    const ofServer = await watch(server.child.pid as number, () => ofFront);
    const { peak, before } = await ofFront;
    await asking;
    for (let i = 0; i < AT_ONCE; i++)
      expect(await workspace.git(`clone-${i}`, 'rev-parse', 'main')).toBe(tip);
    const moved = [ofServer.peak - ofServer.before, peak - before].map((bytes) => bytes / MB);
    const slowest = Math.max(...delays);
    console.log({ server: moved[0], front: moved[1], requests: delays.length, slowest });
    expect(Math.max(...moved)).toBeLessThan(100);
    // Requests do not wait for the clones; on a slow machine both take longer.
    expect(slowest).toBeLessThan(Math.max(5_000, tookMs / 3));
  } finally {
    slow.kill('SIGKILL');
  }
  await eventually(async () => expect(await gitRunning()).toEqual([]));
});

test('a push over SSH that is refused halfway reports the reason and leaves nothing', async () => {
  const id = await large('too-large', 24 * MB, false);
  const folder = join(dataDir, 'repositories', id.slice(-2), id.slice(-4, -2), `${id}.git`);
  // The remaining storage of the plan.
  await pool.query(`update namespaces set plan = 'free', storage_bytes = $1 where name = 'admin'`, [
    10 * 2 ** 30 - 10 * MB,
  ]);
  const { peak, before } = await watch(server.child.pid as number, async () => {
    const refused = await user.try('too-large', 'push', user.url('admin/too-large'), 'main');
    expect(refused.code).not.toBe(0);
    expect(refused.stderr).toContain('Storage quota exceeded: the free plan allows 10 GiB');
  });
  expect(peak - before).toBeLessThan(60 * MB);
  expect(await readdir(join(folder, 'objects/pack'))).toEqual([]);
  await eventually(async () => {
    const names = await readdir(join(folder, 'objects'));
    expect(names.filter((name) => name.startsWith('tmp_objdir'))).toEqual([]);
    expect(await gitRunning()).toEqual([]);
    const [begun] = await readdir(join(dataDir, 'repositories/begun'));
    expect(await readdir(join(dataDir, 'repositories/begun', begun ?? ''))).toEqual([]);
  });
  // There is free storage again, and the same push succeeds.
  await pool.query(`update namespaces set storage_bytes = 0 where name = 'admin'`);
  await user.git('too-large', 'push', '-q', user.url('admin/too-large'), 'main');
});
