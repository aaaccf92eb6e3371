/** Several servers on one database and one folder of repositories: which server owns which repository, and takeovers. */
import { hash, randomBytes } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { appendFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { type ClientRequest, createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { basename, dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { serialize } from 'node:v8';
import { expect, onTestFinished, test } from 'vitest';
import type { App } from '../../../src/app.ts';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import type { Cluster } from '../../../src/cluster/cluster.ts';
import { forward, forwardTo } from '../../../src/cluster/forward.ts';
import type { Member, Members } from '../../../src/cluster/members.ts';
import { chooseOwner } from '../../../src/cluster/placement.ts';
import { isSigned, sign } from '../../../src/cluster/signature.ts';
import { openTunnel } from '../../../src/cluster/tunnels.ts';
import { FLUSH, pktLine } from '../../../src/git/transport/pkt-line.ts';
import { recoverRepositories } from '../../../src/repositories/recovery.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import type { Client } from '../../support/harness.ts';
import { has } from '../../support/needs.ts';
import { startProcessClock } from '../../support/process-clock.ts';
import { pushNote } from '../../support/push-note.ts';
import { startServers } from '../../support/servers.ts';
import { SshUser, sshUser } from '../../support/ssh-client.ts';

/** Time for the start of several servers. */
test('a push through one server can be read through every other', async () => {
  const ssh = has('ssh') ? { host: '127.0.0.1', port: 0 } : ('off' as const);
  await using servers = await startServers(3, { config: { ssh } });
  const { apps, clients } = servers;
  await using work = await Workspace.open();
  const key = ssh === 'off' ? null : await sshUser(clients[0] as Client, work, 0);
  const ids: string[] = [];
  for (let i = 0; i < 4; i++) {
    const [pushing, reading] = [clients[i % 3], clients[(i + 1) % 3]] as [Client, Client];
    const made = await pushing.post('/auth/v1/repository/admin', {
      name: `r${i}`,
      auto_init: true,
    });
    expect(made.status).toBe(201);
    ids.push(made.body.id);
    await work.clone(reading, `admin/r${i}`, `r${i}`);
    await work.commit(`r${i}`, { 'a.txt': `number ${i}\n`, 'b.bin': Buffer.alloc(9_000) });
    await work.git(`r${i}`, 'push', '-q', 'origin', 'HEAD:main', 'HEAD~1:refs/tags/v0');
    for (const client of clients) {
      const path = `/auth/v1/repository/admin/${made.body.id}`;
      expect((await client.get(`${path}/file/a.txt`)).body.content).toBe(`number ${i}\n`);
      expect((await client.get(`${path}/tree/`)).body.entries).toHaveLength(2);
      expect((await client.get(`${path}/commits/main`)).body.pagination.total).toBe(2);
      const missing = await client.get(`${path}/file/none`);
      expect([missing.status, missing.body.error.code]).toEqual([404, 'not_found']);
      const { download_url } = (await client.get(`${path}/file/b.bin`)).body;
      const download = await fetch(download_url.replace(/^http:\/\/[^/]+/, client.base), {
        headers: { Range: 'bytes=10-19' },
      });
      expect([download.status, (await download.arrayBuffer()).byteLength]).toEqual([206, 10]);
      const { repository } = await client.gql(READ, { name: `r${i}` });
      expect(repository.tags.nodes[0].commit.message).toBe('Initial commit');
      expect(repository.commits.totalCount).toBe(2);
      expect(repository.comparison.aheadBy).toBe(1);
      expect(repository.comparison.changes.files.nodes[0].patch.text).toContain(`+number ${i}`);
    }
  }
  // Over SSH too, through any server, and with one host key.
  if (key) {
    const known = join(work.path, 'known_hosts');
    for (const [i, { ssh }] of apps.entries()) {
      await appendFile(known, `[127.0.0.1]:${ssh?.port} ${apps[0]?.ssh?.hostKeys[0]?.publicKey}\n`);
      const user = new SshUser(work, key.key, ssh?.port ?? 0, known);
      for (const name of ['r0', 'r1']) {
        await user.git(name, 'pull', '-q', user.url(`admin/${name}`), 'main');
        const sha = await work.commit(name, { [`${i}.bin`]: randomBytes(200_000) });
        await user.git(name, 'push', '-q', user.url(`admin/${name}`), 'HEAD:main');
        expect(await user.git(name, 'ls-remote', user.url(`admin/${name}`), 'main')).toContain(sha);
      }
      const missing = await user.try('.', 'ls-remote', user.url('admin/none'));
      expect(missing.stderr).toContain('loam: Repository admin/none not found');
    }
  }
  // Each server owns some repositories, and all servers agree on the owners. More ids than were created are checked, because
  // one server may own all of four repositories.
  const many = Array.from({ length: 64 }, () => newId('repo'));
  const places = [...ids, ...many].map((id) =>
    apps.map(({ services }) => chooseOwner(id, services.cluster.members.serving).id),
  );
  for (const seen of places) expect(new Set(seen).size).toBe(1);
  expect(new Set(places.flat()).size).toBe(3);
  for (const [i, id] of ids.entries()) {
    const path = `/auth/v1/repository/admin/${id}`;
    expect((await (clients[i % 3] as Client).delete(path)).status).toBe(204);
    for (const client of clients) expect((await client.get(`${path}/tree/`)).status).toBe(404);
  }
});

const READ = `query ($name: String!) {
  repository(namespace: "admin", name: $name) {
    tags { nodes { name commit { message } } }
    commits { totalCount }
    comparison(base: "v0", head: "main") {
      aheadBy
      changes { files { nodes { path patch { text } } } }
    }
  }
}`;

test('the repositories of a stopped server are taken over by another server, and its work is finished', async () => {
  await using servers = await startServers(3);
  const { apps, clients } = servers;
  const [first, second] = clients as [Client, Client];
  const leaving = apps[2] as App;
  const { id, serving } = leaving.services.cluster.members;
  const isIts = (one: string) => chooseOwner(one, serving).id === id;
  const ids: string[] = [];
  // Ids are random: in one of 26 runs, the stopped server owns none of eight repositories.
  for (let i = 0; i < 8 || !ids.some(isIts); i++) {
    const input = { name: `r${i}`, auto_init: true };
    ids.push((await first.post('/auth/v1/repository/admin', input)).body.id);
  }
  const its = ids.find(isIts) as string;
  const repositories = leaving.services.config.repositoriesDir;

  const timeToReadAll = async () => {
    using clock = startProcessClock();
    for (const client of [first, second])
      for (const one of ids)
        expect((await client.get(`/auth/v1/repository/admin/${one}/tree/`)).status).toBe(200);
    return clock.ms;
  };
  const before = await timeToReadAll();
  await leaving[Symbol.asyncDispose]();
  expect(await timeToReadAll()).toBeLessThan(3 * before + 5_000);

  // The state after a kill between the update of the refs and the record of the push.
  const dir = leaving.services.git.disk.pathOf(its);
  const main = (await readFile(join(dir, 'refs/heads/main'), 'utf8')).trim();
  await writeFile(join(dir, 'refs/heads/left'), `${main}\n`);
  const note = join(repositories, 'begun', id, `${its}.note`);
  await mkdir(dirname(note), { recursive: true });
  const commands = [{ ref: 'refs/heads/left', before: '0'.repeat(40), after: main }];
  await writeFile(note, JSON.stringify(pushNote(commands)));
  // A recent note may belong to a server that is only reconnecting to the database.
  const young = join(repositories, 'begun', id, 'repo_00000000000000000000000000.new');
  await writeFile(young, JSON.stringify({ kind: 'create' }));
  // The state after a kill in the middle of another push.
  const quarantine = join(dir, 'objects/tmp_objdir-incoming-AbCdEf');
  await mkdir(join(quarantine, 'pack'), { recursive: true });
  const receiving = join(repositories, 'begun', id, `${its}.receiving`);
  await writeFile(receiving, JSON.stringify({ kind: 'receiving' }));
  await apps[1]?.[Symbol.asyncDispose]();
  await eventually(async () => {
    const repository = await first.get(`/auth/v1/repository/admin/${its}`);
    expect(repository.body.branches).toBe(2);
  });
  await eventually(async () => {
    expect(await readdir(dirname(note))).toEqual([basename(young)]);
    expect(await readdir(join(dir, 'objects'))).not.toContain(basename(quarantine));
  });
});

test('files left by a push are removed by the owner of the repository, after its own pushes', async () => {
  await using servers = await startServers(2);
  const [client] = servers.clients as [Client];
  const { id } = (await client.post('/auth/v1/repository/admin', { name: 'left' })).body;
  const isElsewhere = ({ services }: App) => services.cluster.remoteOwner(id) !== null;
  const owner = servers.apps.find((app) => !isElsewhere(app)) as App;
  const other = servers.apps.find(isElsewhere) as App;
  const { disk, quarantines } = owner.services.git;
  const left = join(disk.pathOf(id), 'objects/tmp_objdir-incoming-AbCdEf');
  await mkdir(join(left, 'pack'), { recursive: true });
  await other.services.git.disk.beginOperation(id, { kind: 'receiving' });
  const push = async () => {
    await recoverRepositories(other.services);
    await eventually(async () =>
      expect(await other.services.git.disk.pendingOperations()).toEqual([]),
    );
    expect(await readdir(dirname(left))).toContain(basename(left));
    return { code: 0, signal: null, stderr: '' };
  };
  await quarantines.runPush(id, push, async () => {});
  expect(await readdir(dirname(left))).not.toContain(basename(left));
});

test('a fetch waits for the takeover from a server that does not answer, and is sent completely', async () => {
  await using servers = await startServers(1);
  const [client] = servers.clients as [Client];
  const { pool, cluster } = (servers.apps[0] as App).services;
  const { serving } = cluster.members;
  for (let i = 0; ; i++) {
    const input = { name: `r${i}`, auto_init: true };
    const { body } = await client.post('/auth/v1/repository/admin', input);
    if (chooseOwner(body.id, [...serving, { id: 'dead' }]).id !== 'dead') continue;
    // No process listens at this address. The server counts as alive until its heartbeat is too old.
    await pool.query(
      `insert into servers (id, role, url, storage, heartbeat_at)
       values ('dead', 'serve', 'http://127.0.0.1:1', '', clock_timestamp())`,
    );
    await eventually(() => expect(cluster.members.serving).toHaveLength(2));
    // Simulates that a client's first request was answered before the server died.
    const answer = await client.request('POST', `/admin/r${i}.git/git-upload-pack`, {
      body: `${pktLine('command=ls-refs\n')}0001${FLUSH}`,
      headers: {
        'Content-Type': 'application/x-git-upload-pack-request',
        'Git-Protocol': 'version=2',
      },
    });
    expect(answer.text).toContain('refs/heads/main');
    break;
  }
});

test('a transfer moves to the next owner if its owner dies while the connection to it is being opened', async () => {
  const gone = new AbortController();
  let member: Member | null = null;
  const cluster = {
    key: randomBytes(32),
    remoteOwner: () => member,
    members: { waitForChange: async () => {} },
  } as unknown as Cluster;
  const server = createHttpServer(async (req, res) => {
    const incoming = Object.assign(req, { originalUrl: '/', id: 'first' });
    const services = { cluster, log: createLog('silent') };
    res.end(`${await forward(services, newId('repo'), incoming, res)}`);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  member = { id: newId('srv'), baseUrl, goneSignal: gone.signal };
  const dieWhileConnecting = (message: unknown) => {
    (message as { request: ClientRequest }).request.once('socket', () => {
      // After the sender waits for the connection, and before the connection is open.
      queueMicrotask(() =>
        process.nextTick(() => {
          member = null;
          gone.abort();
        }),
      );
    });
  };
  subscribe('http.client.request.created', dieWhileConnecting);
  onTestFinished(() => {
    unsubscribe('http.client.request.created', dieWhileConnecting);
    server.closeAllConnections();
    server.close();
  });
  const answer = await fetch(baseUrl, { signal: AbortSignal.timeout(30_000) });
  // The request was not forwarded, because this server is the owner now.
  expect(await answer.text()).toBe('false');
});

test('a server that leaves may finish the requests that were forwarded to it', async () => {
  await using servers = await startServers(2);
  const [first, second] = servers.apps.map(({ services }) => services.cluster.members) as [
    Members,
    Members,
  ];
  const member = first.find(second.id);
  await second.leave();
  await eventually(() => expect(first.serving).toHaveLength(1));
  expect([first.find(second.id), member?.goneSignal.aborted]).toEqual([undefined, false]);
});

test('a forwarded request that waits for its response ends when this server stops', async () => {
  const stopping = new AbortController();
  const silent = createHttpServer(() => stopping.abort()).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  onTestFinished(() => {
    silent.closeAllConnections();
    silent.close();
  });
  const { port } = silent.address() as AddressInfo;
  const member = { baseUrl: `http://127.0.0.1:${port}`, goneSignal: new AbortController().signal };
  const members = { id: newId('srv'), find: () => member };
  const cluster = { key: randomBytes(32), members } as unknown as Cluster;
  const refused = Promise.withResolvers<unknown>();
  const server = createHttpServer((req, res) => {
    const incoming = Object.assign(req, { originalUrl: '/', id: 'first' });
    const services = { cluster, log: createLog('silent') };
    forwardTo(services, newId('srv'), incoming, res, stopping.signal)
      .then(refused.resolve, refused.resolve)
      .finally(() => res.end());
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  expect(await refused.promise).toMatchObject({ status: 503 });
});

test('a tunnel between two servers ends with the client, and if the other server is dead and silent', async () => {
  // Responds, then sends nothing and never closes the connection, like a machine without power.
  const sockets: Socket[] = [];
  const dead = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.push(socket.on('error', () => {}));
    socket.once('data', () =>
      socket.write('HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: loam\r\n\r\n'),
    );
  });
  dead.listen(0, '127.0.0.1');
  await once(dead, 'listening');
  try {
    const url = `http://127.0.0.1:${(dead.address() as AddressInfo).port}`;
    const cluster = { key: randomBytes(32) } as unknown as Cluster;
    const begin = async (gone: AbortSignal, signal: AbortSignal) => {
      const about = { target: newId('repo'), head: {}, signal, quietMs: 5_000 };
      const socket = await openTunnel(
        { cluster },
        { id: 'x', baseUrl: url, goneSignal: gone },
        about,
      );
      socket.resume();
      return { socket, closed: once(socket, 'close') };
    };
    const never = new AbortController().signal;
    const client = new AbortController();
    const left = await begin(never, client.signal);
    client.abort();
    await left.closed;

    const server = new AbortController();
    const cut = await begin(server.signal, never);
    const theirs = sockets.at(-1) as Socket;
    server.abort();
    // A server that is only stopping may still send data for longer than the silence limit.
    for (let i = 0; i < 12; i++) {
      await delay(500);
      theirs.write('x');
    }
    expect(cut.socket.destroyed).toBe(false);
    await cut.closed;
  } finally {
    for (const socket of sockets) socket.destroy();
    dead.close();
  }
});

test('servers with different shared settings are refused', async () => {
  await using servers = await startServers(1);
  await using other = await Workspace.open();
  const elsewhere = { repositoriesDir: join(other.path, 'repositories') };
  await expect(servers.start('second', { config: elsewhere })).rejects.toThrow(
    /^LOAM_REPOSITORIES_DIR: /,
  );
  const apart = { storage: { kind: 'folder', path: join(other.path, 'storage') } } as const;
  await expect(servers.start('second', { config: apart })).rejects.toThrow(/^LOAM_STORAGE: /);
  const otherKey = { secretKey: Buffer.alloc(32, 8) };
  await expect(servers.start('second', { config: otherKey })).rejects.toThrow(/^LOAM_SECRET_KEY: /);
  await servers.start('second');
});

test('calls between servers require a valid signature', async () => {
  await using servers = await startServers(1);
  const [client] = servers.clients as [Client];
  const { body } = await client.post('/auth/v1/repository/admin', { name: 'r', auto_init: true });
  const path = `/_loam/calls/tipOf/${body.id}`;
  const input = serialize('main');
  const send = (headers: Record<string, string>, to = path) =>
    client.request('POST', to, {
      body: input,
      headers: { 'Content-Type': 'application/x-loam-call', ...headers },
    });
  const contentHash = hash('sha256', input);
  const { key } = (servers.apps[0] as App).services.cluster;
  const signed = (over: string[], now?: number) => ({
    'Loam-Content': contentHash,
    'Loam-Signature': sign(key, over, now),
  });
  expect((await send(signed(['call', path, contentHash]))).status).toBe(200);
  expect((await send({})).status).toBe(404);
  expect((await send({ 'Loam-Content': contentHash, 'Loam-Signature': '1.2' })).status).toBe(404);
  expect((await send(signed(['call', `${path}x`, contentHash]))).status).toBe(404);
  expect((await send(signed(['call', path, contentHash], Date.now() - 600_000))).status).toBe(404);
  const forged = {
    ...signed(['call', path, hash('sha256', 'x')]),
    'Loam-Content': hash('sha256', 'x'),
  };
  expect((await send(forged)).status).toBe(404);
  const unknown = `/_loam/calls/toString/${body.id}`;
  expect((await send(signed(['call', unknown, contentHash]), unknown)).status).toBe(404);
});

test('few repositories move when a server joins or leaves', () => {
  const servers = ['a', 'b', 'c', 'd'].map((id) => ({ id }));
  const ids = Array.from({ length: 4_000 }, (_, i) => `repo_${i}`);
  const counts = new Map<string, number>();
  let moved = 0;
  for (const id of ids) {
    const before = chooseOwner(id, servers);
    counts.set(before.id, (counts.get(before.id) ?? 0) + 1);
    const after = chooseOwner(id, servers.slice(0, 3));
    if (before.id !== 'd') expect(after.id).toBe(before.id);
    else moved++;
  }
  expect(moved).toBe(counts.get('d'));
  for (const count of counts.values()) expect(Math.abs(count - 1_000)).toBeLessThan(150);
});

test('a signature is valid for the signed request only, for five minutes', () => {
  const key = Buffer.alloc(32, 1);
  const header = sign(key, ['a', 'b'], 1_000_000);
  expect(isSigned(key, header, ['a', 'b'], 1_000_000 + 299_000)).toBe(true);
  expect(isSigned(key, header, ['a', 'b'], 1_000_000 + 301_000)).toBe(false);
  expect(isSigned(key, header, ['ab'], 1_000_000)).toBe(false);
  expect(isSigned(Buffer.alloc(32, 2), header, ['a', 'b'], 1_000_000)).toBe(false);
  expect(isSigned(key, undefined, ['a', 'b'])).toBe(false);
});
