/**
 * Repeatedly kills the server while clients upload and delete large files: an HTTP client of the LFS API, the stock
 * `git lfs push` over HTTP, which resumes interrupted uploads, and the stock `git push` over SSH. Acknowledged files exist
 * afterwards, deleted files do not, counts are right, and at the end no byte is left.
 *
 * The server sweeps when it starts. Its grace period is at least an hour, so the test makes rows older.
 *
 * `LOAM_TEST_KILLS=20 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/lfs-kills.test.ts`
 */
import { mkdtemp, readdir, rm, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { expect, test } from 'vitest';
import { readConfig } from '../../../src/base/config/config.ts';
import { createLog } from '../../../src/base/log.ts';
import { newToken } from '../../../src/identity/credentials.ts';
import { openFolder } from '../../../src/platform/storage/folder.ts';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { mulberry32 } from '../../support/kills/killer.ts';
import {
  cloneForPushes,
  hasValidObject,
  pushUntilOver,
  remove,
  type Seen,
  uploadAndDelete,
} from '../../support/kills/lfs-clients.ts';
import { checkStore, sweepAll } from '../../support/large-files.ts';
import { needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { startServer } from '../../support/process.ts';
import { sshUser } from '../../support/ssh-client.ts';

const KILLS = Number(
  process.env.LOAM_TEST_KILLS ?? (process.env.LOAM_TEST_REQUIRE === 'all' ? 6 : 2),
);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** The steps that clients complete before a kill, at most, and the time limit for these steps on a busy machine. */
const STEPS = 5;
const STEPS_MS = 8_000;
/** The longest delay of a kill after these steps, or after the start of a server, which begins with a sweep. */
const LATER_MS = 400;
/** Longer than an upload takes here. An upload that takes longer is answered 503, and retried. */
const GRACE = `interval '4 s'`;
const AGED = `interval '2 hours'`;
const AGE_EVERY_MS = 300;
const DONE = ['given', 'deleted', 'git lfs push', 'git push'];

test(`large files over HTTP and SSH through ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 15_000,
}, async (ctx) => {
  needs(ctx, 'git-lfs', 'ssh');
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = mulberry32(SEED);
  const database = await cloneDatabase();
  cleanup.defer(() => eventually(() => database.drop()));
  const folder = await mkdtemp(join(tmpdir(), 'loam-lfs-kills-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const pool = new pg.Pool({ connectionString: database.url, max: 3 });
  cleanup.defer(() => pool.end());
  const token = newToken();
  const [port, sshPort] = [await freePort(), await freePort()];
  const start = () =>
    startServer({
      PORT: `${port}`,
      LOAM_SSH_PORT: `${sshPort}`,
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: join(folder, 'data'),
      LOAM_STORAGE: join(folder, 'storage'),
      LOAM_ADMIN_TOKEN: token,
      LOAM_RATE_LIMITS: 'off',
      LOAM_LFS_GRACE_HOURS: '1',
    });
  let server = await start();
  cleanup.defer(async () => void (await server.stop()));
  const storage = cleanup.use(await openFolder(join(folder, 'storage')));
  const admin = new Client(server.base, `Bearer ${token}`);
  const workspace = cleanup.use(await Workspace.open());
  const user = await sshUser(admin, workspace, sshPort);

  const repository = async (name: string, more: object = {}) => {
    const { status, text, body } = await admin.post('/auth/v1/repository/admin', { name, ...more });
    expect(status, text).toBe(201);
    return { id: body.id as string, path: `admin/${name}` };
  };
  const shared = { content_addressed: true };
  const [one, two, own, stock, ssh] = await Promise.all([
    repository('one', shared),
    repository('two', shared),
    repository('own'),
    repository('stock', shared),
    repository('ssh', shared),
  ]);

  await cloneForPushes(workspace, remote(admin, stock.path), 'stock', { tus: true });
  await cloneForPushes(user, user.url(ssh.path), 'ssh', { tus: false });

  const over = new AbortController();
  cleanup.defer(() => over.abort());
  const seen: Seen = { has: new Map(), faults: [], counts: {} };
  const acting = { admin, seen, over: over.signal };
  const clients = [
    ...[one, two, own].map((to, i) => uploadAndDelete(acting, to, mulberry32(SEED + i))),
    pushUntilOver(
      { ...acting, git: workspace },
      { ...stock, folder: 'stock', push: ['lfs', 'push', 'origin', 'HEAD'] },
    ),
    pushUntilOver(
      { ...acting, git: user },
      { ...ssh, folder: 'ssh', push: ['push', '-q', 'origin', 'HEAD'] },
    ),
  ];
  for (const client of clients) client.catch(() => over.abort());
  const ageing = (async () => {
    for (; !over.signal.aborted; await delay(AGE_EVERY_MS)) await age(pool);
  })();
  ageing.catch(() => {});

  for (let kill = 1; kill <= KILLS && !over.signal.aborted; kill++) {
    // Every other server is killed during its sweep.
    const wanted = kill % 2 ? stepsOf(seen) + Math.ceil(random() * STEPS) : 0;
    const deadline = Date.now() + STEPS_MS;
    while (stepsOf(seen) < wanted && Date.now() < deadline) await delay(10);
    await delay(random() * LATER_MS, undefined, { signal: ctx.signal });
    await server.stop('SIGKILL');
    console.log(`${kill}: killed after ${JSON.stringify(seen.counts)}`);
    server = await start();
  }
  await eventually(() => {
    for (const what of DONE) expect(seen.counts[what], what).toBeGreaterThan(0);
  });
  over.abort();
  await Promise.all(clients);
  await ageing;
  console.log(seen.counts);
  expect(seen.faults).toEqual([]);
  for (const what of DONE) expect(seen.counts[what], what).toBeGreaterThan(0);

  const checkAll = async () => {
    for (const [key, known] of seen.has) {
      const found = await hasValidObject(admin, key);
      if (known !== null) expect([key, found]).toEqual([key, known]);
    }
  };
  await checkAll();
  await user.git('ssh', 'fetch', '-q', 'origin');
  expect(await workspace.git('ssh', 'rev-parse', 'origin/main', 'HEAD')).toMatch(/^(\w+)\n\1$/);
  await checkStore({ pool, storage });
  const services = { pool, storage, log: createLog('warn'), config: readConfig({}) };
  await sweepAll(services);
  await checkStore({ pool, storage });
  await checkAll();

  for (const { id } of [one, two, own, stock, ssh]) {
    const oids = [...seen.has.keys()]
      .filter((key) => key.includes(id))
      .map((key) => key.slice(-64));
    await remove(admin, id, oids);
  }
  await sweepAll(services);
  expect(await checkStore({ pool, storage })).toEqual({
    objects: 0,
    chunks: 0,
    packs: 0,
    bytes: 0,
  });
  // Files that were being written when a server was killed are removed a day later.
  const unfinished = join(folder, 'storage/.unfinished');
  for (const name of await readdir(unfinished)) await utimes(join(unfinished, name), 0, 0);
  await storage.removeAbandoned();
  expect(await readdir(unfinished)).toEqual([]);
});

/** Number of acknowledgements that clients have received. */
function stepsOf({ counts }: Seen): number {
  return DONE.reduce((sum, what) => sum + (counts[what] ?? 0), 0);
}

/** Makes rows that were not touched for a while older than the grace period. */
async function age(pool: pg.Pool): Promise<void> {
  for (const [table, column] of [
    ['large_objects', 'touched_at'],
    ['large_chunks', 'unused_since'],
    ['large_packs', 'since'],
  ])
    await pool.query(
      `update ${table} set ${column} = ${column} - ${AGED}
       where ${column} between now() - ${AGED} / 2 and now() - ${GRACE}`,
    );
}
