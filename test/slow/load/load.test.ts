/** Large requests are refused or cut, and many concurrent requests neither exhaust the memory nor starve others. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { Client, cloneDatabase, startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { startServer } from '../../support/process.ts';

const REPOSITORIES = '/auth/v1/repository/admin';
const MiB = 2 ** 20;
const ENTRIES = 80_000;

/** Runs git in a bare repository. */
function run(dir: string, args: string[], input?: string | Buffer): string {
  const options = { input, maxBuffer: 512 * MiB, cwd: dir, env: { ...process.env, GIT_DIR: dir } };
  return execFileSync('git', args, options).toString().trim();
}

/** Creates a branch with a directory of this many entries. */
function widen(dir: string, branch: string, entries: number): void {
  const blob = run(dir, ['hash-object', '-w', '--stdin'], 'x');
  const lines = Array.from({ length: entries }, (_, i) => `100644 blob ${blob}\tfile-${i}.txt`);
  const tree = run(dir, ['mktree'], `${lines.join('\n')}\n`);
  const commit = `tree ${tree}\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nwide\n`;
  const sha = run(dir, ['hash-object', '-t', 'commit', '-w', '--stdin'], commit);
  run(dir, ['update-ref', `refs/heads/${branch}`, sha]);
}

test('large directories and messages, requested many times at once, stay within memory', async (ctx) => {
  needs(ctx, 'proc');
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-load-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  const server = cleanup.use(
    await startServer({
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: dataDir,
      LOAM_ADMIN_TOKEN: 'a-token-for-the-load',
      LOAM_RATE_LIMITS: 'off',
    }),
  );
  const admin = new Client(server.base, 'Bearer a-token-for-the-load');
  const { id } = (await admin.post(REPOSITORIES, { name: 'large' })).body;
  const dir = join(dataDir, 'repositories', id.slice(-2), id.slice(-4, -2), `${id}.git`);
  const path = `${REPOSITORIES}/${id}`;
  const peak = () =>
    Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${server.child.pid}/status`, 'utf8'))?.[1]) /
    1024;

  widen(dir, 'wide', ENTRIES);
  widen(dir, 'too-wide', 150_000);
  const refused = await admin.get(`${path}/tree/?ref=too-wide`);
  expect([refused.status, refused.body.error.code]).toEqual([400, 'invalid_request']);
  expect(refused.body.error.message).toMatch(/^path: is a directory of more than 4 MiB/);

  const trees = await Promise.all(
    Array.from({ length: 24 }, async () => {
      const { status, body } = await admin.get(`${path}/tree/?ref=wide`);
      return status === 200 ? body.entries.length : status;
    }),
  );
  for (const answer of trees) expect([ENTRIES, 503]).toContain(answer);
  expect(trees.filter((answer) => answer === ENTRIES).length).toBeGreaterThan(1);

  // Messages of 3 MiB and of 200 kB, and a message that is cut within a character.
  const messages = Array.from({ length: 40 }, (_, i) =>
    i % 2 ? 'ä'.repeat(100_000) : `${'m'.repeat(3 * MiB)}`,
  );
  const stream = messages.map((text, i) => {
    const data = Buffer.byteLength(text);
    return `commit refs/heads/long\ncommitter Ada <ada@x> ${i} +0000\ndata ${data}\n${text}\n`;
  });
  run(dir, ['fast-import', '--quiet'], stream.join(''));
  const pages = await Promise.all(
    Array.from({ length: 24 }, () => admin.get(`${path}/commits/long?per_page=100`)),
  );
  expect(pages.map(({ status }) => status)).toContain(200);
  for (const { status, body } of pages) {
    expect([200, 503]).toContain(status);
    if (status !== 200) continue;
    expect(body.pagination.total).toBe(40);
    for (const { message, committer } of body.data) {
      expect(committer.name).toBe('Ada');
      expect(message.length).toBeLessThan(66_000);
      expect(message).toMatch(/^(m+|ä+)\n\[\d+ more bytes are not shown\]$/);
    }
  }
  expect(peak(), 'MB of the server at its largest').toBeLessThan(1_000);
});

/** Starts a fetch without credentials and does not continue it. */
function hang(base: string): Socket {
  const url = new URL(base);
  const socket = connect(Number(url.port), url.hostname);
  socket.on('error', () => {});
  socket.write(
    [
      'POST /admin/open.git/git-upload-pack HTTP/1.1',
      `Host: ${url.host}`,
      'Content-Type: application/x-git-upload-pack-request',
      'Content-Length: 100',
      '',
      '0011command=',
    ].join('\r\n'),
  );
  return socket;
}

test('fetches without credentials are queued, and fetches with credentials overtake them', async () => {
  await using app = await startApp({ config: { gitTransfers: 4 } });
  await app.admin.post(REPOSITORIES, { name: 'open', visibility: 'public' });
  await app.admin.post(REPOSITORIES, { name: 'own', visibility: 'private' });
  const { transfers, anonymousTransfers } = app.app.services.git;
  const refs = (client: Client, name: string) =>
    client.get(`/admin/${name}.git/info/refs?service=git-upload-pack`);

  const first = hang(app.base);
  await eventually(() => expect(transfers.counts.running).toBe(1));
  // A client that disconnects while it waits leaves the queue.
  const second = hang(app.base);
  await eventually(() => expect(anonymousTransfers.counts.waiting).toBe(1));
  second.destroy();
  await eventually(() => expect(anonymousTransfers.counts.waiting).toBe(0));

  const waiting = Array.from({ length: 32 }, () => refs(app.anonymous, 'open'));
  await eventually(() => expect(anonymousTransfers.counts.waiting).toBe(32));
  const late = await refs(app.anonymous, 'open');
  expect([late.status, late.headers.get('retry-after')]).toEqual([429, '10']);
  expect(late.text).toMatch(/^Too many fetches without credentials are under way/);
  expect((await refs(app.admin, 'own')).status).toBe(200);
  first.destroy();
  for (const { status } of await Promise.all(waiting)) expect(status).toBe(200);
  for (const turns of [transfers, anonymousTransfers])
    await eventually(() => expect(turns.counts).toEqual({ running: 0, waiting: 0 }));
});

test('a client that stops sending loses its slot', async () => {
  await using app = await startApp({
    overrides: { connections: { slowMs: 2_000, checkMs: 100, bytesPerSecond: 1_024 } },
  });
  await app.admin.post(REPOSITORIES, { name: 'open', visibility: 'public' });
  const { transfers } = app.app.services.git;
  hang(app.base);
  await eventually(() => expect(transfers.counts.running).toBe(1));
  await eventually(() => expect(transfers.counts.running).toBe(0));
});
