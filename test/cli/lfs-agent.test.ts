/** `loam lfs-agent`: uploads of new versions of large files, with the stock git-lfs against the real app. */
import { hash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser, type RunningCommand } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { listProcessesNaming } from '../support/processes.ts';

const MIB = 2 ** 20;
const TRACKED = '*.bin filter=lfs diff=lfs merge=lfs -text\n';

let app: TestApp;
let ada: Client;
let user: LoamUser;
/** The home of `user`, who has the agent. */
let home: Workspace;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  home = new Workspace(user.home);
  // Without a terminal, a login does not ask.
  expect(await readFile(join(user.home, '.gitconfig'), 'utf8')).not.toContain('loam-delta');
  await user.loam(['lfs-agent', '--install']);
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});
beforeEach((ctx) => needs(ctx, 'git-lfs'));

/** A clone of a new repository with a large file. @returns the id of the repository */
async function cloneWith(name: string, bytes: Buffer): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  await home.git('.', 'lfs', 'install');
  await home.git('.', 'clone', '-q', `${app.base}/ada/${name}.git`, name);
  await home.commit(name, { '.gitattributes': TRACKED, 'model.bin': bytes });
  await home.git(name, 'push', '-q', 'origin', 'HEAD');
  return body.id;
}

/** Bytes of large files that the server has received. */
async function received(): Promise<number> {
  const text = await app.app.services.metrics.text();
  return Number(/^loam_large_file_bytes_total.direction="upload". (\d+)$/m.exec(text)?.[1]);
}

/** Commits a version of the file and pushes it. @returns the number of bytes sent */
async function pushVersion(name: string, bytes: Buffer, path = 'model.bin'): Promise<number> {
  const before = await received();
  await home.commit(name, { [path]: bytes });
  await home.git(name, 'push', '-q', 'origin', 'HEAD');
  return (await received()) - before;
}

/** What the stock git-lfs gets, in a clone of its own. */
async function readBack(name: string, path = 'model.bin'): Promise<Buffer> {
  await using stock = await Workspace.open();
  await stock.git('.', 'lfs', 'install');
  await stock.clone(ada, `ada/${name}`, 'clone');
  // Read before the folder is removed.
  return await readFile(join(stock.path, 'clone', path));
}

/** Replaces `share` of the bytes in `places` places. */
function change(bytes: Buffer, places: number, share: number): Buffer {
  const changed = Buffer.from(bytes);
  const length = Math.floor((bytes.length * share) / places);
  for (let place = 0; place < places; place++)
    randomBytes(length).copy(changed, Math.floor(((place + 0.3) * bytes.length) / places));
  return changed;
}

const objectPath = (name: string, bytes: Buffer) => {
  const oid = hash('sha256', bytes);
  return join(user.home, name, '.git/lfs/objects', oid.slice(0, 2), oid.slice(2, 4), oid);
};

test('a version of 40 MB with 5 % changed in 20 places sends at most 12 % of its bytes', async () => {
  const first = randomBytes(40 * MIB);
  await cloneWith('checkpoint', first);
  const second = change(first, 20, 0.05);
  const sent = await pushVersion('checkpoint', second);
  expect(sent).toBeGreaterThan(0.05 * second.length);
  expect(sent).toBeLessThan(0.12 * second.length);
  expect((await readBack('checkpoint')).equals(second)).toBe(true);
  // Downloads with the agent installed.
  await home.git('.', 'clone', '-q', `${app.base}/ada/checkpoint.git`, 'again');
  expect((await readFile(join(user.home, 'again/model.bin'))).equals(second)).toBe(true);
});

test('after a login, git-lfs gives no advice about locks at a push', async () => {
  await cloneWith('advice', randomBytes(100));
  await home.commit('advice', { 'model.bin': randomBytes(200) });
  const { stderr } = await home.try('advice', 'push', 'origin', 'HEAD');
  expect(stderr).toContain('-> main');
  expect(stderr).not.toContain('Locking support');
});

test('insertions, runs of zeros, and versions that are longer or shorter', async () => {
  const first = Buffer.concat([randomBytes(3 * MIB), Buffer.alloc(5 * MIB), randomBytes(2 * MIB)]);
  await cloneWith('moves', first);
  const shifted = Buffer.concat([randomBytes(1_001), first]);
  expect(await pushVersion('moves', shifted)).toBeLessThan(0.02 * first.length);
  expect((await readBack('moves')).equals(shifted)).toBe(true);
  const longer = Buffer.concat([first, Buffer.alloc(3 * MIB), first.subarray(0, MIB)]);
  expect(await pushVersion('moves', longer)).toBeLessThan(0.02 * first.length);
  expect((await readBack('moves')).equals(longer)).toBe(true);
  const shorter = longer.subarray(0, 2 * MIB + 5);
  expect(await pushVersion('moves', shorter)).toBeLessThan(0.02 * first.length);
  expect((await readBack('moves')).equals(shorter)).toBe(true);
  const tiny = shorter.subarray(0, 100);
  expect(await pushVersion('moves', tiny)).toBe(100);
  expect(await pushVersion('moves', Buffer.alloc(0))).toBe(0);
  expect((await readBack('moves')).length).toBe(0);
});

test('several versions in a push, and an amended commit', async () => {
  const first = randomBytes(2 * MIB);
  await cloneWith('history', first);
  const before = await received();
  const versions = [1, 2, 3].map((count) => Buffer.concat([first, randomBytes(count * 1_000)]));
  for (const bytes of versions) await home.commit('history', { 'model.bin': bytes });
  await home.git('history', 'push', '-q', 'origin', 'HEAD');
  expect((await received()) - before).toBeLessThan(0.2 * first.length);

  const added = randomBytes(MIB);
  expect(await pushVersion('history', added, 'other.bin')).toBe(added.length);
  const amended = Buffer.concat([added, randomBytes(1_000)]);
  await writeFile(join(user.home, 'history/other.bin'), amended);
  await home.git('history', 'commit', '-q', '-a', '--amend', '-m', 'Amended');
  const sent = await received();
  // The parent does not have the file, but the branch of the server does.
  await home.git('history', 'branch', '-q', '--set-upstream-to=origin/main');
  await home.git('history', 'push', '-q', '--force', 'origin', 'HEAD');
  expect((await received()) - sent).toBeLessThan(0.1 * added.length);
  expect((await readBack('history', 'other.bin')).equals(amended)).toBe(true);
});

test('the whole file is sent without a usable earlier version', async () => {
  const first = randomBytes(MIB);
  const repositoryId = await cloneWith('plain', first);
  const next = () => change(first, 3, 0.01);

  const otherFile = randomBytes(MIB);
  expect(await pushVersion('plain', otherFile, 'new.bin')).toBe(MIB);
  const different = randomBytes(MIB);
  expect(await pushVersion('plain', different, 'new.bin')).toBe(MIB);

  // Missing on this machine.
  await rm(objectPath('plain', first));
  const second = next();
  expect(await pushVersion('plain', second)).toBe(MIB);
  expect((await readBack('plain')).equals(second)).toBe(true);

  // Damaged on this machine: the server notices, and the file is sent after the delta.
  const damaged = Buffer.from(second);
  damaged[500_000] = (damaged[500_000] as number) ^ 1;
  await rm(objectPath('plain', second));
  await writeFile(objectPath('plain', second), damaged);
  const third = Buffer.concat([damaged, randomBytes(10)]);
  expect(await pushVersion('plain', third)).toBeGreaterThan(MIB);
  expect((await readBack('plain')).equals(third)).toBe(true);

  // Missing on the server.
  await ada.gql(
    `mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }`,
    { input: { repositoryId, oids: [hash('sha256', third)] } },
  );
  const fourth = Buffer.concat([third, randomBytes(10)]);
  expect(await pushVersion('plain', fourth)).toBe(fourth.length);
  expect((await readBack('plain')).equals(fourth)).toBe(true);
});

test('an agent that is killed during an upload leaves nothing, and the next push succeeds', async () => {
  await using busy = await startApp({ config: { gitTransfers: 1 } });
  const bob = await busy.user('bob');
  await using owner = await LoamUser.open(bob);
  await owner.loam(['lfs-agent', '--install']);
  const work = new Workspace(owner.home);
  await bob.post('/auth/v1/repository/bob', { name: 'model' });
  await work.git('.', 'lfs', 'install');
  await work.git('.', 'clone', '-q', `${busy.base}/bob/model.git`, 'model');
  const first = randomBytes(4 * MIB);
  await work.commit('model', { '.gitattributes': TRACKED, 'model.bin': first });
  await work.git('model', 'push', '-q', 'origin', 'HEAD');

  // Another upload holds the only transfer slot.
  const { transfers } = busy.app.services.lfs;
  const holder = request(`${busy.base}/bob/model.git/info/lfs/objects/${'a'.repeat(64)}`, {
    method: 'PUT',
    headers: { authorization: bob.authorization ?? '', 'content-length': 1_000 },
  });
  holder.on('error', () => {});
  holder.write('x');
  await eventually(() => expect(transfers.counts.running).toBe(1));
  const second = change(first, 3, 0.3);
  await work.commit('model', { 'model.bin': second });
  const push = work.try('model', 'push', 'origin', 'HEAD');
  await eventually(() => expect(transfers.counts.waiting).toBe(1));
  const agents = listProcessesNaming(`${LOAM} lfs-agent`);
  expect(agents.length).toBeGreaterThan(0);
  for (const { pid } of agents) process.kill(pid, 'SIGKILL');
  expect((await push).code).not.toBe(0);
  holder.destroy();
  await eventually(() => expect(transfers.counts).toMatchObject({ running: 0, waiting: 0 }));
  await work.git('model', 'push', '-q', 'origin', 'HEAD');
  await work.git('.', 'clone', '-q', `${busy.base}/bob/model.git`, 'again');
  expect((await readFile(join(owner.home, 'again/model.bin'))).equals(second)).toBe(true);
});

test('git-lfs with the agent works with other servers, and without it after --uninstall', async () => {
  const stored = new Map<string, Buffer>();
  await using other = await serve(async (req, res) => {
    const body = await readBody(req);
    const oid = req.url?.split('/').at(-1) ?? '';
    if (req.method === 'PUT') stored.set(oid, body);
    if (req.method === 'GET') return res.end(stored.get(oid));
    if (!req.url?.endsWith('/batch')) return res.end();
    const { operation, objects } = JSON.parse(String(body));
    const answers = objects.map(({ oid, size }: { oid: string; size: number }) => ({
      oid,
      size,
      actions: { [operation]: { href: `${other.url}/objects/${oid}` } },
    }));
    res.setHeader('content-type', 'application/vnd.git-lfs+json');
    res.end(JSON.stringify({ transfer: 'basic', objects: answers }));
  });
  await home.git('.', 'lfs', 'install');
  await home.git('.', 'init', '-q', '--bare', 'other.git');
  await home.git('.', 'clone', '-q', 'other.git', 'other');
  const config = { 'lfs.url': other.url, 'lfs.locksverify': 'false' };
  for (const [name, value] of Object.entries(config))
    await home.git('other', 'config', name, value);
  const bytes = randomBytes(MIB);
  await home.commit('other', { '.gitattributes': TRACKED, 'model.bin': bytes });
  await home.git('other', 'push', '-q', 'origin', 'HEAD');
  expect(stored.get(hash('sha256', bytes))?.equals(bytes)).toBe(true);
  await rm(objectPath('other', bytes));
  await rm(join(user.home, 'other/model.bin'));
  await home.git('other', 'checkout', '-q', '--', 'model.bin');
  expect((await readFile(join(user.home, 'other/model.bin'))).equals(bytes)).toBe(true);

  await using plain = await LoamUser.open();
  const read = () => readFile(join(plain.home, '.gitconfig'), 'utf8');
  await plain.loam(['lfs-agent', '--install']);
  await plain.loam(['lfs-agent', '--install']);
  expect((await read()).match(/loam-delta/g)).toHaveLength(1);
  await plain.loam(['lfs-agent', '--uninstall']);
  expect(await read()).not.toContain('loam-delta');
  expect((await plain.run(['lfs-agent', '--uninstall'])).stderr).toContain('not installed');
  const stdin = ada.token;
  await plain.loam(['login', app.base, '--token', '-', '--no-lfs'], { stdin });
  expect(await read()).not.toContain('loam-delta');
  await plain.loam(['login', app.base, '--token', '-', '--lfs'], { stdin });
  expect(await read()).toContain('loam-delta');
});

test('refusals of the server reach git-lfs, and failures that pass are repeated', async () => {
  await mkdir(join(user.home, 'objects/aa/bb'), { recursive: true });
  const bytes = randomBytes(3 * MIB);
  const oid = hash('sha256', bytes);
  const path = join(user.home, 'objects/aa/bb', oid);
  await writeFile(path, bytes);
  const seen: (string | undefined)[] = [];
  await using thief = await serve((req, res) => {
    seen.push(req.headers.authorization);
    res.end();
  });
  let failures = 0;
  await using liar = await serve(async (req, res) => {
    const kind = req.url?.split('/')[1];
    const status = Number(kind);
    const message = { message: `no, ${kind}` };
    if (status) {
      // A body that nobody reads would reset the connection, and could drop the answer.
      req.resume();
      return res.writeHead(status).end(JSON.stringify(message));
    }
    if (kind === 'redirect') {
      req.resume();
      return res.writeHead(307, { location: thief.url }).end();
    }
    if (kind === 'broken' && ++failures < 2) return req.destroy();
    if (kind === 'busy' && ++failures < 3)
      return res.writeHead(failures === 1 ? 429 : 503, { 'retry-after': '1' }).end();
    expect((await readBody(req)).equals(bytes)).toBe(true);
    res.end();
  });
  const upload = (kind: string, more: object = {}) => {
    failures = 0;
    const action = { href: `${liar.url}/${kind}/${oid}`, header: { Authorization: 'Bearer x' } };
    return { event: 'upload', oid, size: bytes.length, path, action, ...more };
  };
  using agent = new AgentProcess(user);
  expect(await agent.ask({ event: 'init', operation: 'upload', remote: 'origin' })).toEqual({});
  for (const status of [400, 401, 403, 507])
    expect(await agent.ask(upload(String(status)))).toEqual({
      event: 'complete',
      oid,
      error: { code: status, message: `no, ${status}` },
    });
  const redirected = await agent.ask(upload('redirect'));
  expect(redirected).toMatchObject({
    error: { code: 307, message: expect.stringContaining('redirects') },
  });
  expect(seen).toEqual([]);
  const missing = await agent.ask(upload('ok', { path: `${path}0` }));
  expect(missing).toMatchObject({
    error: { message: expect.stringContaining('has no bytes instead of 3145728') },
  });
  const shorter = await agent.ask(upload('ok', { size: 5 }));
  expect(shorter).toMatchObject({
    error: { message: expect.stringContaining('has 3145728 bytes instead of 5') },
  });
  for (const kind of ['broken', 'busy', 'ok']) {
    agent.progress = 0;
    expect(await agent.ask(upload(kind))).toEqual({ event: 'complete', oid });
    expect(agent.progress, kind).toBe(bytes.length);
  }
  agent.tell({ event: 'terminate' });
  expect(await agent.command.result()).toMatchObject({ code: 0, stderr: '' });
});

/** An agent, and the place of git-lfs. */
class AgentProcess implements Disposable {
  readonly command: RunningCommand;
  /** The sum of `bytesSinceLast`. */
  progress = 0;
  #read = 0;

  constructor(owner: LoamUser) {
    this.command = owner.start(['lfs-agent'], { interactive: true });
  }

  tell(message: object): void {
    this.command.child.stdin?.write(`${JSON.stringify(message)}\n`);
  }

  /** @returns the answer after messages of progress */
  async ask(message: object): Promise<unknown> {
    this.tell(message);
    for (;;) {
      const answer = await eventually(() => {
        const line = this.command.stdout.split('\n').slice(this.#read, -1)[0];
        expect(line, this.command.stderr).toBeDefined();
        return JSON.parse(line as string);
      });
      this.#read++;
      if (answer.event !== 'progress') return answer;
      this.progress += answer.bytesSinceLast;
    }
  }

  [Symbol.dispose]() {
    this.command.child.kill('SIGKILL');
  }
}

type Handler = (req: IncomingMessage, res: ServerResponse) => unknown;

async function serve(handler: Handler): Promise<AsyncDisposable & { url: string }> {
  const server = createServer((req, res) => void handler(req, res)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

async function readBody(req: IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of req) pieces.push(piece);
  return Buffer.concat(pieces);
}
