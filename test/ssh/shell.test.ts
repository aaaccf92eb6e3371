/** Shells and commands in running jobs over SSH, with the stock client. */
import { execFile, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { has, needs } from '../support/needs.ts';
import { freePort } from '../support/ports.ts';
import { type SshUser, sshUser } from '../support/ssh-client.ts';
import { cancel, job, submit, until, variables } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
let workspace: Workspace;
let adas: SshUser & { id: string };
let bobs: SshUser & { id: string };
const port = () => app.app.ssh?.port ?? 0;

beforeEach((ctx) => needs(ctx, 'ssh'));
beforeAll(async () => {
  if (!has('ssh')) return;
  app = await startApp({
    config: { runner: 'process', ssh: { host: '127.0.0.1', port: 0 } },
  });
  workspace = await Workspace.open();
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  adas = await sshUser(ada, workspace, port());
  bobs = await sshUser(bob, workspace, port());
  await ada.repository('ada/code');
  await workspace.clone(ada, 'ada/code', 'code');
  await workspace.commit('code', { 'a.txt': 'of the repository\n' });
  await workspace.git('code', 'push', '-q', 'origin', 'HEAD');
});
afterAll(async () => {
  await workspace?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

/** A job that runs until it is cancelled. @returns the user name with which `ssh` reaches it */
async function running(name: string, fields: object = {}) {
  const command = 'echo begun; sleep 600 & wait';
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    name,
    command,
    cpu: 2,
    memoryGb: 2,
    ...fields,
  });
  await until(ada, 'ada', name, 'RUNNING');
  await eventually(async () => {
    const done = await adas.ssh(['echo here'], '', { user: `ada/${name}` });
    expect(done).toEqual({ code: 0, stdout: 'here\n', stderr: '' });
  });
  return {
    user: `ada/${name}`,
    async [Symbol.asyncDispose]() {
      await cancel(ada, 'ada', name);
      // Another test's job needs its vCPUs.
      await eventually(async () => expect((await job(ada, 'ada', name)).exitCode).not.toBeNull());
    },
  };
}

const entries = async (name: string) => {
  const { namespace } = await ada.gql(`{ namespace(name: "ada") { auditLog(first: 100) { nodes {
    action name address actor credential { kind } details } } } }`);
  return namespace.auditLog.nodes.filter(
    (entry: { action: string; name: string }) =>
      /^JOB_SHELL/.test(entry.action) && entry.name === name,
  );
};

test('a command runs in the job, with its files and variables, and an exit code', async () => {
  await using started = await running('first', { env: variables({ COLOUR: 'green' }) });
  const { user } = started;
  const done = await adas.ssh(['cat a.txt; echo "$COLOUR"; echo "$LANG" >&2; exit 7'], '', {
    user,
    before: ['-o', 'SetEnv=LANG=xx'],
  });
  expect(done).toEqual({ code: 7, stdout: 'of the repository\ngreen\n', stderr: 'xx\n' });
  await eventually(async () => expect((await entries('first')).length).toBeGreaterThan(3));
  const [end, begin] = await entries('first');
  expect(begin).toMatchObject({
    action: 'JOB_SHELL',
    actor: 'ada',
    address: '127.0.0.1',
    credential: { kind: 'ssh' },
  });
  expect(end).toMatchObject({ action: 'JOB_SHELL_END', details: { exitCode: 7, bytesOut: 27 } });
});

test('input and output pass unchanged', async () => {
  await using started = await running('bytes');
  const { user } = started;
  const sent = randomBytes(20 * 2 ** 20);
  const child = spawn('ssh', [...adas.options, `${user}@127.0.0.1`, 'cat'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(sent);
  const received = createHash('sha256');
  for await (const chunk of child.stdout) received.update(chunk);
  expect(received.digest('hex')).toBe(createHash('sha256').update(sent).digest('hex'));
});

test('a terminal has the size of the client', async () => {
  await using started = await running('terminal');
  const { user } = started;
  // `script` gives the client a terminal of its own.
  const client = ['ssh', '-tt', ...adas.options, `${user}@127.0.0.1`].join(' ');
  const child = spawn('script', ['-qec', `stty rows 33 cols 77; ${client}`, '/dev/null']);
  let shown = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    shown += chunk;
  });
  child.stdin.write('stty size; tty; exit 5\n');
  const code = await new Promise((resolve) => child.once('exit', resolve));
  expect(shown).toMatch(/33 77\r+\n\/dev\/pts\/\d/);
  expect(code).toBe(5);
});

test('scp and sftp copy files in both directions', async (ctx) => {
  needs(ctx, 'sftp');
  await using started = await running('files');
  const { user } = started;
  const options = adas.options.map((option) => (option === '-p' ? '-P' : option));
  const at = `${user}@127.0.0.1`;
  const folder = join(workspace.path, 'copies');
  await mkdir(folder);
  const content = randomBytes(2 ** 20);
  await writeFile(join(folder, 'sent'), content);
  const run = promisify(execFile);
  // The user name has a slash, which makes `user@host:path` a path of this machine for scp.
  const url = `scp://${at}:${port()}`;
  const withoutPort = options.filter((_, i) => options[i] !== '-P' && options[i - 1] !== '-P');
  await run('scp', [...withoutPort, join(folder, 'sent'), `${url}//work/copied`]);
  await run('scp', [...withoutPort, `${url}//work/copied`, join(folder, 'back')]);
  expect((await readFile(join(folder, 'back'))).equals(content)).toBe(true);
  const listed = await run('sh', ['-c', `echo 'ls /work' | sftp ${options.join(' ')} ${at}`]);
  expect(listed.stdout).toMatch(/copied/);
});

test('rsync copies a folder in both directions', async (ctx) => {
  needs(ctx, 'rsync');
  await using started = await running('synced');
  const folder = join(workspace.path, 'synced');
  await mkdir(join(folder, 'sub'), { recursive: true });
  await writeFile(join(folder, 'sub/a'), randomBytes(2 ** 20));
  const run = promisify(execFile);
  // The user name has a slash, which makes `user@host:path` a path of this machine for rsync.
  const shell = ['-a', '-e', ['ssh', ...adas.options, '-l', started.user].join(' ')];
  const there = '127.0.0.1:/work/synced/';
  await run('rsync', [...shell, `${folder}/`, there]);
  await run('rsync', [...shell, there, `${folder}-back/`]);
  await run('diff', ['-r', folder, `${folder}-back`]);
});

test('a client that sends sizes without end changes nothing for others', async () => {
  await using started = await running('resized');
  const { user } = started;
  const client = ['ssh', '-tt', ...adas.options, `${user}@127.0.0.1`].join(' ');
  const sizes = 'for i in $(seq 500); do stty -F /dev/tty rows $((20 + i % 50)) cols 80; done';
  const flood = `(${sizes}; stty -F /dev/tty rows 61 cols 81) & ${client}`;
  const child = spawn('script', ['-qec', flood, '/dev/null']);
  let shown = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    shown += chunk;
  });
  child.stdin.write('until stty size | grep "61 81"; do sleep 0.1; done; exit 5\n');
  const code = await new Promise((resolve) => child.once('exit', resolve));
  expect(code, shown).toBe(5);
});

test('ports of the job are forwarded, and nothing else is', async (ctx) => {
  needs(ctx, 'python3', 'curl');
  const [inJob, here] = [await freePort(), await freePort()];
  const command = `head -c 3000000 /dev/urandom > random; echo begun; exec python3 -m http.server ${inJob} --bind 127.0.0.1`;
  await using started = await running('served', { command });
  const forward = (to: string) =>
    spawn('ssh', ['-N', '-L', `${here}:${to}`, ...adas.options, `${started.user}@127.0.0.1`]);
  const client = forward(`localhost:${inJob}`);
  const fetchFile = (name: string) => fetch(`http://127.0.0.1:${here}/${name}`);
  await eventually(async () => expect(await (await fetchFile('a.txt')).text()).toMatch('of the'));
  const bodies = await Promise.all(
    Array.from({ length: 8 }, async () => (await fetchFile('random')).arrayBuffer()),
  );
  const inside = await adas.ssh(['sha256sum < random'], '', { user: started.user });
  for (const body of bodies)
    expect(inside.stdout).toContain(createHash('sha256').update(Buffer.from(body)).digest('hex'));
  const entries = await ada.gql(`{ namespace(name: "ada") { auditLog(first: 100) { nodes {
    action details } } } }`);
  const ports = entries.namespace.auditLog.nodes.filter(
    (entry: { action: string }) => entry.action === 'JOB_PORT',
  );
  expect(ports).toMatchObject([{ details: { port: inJob } }]);
  client.kill();
  await once(client, 'exit');

  const wanted = async (to: string) => {
    const args = ['-W', to, ...adas.options, `${started.user}@127.0.0.1`];
    const child = spawn('ssh', args, { stdio: ['ignore', 'ignore', 'pipe'] });
    return (await text(child.stderr)).trim();
  };
  const closed = await freePort();
  expect(await wanted(`localhost:${closed}`)).toBe('stdio forwarding failed');
  expect(await wanted(`169.254.169.254:80`)).toBe('stdio forwarding failed');
  expect(await wanted(`192.0.2.1:${inJob}`)).toBe('stdio forwarding failed');
  const reverse = spawn(
    'ssh',
    [
      ...['-N', '-R', '0:localhost:1', '-o', 'ExitOnForwardFailure=yes'],
      ...[...adas.options, `${started.user}@127.0.0.1`],
    ],
    { stdio: 'ignore' },
  );
  expect((await once(reverse, 'exit'))[0]).toBe(255);
});

test('only the creator and admins may, and only while the job runs', async () => {
  await using started = await running('mine');
  const { user } = started;
  const refused = async (who: SshUser, job = user) => {
    const { code, stderr } = await who.ssh(['echo no'], '', { user: job });
    return [code, stderr];
  };
  expect(await refused(bobs)).toEqual([128, expect.stringContaining('not a member')]);
  await ada.gql(
    `mutation { setMember(input: {namespace: "ada", username: "bob", role: WRITE}) { __typename } }`,
  );
  expect(await refused(bobs)).toEqual([
    128,
    expect.stringContaining("open shells in others' jobs"),
  ]);
  await ada.gql(
    `mutation { setMember(input: {namespace: "ada", username: "bob", role: ADMIN}) { __typename } }`,
  );
  expect((await bobs.ssh(['echo yes'], '', { user })).stdout).toBe('yes\n');
  const held = bobs.ssh(['echo up; sleep 600'], '', { user });
  await eventually(async () =>
    expect((await entries('mine'))[0]?.details.command).toBe('echo up; sleep 600'),
  );
  await ada.gql(
    `mutation { removeMember(input: {namespace: "ada", username: "bob"}) { __typename } }`,
  );
  expect((await held).code).not.toBe(0);
  expect(await refused(adas, 'ada/none')).toEqual([128, expect.stringContaining('not found')]);
  await cancel(ada, 'ada', 'mine');
  expect(await refused(adas)).toEqual([128, expect.stringContaining('needs a running job')]);
});

test('secrets that others gave, or that are gone, are only for admins', async () => {
  const secrets = variables({ PASSWORD: 'of-ada' });
  await using started = await running('secret', { secrets });
  const cid = await app.user('cid');
  const cids = await sshUser(cid, workspace, port());
  const setRole = (role: string) =>
    ada.gql(
      `mutation { setMember(input: {namespace: "ada", username: "cid", role: ${role}}) { __typename } }`,
    );
  await setRole('WRITE');
  await cid.gql(
    `mutation { rerunJob(input: {namespace: "ada", name: "secret", newName: "repeated"}) { __typename } }`,
  );
  await until(cid, 'ada', 'repeated', 'RUNNING');
  const command = ['echo "$PASSWORD"'];
  const refused = await cids.ssh(command, '', { user: 'ada/repeated' });
  expect(refused).toMatchObject({ code: 128, stderr: expect.stringContaining('it repeats') });
  await setRole('ADMIN');
  await eventually(async () => {
    const { stdout } = await cids.ssh(command, '', { user: 'ada/repeated' });
    expect(stdout).toBe('of-ada\n');
  });
  await setRole('WRITE');
  await cancel(ada, 'ada', 'repeated');
  expect((await adas.ssh(command, '', { user: started.user })).stdout).toBe('of-ada\n');

  const setSecret = (name: string) =>
    ada.gql(
      `mutation { setSecret(input: {namespace: "ada", name: "${name}", value: "${name}-value", refs: ["**"]}) { __typename } }`,
    );
  await Promise.all(['GONE', 'KEPT'].map(setSecret));
  await submit(cid, {
    namespace: 'ada',
    repo: 'ada/code',
    name: 'stored',
    command: 'sleep 600 & wait',
    secretNames: ['GONE', 'KEPT'],
  });
  await until(cid, 'ada', 'stored', 'RUNNING');
  const own = () => cids.ssh(['echo "$KEPT"'], '', { user: 'ada/stored' });
  await eventually(async () => expect((await own()).stdout).toBe('KEPT-value\n'));
  await ada.gql(
    `mutation { deleteSecret(input: {namespace: "ada", name: "GONE"}) { __typename } }`,
  );
  expect(await own()).toMatchObject({ code: 128, stderr: expect.stringContaining('GONE') });
  await cancel(ada, 'ada', 'stored');
});

test('sessions end with the job', async () => {
  await using started = await running('ends');
  const { user } = started;
  const session = adas.ssh(['sleep 600'], '', { user });
  await eventually(async () => expect((await entries('ends')).length).toBeGreaterThan(2));
  await cancel(ada, 'ada', 'ends');
  expect((await session).code).not.toBe(0);
});

test('a session is ended by another user, of whom the client is told', async () => {
  await using started = await running('ended');
  const { user } = started;
  const session = adas.ssh(['echo up; sleep 600'], '', { user });
  let id = '';
  await eventually(async () => {
    const { job: found } = await ada.gql(
      `{ job(namespace: "ada", name: "ended") { shells { id credential { kind } command } } }`,
    );
    expect(found.shells).toMatchObject([
      { credential: { kind: 'ssh' }, command: 'echo up; sleep 600' },
    ]);
    [{ id }] = found.shells;
  });
  await ada.gql('mutation ($id: ID!) { endJobShell(input: { id: $id }) { id } }', { id });
  expect(await session).toMatchObject({
    code: 255,
    stderr: 'loam: The shell was ended by ada\n',
  });
});
