/** The installation of the program for joined machines, with the real script and built programs. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import {
  chmod,
  cp,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { buildPrograms } from '../../../src/programs/build.ts';
import { REFUSED_EXIT } from '../../../src/runners/machines/protocol.ts';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { lines, submit, until } from '../../support/submit.ts';

const MINUTE = 60_000;

let app: TestApp;
let ada: Client;
let folder: string;
/** Makes Node.js as old as the installer allows: without what version 22 lacks. */
let asNode22: { NODE_OPTIONS: string };

beforeAll(async () => {
  await buildPrograms();
  folder = await mkdtemp(join(tmpdir(), 'loam-install-'));
  const removal = join(folder, 'as-node-22.mjs');
  await writeFile(
    removal,
    'delete globalThis.AsyncDisposableStack; delete Map.prototype.getOrInsertComputed;',
  );
  asNode22 = { NODE_OPTIONS: `--import=${removal}` };
  app = await startApp({ config: { runner: 'none' } });
  ada = await app.user('ada');
  await ada.repository('ada/code', { autoInit: true });
}, 5 * MINUTE);
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

/** Runs the installer as the printed line does. `env`: more variables. */
async function install(args: readonly string[], env: Record<string, string> = {}) {
  const script = (await ada.get('/worker/install.sh')).text;
  return new Promise<{ code: number | null; output: string }>((resolve) => {
    const given = { PATH: process.env.PATH, HOME: folder, LOAM_URL: 'of it', ...asNode22, ...env };
    const child = execFile('sh', ['-s', '--', ...args], { env: given }, (_, stdout, stderr) =>
      resolve({ code: child.exitCode, output: stdout + stderr }),
    );
    child.stdin?.end(script);
  });
}

async function newToken(): Promise<string> {
  const { createWorkerToken } = await app.admin.gql(
    'mutation { createWorkerToken(input: {name: "box"}) { token } }',
  );
  return createWorkerToken.token;
}

const statusOf = async (name: string) =>
  (await app.admin.graphql('query ($name: String!) { machine(name: $name) { status } }', { name }))
    .data?.machine?.status;

const removeMachine = (name: string) =>
  app.admin.gql(
    'mutation ($input: RemoveMachineInput!) { removeMachine(input: $input) { __typename } }',
    { input: { name, force: true } },
  );

/** Starts the installed program as a unit of systemd would. */
function startInstalled(data: string) {
  const child = execFile(join(data, 'run'), {
    env: { PATH: process.env.PATH, HOME: folder, ...asNode22 },
  });
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const stop = async () => {
    child.kill('SIGTERM');
    return exited;
  };
  onTestFinished(async () => void (await stop()));
  return { exited, stop };
}

test('the installer refuses with one line, and leaves nothing', async () => {
  const taken = join(folder, 'taken');
  const token = await newToken();
  expect(await install(['--token', token, '--name', 'taken', '--data', taken])).toMatchObject({
    code: 0,
    output: expect.stringContaining('has joined'),
  });
  onTestFinished(() => removeMachine('taken'));
  const oldNode = join(folder, 'old-node');
  await mkdir(oldNode);
  await writeFile(
    join(oldNode, 'node'),
    '#!/bin/sh\n[ "$1" = --version ] && echo v20.1.0 || exit 1\n',
  );
  await chmod(join(oldNode, 'node'), 0o755);

  const data = join(folder, 'refused');
  const cases: [string, string[], Record<string, string>?][] = [
    ['Give a worker token with --token', []],
    ['was revoked, or has expired', ['--token', 'loam_worker_wrong']],
    ['a machine taken exists', ['--token', token, '--name', 'taken']],
    ['name: must be 1 to 63 of a-z', ['--token', token, '--name', 'Not A Name']],
    ['Unknown option --help', ['--help']],
    ['--name needs a value', ['--name']],
    ['Node 22 or newer, and this is v20.1.0', [], { PATH: `${oldNode}:${process.env.PATH}` }],
    ['LOAM_JOB_SLOTS', ['--token', token], { LOAM_JOB_SLOTS: 'many' }],
  ];
  for (const [message, args, env] of cases) {
    const { code, output } = await install(['--data', data, ...args], env);
    expect([code, output]).toEqual([1, expect.stringContaining(message)]);
    expect(output.trim().split('\n')).toHaveLength(1);
    expect(existsSync(data), message).toBe(false);
  }
  expect(await install(['--data', `${folder}/a b`])).toMatchObject({
    code: 1,
    output: expect.stringContaining('the path may have letters'),
  });
  // The earlier installation is as it was, also after a refused one over it.
  const before = await readdir(taken);
  expect((await install(['--data', taken, '--frob'])).code).toBe(1);
  expect(await readdir(taken)).toEqual(before);
});

test('a machine updates itself to the program of the server, and its jobs go on', async () => {
  const data = join(folder, 'updated');
  const args = ['--name', 'updated', '--data', data];
  expect((await install(['--token', await newToken(), ...args])).code).toBe(0);
  onTestFinished(() => removeMachine('updated'));
  const version = (await readFile(join(data, 'program/built-from'), 'utf8')).trim();
  const first = startInstalled(data);
  const command = 'for i in $(seq 1 100); do echo $i; sleep 0.1; done; exit 3';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'steady', command });
  await eventually(async () => expect(await lines(ada, 'ada', 'steady')).toContain('3'));
  // The installer may be run again while jobs run. It needs no token then.
  expect((await install(args)).code).toBe(0);
  await first.stop();

  const older = join(data, 'programs/older');
  await cp(join(data, 'programs', version), older, { recursive: true });
  await rm(join(data, 'programs', version), { recursive: true });
  await writeFile(join(older, 'built-from'), 'older');
  await promisify(execFile)('ln', ['-sfn', 'programs/older', join(data, 'program')]);
  const next = startInstalled(data);
  await eventually(async () => {
    expect(await readlink(join(data, 'program'))).toBe(`programs/${version}`);
    expect(await readdir(join(data, 'programs'))).toEqual([version]);
  });
  const ended = await until(ada, 'ada', 'steady', 'FAILED');
  expect(ended.exitCode).toBe(3);
  expect(ended.attempts.nodes).toHaveLength(1);
  const numbers = Array.from({ length: 100 }, (_, i) => `${i + 1}`);
  expect(await lines(ada, 'ada', 'steady')).toEqual(numbers);

  await removeMachine('updated');
  expect(await next.exited).toBe(REFUSED_EXIT);
  expect(await install(args)).toMatchObject({
    code: 1,
    output: expect.stringContaining('needs a worker token'),
  });
  expect((await install(['--token', await newToken(), ...args])).code).toBe(0);
  startInstalled(data);
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'again', command: 'true' });
  await until(ada, 'ada', 'again', 'SUCCEEDED');
  expect(await statusOf('updated')).toBe('ONLINE');
});
