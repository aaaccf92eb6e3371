/** Three API servers and two workers behind HAProxy: features of one server also work across all of them. */
import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { chooseOwner } from '../../../src/cluster/placement.ts';
import { eventually } from '../../support/eventually.ts';
import { fuzzRest } from '../../support/fuzz/rest.ts';
import { remote, Workspace } from '../../support/git.ts';
import type { Client } from '../../support/harness.ts';
import { type OneServer, type Servers, startServers } from '../../support/many-servers.ts';
import { walkMatrix } from '../../support/matrix/walk.ts';
import { has, needs } from '../../support/needs.ts';
import { startProcessClock } from '../../support/process-clock.ts';
import { listCommandLines } from '../../support/processes.ts';
import { walkRoutes } from '../../support/rest/walk.ts';
import { followStream, type StreamEvent } from '../../support/sse.ts';
import { submit, until } from '../../support/submit.ts';
import { take, viaYoga } from '../../support/subscribe.ts';
import { takeRestTour } from '../../support/tour.ts';

const MB = 2 ** 20;
const MANY = 1_000_000;
/** Number of fuzz requests; the full number runs on one server. */
const FUZZ = 800;
/** Twice the time in which another server takes over the repositories of a killed server. */
const TAKEOVER_MS = 2 * 5_000;

describe('many servers', () => {
  let loam: Servers;
  const cleanup = new AsyncDisposableStack();

  beforeEach((ctx) => needs(ctx, 'haproxy', 'ceph'));
  beforeAll(async () => {
    if (!has('haproxy') || !has('ceph')) return;
    const plans = {
      free: { perMinute: MANY, perSecond: MANY },
      team: { perMinute: MANY, perSecond: MANY },
      // The plan of rate-limited users.
      enterprise: { perMinute: 1 },
    };
    const env = {
      LOAM_RATE_LIMITS: JSON.stringify(plans),
      // The walk leaves many jobs running.
      LOAM_JOB_SLOTS: '100',
      LOAM_JOB_NETWORK: 'host',
      LOAM_APPS_DOMAIN: 'apps.example.com',
    };
    loam = cleanup.use(await startServers({ serve: 3, work: 2, env }));
  });
  afterAll(() => cleanup.disposeAsync());

  test('the tour with curl', () => takeRestTour(loam));

  describe('the walk over the table of routes', () => {
    walkRoutes(async () => ({ loam, limited: (name) => loam.user(name, 'enterprise') }));
  });

  // With real jobs the walk takes minutes. `test/api/matrix.test.ts` does the same walk on one server.
  if (process.env.LOAM_TEST_SERVERS === 'all')
    describe('every operation by every kind of caller', () => walkMatrix(async () => loam));

  test('no request gets a 5xx', () => fuzzRest(loam, FUZZ));

  async function newRepository(client: Client, name: string, more = {}): Promise<string> {
    const made = await client.post(`/auth/v1/repository/admin`, { name, ...more });
    expect(made.status, made.text).toBe(201);
    return made.body.id;
  }

  describe('streams', () => {
    const COUNT = 'i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; sleep 0.03; done';
    const numbers = Array.from({ length: 100 }, (_, i) => String(i + 1));
    const counting = async (name: string) => {
      await newRepository(loam.admin, name);
      await submit(loam.admin, { namespace: 'admin', name, repo: `admin/${name}`, command: COUNT });
      await until(loam.admin, 'admin', name, 'RUNNING');
    };

    test('a log can be followed on one server after another, and every line arrives once', async () => {
      await counting('followed');
      const seen: StreamEvent[] = [];
      const path = '/admin/job/followed/logs?stream=true&tail=10000';
      for (const server of loam.serving) {
        await using stream = followStream(loam.at(server), path, seen.at(-1)?.id ?? '0');
        seen.push(...(await stream.take(20)));
      }
      await using rest = followStream(loam.admin, path, seen.at(-1)?.id);
      seen.push(...(await rest.all()));
      const told = seen.filter(({ event }) => event === 'log').map(({ data }) => data.message);
      expect(told).toEqual(numbers);
      expect(seen.at(-1)).toMatchObject({ event: 'end', data: { status: 'succeeded' } });
    });

    test('subscriptions on every server receive changes that were made on another server', async () => {
      await counting('subscribed');
      // biome-ignore lint/suspicious/noExplicitAny: events are asserted on, field by field.
      const seen: any[] = [];
      const messages = () => seen.filter(({ message }) => message).map(({ message }) => message);
      for (const server of [...loam.serving, null]) {
        const client = server ? loam.at(server) : loam.admin;
        const query = `subscription { jobLog(namespace: "admin", name: "subscribed", after: ${seen.at(-1)?.seq ?? 0}) {
          seq ... on LogLine { message } ... on JobLogEnd { status } } }`;
        seen.push(...(await take(viaYoga(client, query), 'jobLog', server ? 20 : Infinity)));
      }
      expect(messages()).toEqual(numbers);
      expect(seen.at(-1)).toMatchObject({ status: 'SUCCEEDED' });
    });
  });

  describe('git', () => {
    let workspace: Workspace;
    beforeAll(async () => {
      workspace = cleanup.use(await Workspace.open());
    });

    test('a push to one server can be read at once from all servers', async () => {
      await newRepository(loam.admin, 'shared');
      await workspace.clone(loam.admin, 'admin/shared', 'shared');
      for (const server of loam.serving) {
        const sha = await workspace.commit('shared', { [`${server.name}.txt`]: server.name });
        await workspace.git('shared', 'push', '-q', remote(loam.at(server), 'admin/shared'));
        for (const other of loam.serving) {
          const client = loam.at(other);
          const url = remote(client, 'admin/shared');
          expect(await workspace.git('.', 'ls-remote', url, 'main')).toContain(sha);
          const fresh = `shared-${server.name}-${other.name}`;
          await workspace.git('.', 'clone', '-q', url, fresh);
          expect(await workspace.git(fresh, 'rev-parse', 'HEAD')).toBe(sha);
          const [head] = (await commitsOf(client, 'shared')) as { sha: string }[];
          expect(head?.sha).toBe(sha);
        }
      }
      await workspace.git('shared', 'fetch', '-q', remote(loam.admin, 'admin/shared'));
      const { repository } = await loam.admin.gql(
        `{ repository(namespace: "admin", name: "shared") { pushedAt sizeBytes } }`,
      );
      expect(Date.parse(repository.pushedAt)).toBeGreaterThan(Date.now() - 60_000);
    });

    async function commitsOf(client: Client, name: string) {
      const { repository } = await client.gql(
        `{ repository(namespace: "admin", name: "${name}") { id } }`,
      );
      const id = repository.id;
      const answer = await client.get(`/auth/v1/repository/admin/${id}/commits/main`);
      expect(answer.status, answer.text).toBe(200);
      return answer.body.data;
    }

    test('bodies may be compressed with gzip', async () => {
      await newRepository(loam.admin, 'packed');
      const line = (text: string) => `${(text.length + 4).toString(16).padStart(4, '0')}${text}`;
      const body = `${line('command=ls-refs\n')}0001${line('ref-prefix refs/heads/\n')}0000`;
      for (const server of loam.serving) {
        const ask = (bytes: Uint8Array<ArrayBuffer>) =>
          loam.at(server).request('POST', '/admin/packed.git/git-upload-pack', {
            headers: {
              'Content-Type': 'application/x-git-upload-pack-request',
              'Content-Encoding': 'gzip',
              'Git-Protocol': 'version=2',
            },
            body: bytes,
          });
        const answer = await ask(new Uint8Array(gzipSync(body)));
        expect([answer.status, answer.text]).toEqual([
          200,
          expect.stringContaining('refs/heads/main'),
        ]);
        expect((await ask(new Uint8Array(Buffer.from(body)))).status).toBe(400);
      }
    });

    /** The server that owns the repository, and a server that forwards requests to it. */
    async function placesOf(id: string): Promise<{ owner: OneServer; forwarder: OneServer }> {
      const { rows } = await loam.pool.query<{ id: string; url: string }>(
        `select id, url from servers where role <> 'work'`,
      );
      const owner = loam.serving.find(({ base }) => base === chooseOwner(id, rows).url);
      const forwarder = loam.serving.find((server) => server !== owner);
      if (!owner || !forwarder) throw new Error(`nobody has ${id}`);
      return { owner, forwarder };
    }

    test('a transfer of 200 MB through two servers uses little memory', async () => {
      const pass = async (name: string, bytes: number) => {
        const id = await newRepository(loam.admin, name, { auto_init: false });
        const { owner, forwarder } = await placesOf(id);
        await workspace.git('.', 'init', '-q', '-b', 'main', name);
        await workspace.git(name, 'config', 'core.compression', '0');
        await workspace.commit(name, { 'big.bin': randomBytes(bytes) });
        const before = [owner, forwarder].map(newPeakOf);
        const url = remote(loam.at(forwarder), `admin/${name}`);
        await workspace.git(name, 'push', '-q', url, 'main');
        await workspace.git('.', 'clone', '-q', '--bare', url, `${name}-clone`);
        const moved = [owner, forwarder].map((one, at) => peakOf(one) - (before[at] ?? 0));
        for (const folder of [name, `${name}-clone`])
          await rm(join(workspace.path, folder), { recursive: true });
        return moved;
      };
      await pass('small', 2 * MB);
      const moved = await pass('large', 200 * MB);
      console.log(`memory moved by ${moved.map((bytes) => Math.round(bytes / MB)).join(', ')} MiB`);
      // V8 collects up to 64 MB of buffers before it checks which of them are still used.
      for (const bytes of moved) expect(bytes).toBeLessThan(120 * MB);
    });

    test('a client that disconnects ends its processes', async () => {
      await newRepository(loam.admin, 'left', { auto_init: false });
      await workspace.git('.', 'init', '-q', '-b', 'main', 'left');
      await workspace.git('left', 'config', 'core.compression', '0');
      await workspace.commit('left', { 'big.bin': randomBytes(40 * MB) });
      await workspace.git('left', 'push', '-q', remote(loam.admin, 'admin/left'), 'main');
      const sha = await workspace.git('left', 'rev-parse', 'HEAD');
      const line = (text: string) => `${(text.length + 4).toString(16).padStart(4, '0')}${text}`;
      const body = `${line('command=fetch')}0001${line(`want ${sha}\n`)}${line('done\n')}0000`;
      for (const server of loam.serving) {
        const url = new URL('/admin/left.git/git-upload-pack', server.base);
        const headers = {
          authorization: loam.admin.authorization ?? '',
          'content-type': 'application/x-git-upload-pack-request',
          'git-protocol': 'version=2',
        };
        const { promise, resolve, reject } = Promise.withResolvers<void>();
        const req = request(url, { method: 'POST', headers }, (res) => {
          res.once('data', () => {
            // The transfer is paused in the middle of the pack.
            res.pause();
            resolve();
          });
          res.on('error', () => {});
        });
        req.on('error', reject);
        req.end(body);
        await promise;
        expect(listCommandLines('git upload-pack')).not.toEqual([]);
        req.destroy();
        await eventually(() =>
          expect(listCommandLines(loam.repositoriesDir).filter(isTransfer)).toEqual([]),
        );
      }
    });
  });

  test('limits count by the address of the caller, whichever server receives the request', async () => {
    const asked = (server: string, from: string, headers = {}) =>
      new Promise<{ left: number; resetAt: number }>((resolve, reject) => {
        const url = new URL('/auth/v1/whoami', server);
        request(url, { agent: false, localAddress: from, headers }, (res) => {
          res.resume();
          const left = Number(res.headers['x-ratelimit-remaining']);
          resolve({ left, resetAt: Number(res.headers['x-ratelimit-reset']) });
        })
          .on('error', reject)
          .end();
      });
    const leftFor = async (headers = {}) => (await asked(loam.base, '127.0.0.9', headers)).left;
    const before = await Promise.all(loam.serving.map(({ base }) => asked(base, '127.0.0.1')));
    // Through the proxy, which rotates between the servers.
    for (const _ of loam.serving) expect(await leftFor()).toBe(MANY - 1);
    for (const left of [MANY - 2, MANY - 3])
      for (const _ of loam.serving) {
        const forged = { 'X-Forwarded-For': `192.0.2.${MANY - left}` };
        expect(await leftFor(forged)).toBe(left);
      }
    const after = await Promise.all(loam.serving.map(({ base }) => asked(base, '127.0.0.1')));
    // Rounded to seconds, the end of one window may be reported one second later.
    const isSameWindow = (i: number) => (after[i]?.resetAt ?? 0) - (before[i]?.resetAt ?? 0) <= 1;
    expect(after.map(({ left }) => left)).toEqual(
      before.map(({ left }, i) => (isSameWindow(i) ? left : MANY) - 1),
    );
  });

  test('after the kill of a server, another server answers requests for its repositories within 5 s', async () => {
    const ids: string[] = [];
    for (let i = 0; i < 9; i++) ids.push(await newRepository(loam.admin, `taken-over-${i}`));
    const read = async (id: string) => {
      const answer = await loam.admin.get(`/auth/v1/repository/admin/${id}/commits/main`);
      if (answer.status !== 200) expect([502, 503]).toContain(answer.status);
      return answer.status === 200;
    };
    for (const victim of loam.serving) {
      await Promise.all(ids.map((id) => eventually(async () => expect(await read(id)).toBe(true))));
      using clock = startProcessClock();
      await victim.kill();
      const waits = await Promise.all(
        ids.map(async (id) => {
          await eventually(async () => expect(await read(id)).toBe(true));
          return clock.ms;
        }),
      );
      const slowest = Math.round(Math.max(...waits));
      console.log(`${victim.name} killed: all repositories answer again after ${slowest} ms`);
      expect(slowest).toBeLessThan(TAKEOVER_MS);
      await victim.start();
    }
  });
});

/** The peak memory since `newPeakOf`. */
function peakOf({ pid }: OneServer): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmHWM:\s+(\d+) kB/m.exec(status)?.[1]) * 1024;
}

/** Resets the peak. @returns the current memory */
function newPeakOf(server: OneServer): number {
  writeFileSync(`/proc/${server.pid}/clear_refs`, '5');
  return peakOf(server);
}

const isTransfer = (command: string) => /upload-pack|receive-pack|pack-objects/.test(command);
