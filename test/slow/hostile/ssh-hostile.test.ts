/** Malicious and disconnecting SSH clients, and crashes of the SSH process and of the server. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import ssh2 from 'ssh2';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { SshLimits } from '../../../src/api/ssh/front/protocol.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, cloneDatabase, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { startServer } from '../../support/process.ts';
import { makeKey, SshUser, sshUser } from '../../support/ssh-client.ts';

/** Times that clients of a busy machine do not exceed. */
const LIMITS = {
  loginMs: 10_000,
  unauthenticatedPerAddress: 8,
  failuresPerAddressPerMinute: 1_000,
  idleMs: 10_000,
  commandMs: 5_000,
  stalledMs: 10_000,
  connectionsPerUser: 6,
} satisfies Partial<SshLimits>;

let app: TestApp;
let ada: Client;
let workspace: Workspace;
let user: SshUser & { id: string };
const port = () => app.app.ssh?.port ?? 0;

beforeEach((ctx) => needs(ctx, 'ssh'));
beforeAll(async () => {
  if (!has('ssh')) return;
  app = await startApp({
    config: { ssh: { host: '127.0.0.1', port: 0 } },
    overrides: { ssh: LIMITS },
  });
  workspace = await Workspace.open();
  ada = await app.user('ada');
  user = await sshUser(ada, workspace, port());
  await ada.post('/auth/v1/repository/ada', { name: 'hello' });
});
afterAll(async () => {
  await workspace?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

const answers = async (who = user) =>
  expect((await who.ssh([])).stderr).toBe(
    "Hi ada! You've authenticated, but Loam gives no shell.\n",
  );

async function open(): Promise<Socket> {
  const socket = connect(port(), '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.resume();
  return socket;
}

/** Starts `ssh` with a command and an open input. */
function begin(command: string, who = user): ChildProcess {
  const child = spawn('ssh', [...who.options, 'git@127.0.0.1', command]);
  child.stdin?.on('error', () => {});
  return child;
}

test('connections without a key are limited in number and in time', async () => {
  const sockets = await Promise.all(Array.from({ length: LIMITS.unauthenticatedPerAddress }, open));
  // One more connection is closed before the server sends anything.
  const more = connect(port(), '127.0.0.1');
  let said = 0;
  more.on('data', (chunk) => {
    said += chunk.length;
  });
  more.on('error', () => {});
  await once(more, 'close');
  expect(said).toBe(0);
  await Promise.all(sockets.map((socket) => socket.closed || once(socket, 'close')));
  await answers();
});

test('input that is not SSH ends its own connection and nothing else', async () => {
  const { pid } = app.app.ssh ?? {};
  const ident = 'SSH-2.0-x\r\n';
  const length = (bytes: number) => {
    const buffer = Buffer.alloc(4);
    buffer.writeUInt32BE(bytes);
    return buffer;
  };
  for (const bytes of [
    randomBytes(1_000_000),
    Buffer.from('GET / HTTP/1.1\r\nHost: x\r\n\r\n'),
    Buffer.from('x\r\n'.repeat(5_000)),
    Buffer.from(ident + ident),
    Buffer.concat([Buffer.from(ident), length(2 ** 32 - 1), randomBytes(100)]),
    Buffer.concat([Buffer.from(ident), length(0), randomBytes(100)]),
    Buffer.concat([Buffer.from(ident), length(35_000), randomBytes(40_000)]),
    // A complete packet with a message that is not allowed before the key exchange.
    ...[5, 50, 90, 94, 255].map((message) =>
      Buffer.concat([Buffer.from(ident), length(12), Buffer.from([4, message]), Buffer.alloc(10)]),
    ),
  ]) {
    const socket = await open();
    socket.write(bytes);
    if (!socket.closed) await once(socket, 'close');
  }
  await answers();
  expect(app.app.ssh?.pid).toBe(pid);
});

test('a client that reads nothing uses no memory', async () => {
  await user.git('.', 'clone', '-q', user.url('ada/hello'), 'much');
  await workspace.commit('much', { 'much.bin': randomBytes(30_000_000) });
  await user.git('much', 'push', '-q', 'origin', 'HEAD:refs/heads/much');
  const memory = async () => {
    const status = await readFile(`/proc/${app.app.ssh?.pid}/status`, 'utf8');
    return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) * 1_024;
  };
  const before = await memory();
  const client = await logIn();
  const channel = await exec(client, "git-upload-pack 'ada/hello.git'");
  await once(channel, 'data');
  // The client advertises a window of gigabytes, requests everything, and stops reading.
  const { outgoing } = channel as unknown as { outgoing: { id: number } };
  client._protocol.channelWindowAdjust(outgoing.id, 2 ** 31 - 1);
  const tip = await workspace.git('much', 'rev-parse', 'HEAD');
  channel.write(`0032want ${tip}\n00000009done\n`);
  client._sock.pause();
  let seen = 0;
  // The socket's buffers are full, and the server sends no more.
  await eventually(async () => {
    const { bytes } = await moved();
    const isStill = bytes === seen && bytes > 100_000;
    seen = bytes;
    if (!isStill) throw new Error('it still flows');
  });
  expect((await memory()) - before).toBeLessThan(15_000_000);
  client.destroy();
  await answers();

  /** Bytes that the process has written, to any client. */
  async function moved() {
    await new Promise((done) => setTimeout(done, 300));
    const io = await readFile(`/proc/${app.app.ssh?.pid}/io`, 'utf8');
    return { bytes: Number(/wchar: (\d+)/.exec(io)?.[1]) };
  }
});

/** A client of the ssh2 library, which does things that the stock client never does. */
async function logIn(who = user): Promise<ssh2.Client & Inner> {
  const client = new ssh2.Client();
  const privateKey = await readFile(who.key.path);
  client.connect({ host: '127.0.0.1', port: port(), username: 'git', privateKey });
  await once(client, 'ready');
  return client as ssh2.Client & Inner;
}
type Inner = {
  _protocol: {
    session(id: number, window: number, packet: number): void;
    exec(id: number, command: string, wantReply: boolean): void;
    channelWindowAdjust(id: number, bytes: number): void;
  };
  _chanMgr: { add(opened: object): number };
  _sock: Socket;
};

/** Opens a session without a request. Null: it is refused. */
function session(client: Inner, packet = 2 ** 15): Promise<ssh2.ClientChannel | null> {
  const { promise, resolve } = Promise.withResolvers<ssh2.ClientChannel | null>();
  const opened = (error: unknown, channel: ssh2.ClientChannel) => resolve(error ? null : channel);
  const id = client._chanMgr.add(Object.assign(opened, { type: 'session' }));
  client._protocol.session(id, 2 ** 21, packet);
  return promise;
}

function exec(client: ssh2.Client, command: string): Promise<ssh2.ClientChannel> {
  const { promise, resolve, reject } = Promise.withResolvers<ssh2.ClientChannel>();
  client.exec(command, (error, channel) => (error ? reject(error) : resolve(channel)));
  return promise;
}

test('the connections of a user are counted over all keys', async () => {
  const keys = [user, await sshUser(ada, workspace, port())];
  const clients = await Promise.all([...keys, ...keys, ...keys].map((one) => logIn(one)));
  expect(clients).toHaveLength(LIMITS.connectionsPerUser);
  const more = await Promise.all(keys.map((one) => one.ssh([])));
  expect(more.map(({ code }) => code)).toEqual([255, 255]);
  for (const client of clients) client.end();
  await eventually(() => answers());
});

test('a client whose window stays closed is disconnected, and its command is ended', async () => {
  const client = await logIn();
  const channel = await exec(client, "git-upload-pack 'ada/hello.git'");
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  client.once('close', () => resolve());
  await once(channel, 'data');
  const tip = await workspace.git('much', 'rev-parse', 'HEAD');
  // The client no longer opens the window, but the connection reads and answers.
  channel.pause();
  channel.write(`0032want ${tip}\n00000009done\n`);
  await closed;
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(0));
});

test('sessions of a connection are limited, including those that the client has closed without a command', async () => {
  const client = await logIn();
  // A connection with a running command is not idle.
  const running = await exec(client, "git-upload-pack 'ada/hello.git'");
  const many = () => Promise.all(Array.from({ length: 30 }, () => session(client)));
  const opened = (await many()).filter((one) => one !== null);
  expect(opened).toHaveLength(9);
  for (const one of opened) one.close();
  expect((await many()).filter((one) => one !== null)).toHaveLength(0);
  // The refused sessions do not disturb a running command.
  await new Promise((resolve) => setTimeout(resolve, 2 * LIMITS.commandMs));
  expect(running.closed).toBe(false);
  client.end();
  await once(client, 'close');
  // A session whose command has ended frees a place.
  const other = await logIn();
  for (let i = 0; i < 20; i++) {
    const channel = await exec(other, 'none');
    channel.resume();
    await once(channel, 'close');
  }
  other.end();
  await once(other, 'close');
});

test('a session without a command is closed soon, and its connection with it', async () => {
  const client = await logIn();
  const running = await exec(client, "git-upload-pack 'ada/hello.git'");
  const closed = [once(client, 'close'), once(running.resume(), 'close')];
  expect(await session(client)).not.toBeNull();
  await Promise.all(closed);
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(0));
});

test('a client that accepts only empty packets is disconnected before anything is sent', async () => {
  for (const packet of [0, 1_023]) {
    const client = await logIn();
    const closed = once(client, 'close');
    const channel = await session(client, packet);
    let said = 0;
    channel?.on('data', ({ length }: Buffer) => {
      said += length;
    });
    const { outgoing } = channel as unknown as { outgoing: { id: number } };
    client._protocol.exec(outgoing.id, "git-upload-pack 'ada/hello.git'", false);
    await closed;
    expect(said).toBe(0);
  }
  await answers();
});

test('a fetch request that is too long is refused', async () => {
  const tip = await workspace.git('much', 'rev-parse', 'HEAD');
  const haves = Array.from({ length: 700_000 }, () => `0032have ${'1'.repeat(40)}\n`).join('');
  const asked = await user.ssh(
    ["git-upload-pack 'ada/hello.git'"],
    `0032want ${tip}\n0000${haves}0009done\n`,
  );
  expect(asked.stderr).toContain('loam: A fetch request must be at most 32 MiB');
  expect(asked.code).toBe(128);
});

test('clients that disconnect leave no descriptor, process or queue entry', async () => {
  const descriptors = async () => {
    const of = (pid: number) => readdir(`/proc/${pid}/fd`);
    return [(await of(process.pid)).length, (await of(app.app.ssh?.pid ?? 0)).length];
  };
  await answers();
  await eventually(() => expect(app.app.ssh?.counts.connections).toBeDefined());
  const before = await descriptors();
  const tip = await workspace.git('much', 'rev-parse', 'HEAD');
  for (let round = 0; round < 5; round++) {
    const children = Array.from({ length: 4 }, () => begin("git-upload-pack 'ada/hello.git'"));
    for (const child of children) {
      await once(child.stdout as NodeJS.ReadableStream, 'data');
      child.stdin?.write(`0032want ${tip}\n00000009done\n`);
    }
    // Disconnects in the middle of the transfer.
    await Promise.all(children.map((child) => once(child.stdout as never, 'data')));
    for (const child of children) child.kill('SIGKILL');
  }
  await eventually(async () => {
    expect(app.app.services.git.transfers.counts.running).toBe(0);
    const [server = 0, front = 0] = await descriptors();
    expect(server).toBeLessThanOrEqual((before[0] ?? 0) + 2);
    expect(front).toBeLessThanOrEqual((before[1] ?? 0) + 2);
  });
});

test('a slow client receives all of a fetch, also after git has exited', async () => {
  // It reads 700 kB per second, so that sending the rest after git has exited outlasts the time that a socket stays open.
  const proxy = createServer((near) => {
    const far = connect(port(), '127.0.0.1');
    const slowly = setInterval(() => near.write(far.read(70_000) ?? far.read() ?? ''), 100);
    for (const one of [near, far]) one.on('error', () => {});
    near.pipe(far);
    near.once('close', () => {
      clearInterval(slowly);
      far.destroy();
    });
    far.once('end', () => near.end());
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  try {
    await workspace.git('.', 'init', '-q', 'slow');
    await workspace.commit('slow', { 'slow.bin': randomBytes(4_000_000) });
    await user.git('slow', 'push', '-q', user.url('ada/hello'), 'HEAD:refs/heads/slow');
    const slow = new SshUser(workspace, user.key, (proxy.address() as AddressInfo).port);
    const url = slow.url('ada/hello');
    await slow.git('.', 'clone', '-q', '--bare', '--single-branch', '-b', 'slow', url, 'slowly');
  } finally {
    proxy.close();
  }
});

test('a crash of the SSH process ends the fetches in progress', async () => {
  const tip = await workspace.git('much', 'rev-parse', 'HEAD');
  const child = begin("git-upload-pack 'ada/hello.git'");
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  child.stdin?.write(`0032want ${tip}\n00000009done\n`);
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  child.stdout?.pause();
  process.kill(app.app.ssh?.pid ?? 0, 'SIGKILL');
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(0));
  child.kill('SIGKILL');
  await eventually(() => answers());
});

test('sessions of a key end when the key is deleted', async () => {
  const other = await sshUser(ada, workspace, port());
  const child = begin("git-upload-pack 'ada/hello.git'", other);
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  await ada.gql(`mutation { deleteSshKey(input: {id: "${other.id}"}) { id } }`);
  const [code] = await once(child, 'close');
  expect(code).not.toBe(0);
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(0));
});

test('a crash of the SSH process ends its sessions, and leaves nothing of a push', async () => {
  const { pid = 0 } = app.app.ssh ?? {};
  const child = begin("git-receive-pack 'ada/hello.git'");
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  // The start of a push: a ref, and part of a pack that announces many objects.
  const command = `${'0'.repeat(40)} ${'1'.repeat(40)} refs/heads/x\0report-status`;
  const line = (command.length + 4).toString(16).padStart(4, '0') + command;
  child.stdin?.write(`${line}0000`);
  child.stdin?.write(Buffer.concat([Buffer.from('PACK\0\0\0\x02\0\0\x03\xe8', 'latin1')]));
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(1));
  process.kill(pid, 'SIGKILL');
  const [code] = await once(child, 'close');
  expect(code).toBe(255);
  await eventually(() => answers());
  expect(app.app.ssh?.pid).not.toBe(pid);
  await eventually(() => expect(app.app.services.git.transfers.counts.running).toBe(0));
  const { body } = await ada.get('/auth/v1/repository/ada?per_page=1');
  const dir = app.app.services.git.disk.pathOf(body.data[0].id);
  await eventually(async () => {
    const left = (await readdir(join(dir, 'objects'))).filter((name) => name.startsWith('tmp_'));
    expect(left).toEqual([]);
  });
  expect(await user.git('.', 'ls-remote', user.url('ada/hello'), 'x')).toBe('');
});

test('a start on a port in use fails with one line that says so', async () => {
  const start = startApp({ config: { ssh: { host: '127.0.0.1', port: port() } } });
  await expect(start).rejects.toThrow(
    `LOAM_SSH_PORT: ${port()} is in use on 127.0.0.1; choose another port, or "off" to disable SSH`,
  );
});

test('an address with too many failures is refused for a while', async () => {
  await using small = await startApp({
    config: { ssh: { host: '127.0.0.1', port: 0 } },
    overrides: { ssh: { failuresPerAddressPerMinute: 3 } },
  });
  const stranger = new SshUser(workspace, makeKey(workspace), small.app.ssh?.port ?? 0);
  for (let i = 0; i < 3; i++)
    expect((await stranger.ssh([])).stderr).toContain('Permission denied (publickey)');
  await eventually(async () => {
    expect((await stranger.ssh([])).stderr).not.toContain('Permission denied');
  });
});

test('killing a server ends its SSH process, and the restarted server has the same host keys', async () => {
  const database = await cloneDatabase();
  const at = await freePort();
  const token = 'a-token-for-the-host-keys';
  const start = () =>
    startServer({
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: join(workspace.path, 'data'),
      LOAM_ADMIN_TOKEN: token,
      LOAM_SSH_PORT: `${at}`,
    });
  try {
    const server = await start();
    const keys = '{ sshHostKeys { type fingerprint publicKey } }';
    const before = (await new Client(server.base, null).gql(keys)).sshHostKeys;
    expect(server.output()).toContain(before[0].fingerprint);
    await server.stop('SIGKILL');
    // The port is free only after the SSH process has ended.
    await using again = await start();
    const admin = new Client(again.base, `Bearer ${token}`);
    expect((await admin.gql(keys)).sshHostKeys).toEqual(before);
    const adminUser = await sshUser(admin, workspace, at);
    expect((await adminUser.ssh([])).stderr).toContain('Hi admin!');
  } finally {
    await database.drop();
  }
});
