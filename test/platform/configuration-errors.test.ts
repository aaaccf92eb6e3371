/** Every configuration error stops startup with one line that names the variable and contains no secret. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { ConfigError, readConfig } from '../../src/base/config/config.ts';
import { has, needs } from '../support/needs.ts';
import { startServer } from '../support/process.ts';

const PASSWORD = 'the-password-of-nobody';
let folder: string;
let refusing: Server;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'loam-faults-'));
  await writeFile(join(folder, 'file'), '');
  refusing = await refusingPostgres();
});
afterAll(async () => {
  refusing.close();
  await rm(folder, { recursive: true, force: true });
});

/** Returns the lines that a failed start prints. */
async function failedStart(
  env: Record<string, string>,
  options?: { user: string },
): Promise<string> {
  const start = startServer({ LOAM_DATA_DIR: join(folder, 'data'), ...env }, options);
  const { message } = await start.then(
    async (server) => {
      await server.stop();
      throw new Error('it started');
    },
    (error: Error) => error,
  );
  const [first = '', ...printed] = message.split('\n');
  expect(first).toBe('the server ended with 1 before it was ready:');
  return printed.join('\n');
}

const database = (place: string) => `postgresql://ada:${PASSWORD}@${place}`;

test.each<[string, () => Record<string, string>, RegExp]>([
  [
    'a folder in which nothing can be created',
    () => ({ LOAM_DATA_DIR: '/proc/loam/deep' }),
    /^LOAM_DATA_DIR: cannot write to \/proc\/loam\/deep: the file system does not support creating folders there$/,
  ],
  [
    'a folder that is a file',
    () => ({ LOAM_DATA_DIR: join(folder, 'file') }),
    /^LOAM_DATA_DIR: cannot write to \/.*\/file: a part of the path is not a folder$/,
  ],
  [
    'a host that does not exist',
    () => ({ HOST: 'nothost.invalid' }),
    /^HOST: the host name nothost\.invalid cannot be resolved; use an address of this machine$/,
  ],
  [
    'an address of another machine',
    () => ({ HOST: '192.0.2.1' }),
    /^HOST: 192\.0\.2\.1 is not an address of this machine; use one of its addresses, or 0\.0\.0\.0 for all$/,
  ],
  [
    'a port that is taken',
    () => ({ PORT: `${(refusing.address() as AddressInfo).port}` }),
    /^PORT: \d+ is in use on 127\.0\.0\.1; stop the program that uses it, or set another port$/,
  ],
  [
    'a database on a host that does not exist',
    () => ({ DATABASE_URL: database('nothost.invalid/loam') }),
    /^DATABASE_URL: the host name nothost\.invalid cannot be resolved$/,
  ],
  [
    'a database of another name',
    () => {
      const { host, user } = inject('postgres');
      const query = new URLSearchParams({ host, user });
      return { DATABASE_URL: `postgresql://x:${PASSWORD}@localhost/nowhere?${query}` };
    },
    /^DATABASE_URL: there is no database nowhere at \/.*, port 5432$/,
  ],
  [
    'a database that refuses the password',
    () => ({
      DATABASE_URL: database(`127.0.0.1:${(refusing.address() as AddressInfo).port}/loam`),
    }),
    /^DATABASE_URL: 127\.0\.0\.1:\d+ refused the password of ada$/,
  ],
  [
    'a variable that does not exist',
    () => ({ LOAM_DATADIR: folder }),
    /^LOAM_DATADIR: there is no such variable; did you mean LOAM_DATA_DIR\?$/,
  ],
])('%s stops the start with one line', async (_name, env, line) => {
  const printed = (await failedStart(env())).trimEnd();
  expect(printed).toMatch(line);
  expect(printed).not.toContain(PASSWORD);
});

test('missing root permissions stop startup with one line', async (ctx) => {
  needs(ctx, 'root', 'shared-checkout');
  await expect(failedStart({ LOAM_DATA_DIR: '/root/loam' }, { user: 'nobody' })).resolves.toMatch(
    /^LOAM_DATA_DIR: cannot write to \/root\/loam: permission denied\n$/,
  );
  if (!has('privileged-ports')) return;
  const env = { LOAM_DATA_DIR: join(tmpdir()), PORT: '80' };
  await expect(failedStart(env, { user: 'nobody' })).resolves.toMatch(
    /^PORT: no permission to listen on 80; use a port from 1024 on\n$/,
  );
});

test.each([
  ['DATABASE_URL', `mysql://ada:${PASSWORD}@localhost/loam`, /must begin with postgres:/],
  ['DATABASE_URL', `the database with ${PASSWORD}`, /must be a URL/],
  ['LOAM_ADMIN_TOKEN', 'short-secret', /at least 16 characters long$/],
])('%s is refused without showing its value', (name, value, why) => {
  const refusal = () => readConfig({ [name]: value });
  expect(refusal).toThrow(ConfigError);
  expect(refusal).toThrow(why);
  expect(refusal).not.toThrow(value.includes(PASSWORD) ? PASSWORD : value);
});

test('LOAM_ADMIN cannot be the name of a route, and may be admin', () => {
  for (const name of ['graphql', 'repository', 'livez', 'settings'])
    expect(() => readConfig({ LOAM_ADMIN: name })).toThrow(/^LOAM_ADMIN: ".+" is reserved/);
  expect(readConfig({ LOAM_ADMIN: 'admin' }).admin.username).toBe('admin');
});

test.each([
  ['LOAM_DATADIR', 'did you mean LOAM_DATA_DIR?'],
  ['LOAM_PORT', 'did you mean PORT?'],
  ['LOAM_ADMIN_TOKENS', 'did you mean LOAM_ADMIN_TOKEN?'],
  ['LOAM_SOMETHING_ELSE', 'docs/configuration.md lists'],
])('%s is an unknown variable: %s', (name, hint) => {
  expect(() => readConfig({ [name]: 'x' })).toThrow(`${name}: there is no such variable; ${hint}`);
});

test('variables that a container engine sets for a service named loam are ignored', () => {
  const link = 'tcp://10.0.0.1:3000';
  readConfig({
    LOAM_TOKEN: 'loam_pat_of_the_shell',
    LOAM_ATTEMPT_ID: 'att_of_a_job_that_tests_loam',
    LOAM_SERVICE_HOST: '10.0.0.1',
    LOAM_SERVICE_PORT: '3000',
    LOAM_PORT: link,
    LOAM_PORT_3000_TCP: link,
    LOAM_PORT_3000_TCP_ADDR: '10.0.0.1',
  });
});

/** A server that answers everyone like PostgreSQL after a wrong password. */
async function refusingPostgres(): Promise<Server> {
  const fields = 'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "ada"\0\0';
  const answer = Buffer.alloc(5 + fields.length);
  answer.write('E');
  answer.writeInt32BE(4 + fields.length, 1);
  answer.write(fields, 5);
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => socket.end(answer));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}
