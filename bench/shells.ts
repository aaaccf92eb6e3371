/**
 * `npm run bench:shells [prompts] [copies] [keys]`: shells in running jobs. All sides alternate, and the first runs do not count. It needs
 * root, and control groups v1.
 *
 * - From the start of `loam shell`, and of `ssh` to a job, until the prompt is on the terminal, against `docker exec -it` in a container of
 *   the same image, and against `ssh` to a stock `sshd` on this machine.
 * - `scp` of 1 GB to a job as a process and back, against the same `sshd`: time, and CPU of all processes but `scp`.
 * - From a key until its echo while 100 terminals are open in a job and 100 by `docker exec`, over WebSockets and the API of the
 *   engine: 50 keys per second on each side, each on another terminal.
 *
 * Without an engine or `sshd` (openssh-server), what needs them is not measured.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, rm } from 'node:fs/promises';
import { availableParallelism, loadavg } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import Docker from 'dockerode';
import { buildPrograms } from '../src/programs/build.ts';
import { DOCKER } from '../test/support/docker.ts';
import { clientsOf } from '../test/support/harness.ts';
import { freePort } from '../test/support/ports.ts';
import { shellSocket, untilShell } from '../test/support/shell-socket.ts';
import { cancelJob, createJob, firstLine, IMAGE, type JobSource } from './jobs.ts';
import { openSsh } from './over-ssh.ts';
import { openAccount } from './process.ts';
import { median, openBench, TOKEN, time } from './repository.ts';
import { type Sample, show } from './sides.ts';
import { openSshd } from './sshd.ts';
import { hasPrompt, Terminal } from './terminal.ts';

const run = promisify(execFile);
const PROMPTS = Number(process.argv[2] ?? 20);
const COPIES = Number(process.argv[3] ?? 3);
const KEYS = Number(process.argv[4] ?? 2_000);
const WARM_UP = 3;
const COPY_BYTES = 1e9;
/** The maximum of a job, and of a user. */
const TERMINALS = 100;
const KEY_PAUSE_MS = 10;
const REST_MS = 200;
const PROMPT_TIMEOUT_MS = 60_000;
const LOAM = join(import.meta.dirname, '../dist/cli/loam.mjs');
/** As the server starts a shell for people. */
const SHELL = 'if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi';
/** Without the settings of the user of this machine, which jobs do not have. */
const BARE_SHELL = 'HOME=/nonexistent exec bash -i';
const SLEEP = 'echo begun; exec sleep 86400';
const SIZE = { columns: 80, rows: 24 };

const docker = new Docker({ socketPath: new URL(DOCKER.host).pathname });
const noEngine = await docker
  .getImage(IMAGE)
  .inspect()
  .then(
    () => null,
    (error: Error) => error.message,
  );
await buildPrograms();
await using ours = await openAccount('ours');
await using theirs = await openAccount('theirs');
const sshPort = await freePort();
await using bench = await openBench(
  {
    LOAM_JOB_SHELL: 'on',
    LOAM_SSH_PORT: `${sshPort}`,
    LOAM_RUNNER: noEngine ? 'process' : 'auto',
    ...(!noEngine && { DOCKER_HOST: DOCKER.host }),
  },
  { wrapper: ours.wrapper },
);
const { folder, server } = bench;
const ssh = await openSsh(bench, sshPort);
await using sshd = await openSshd(folder, ssh.key, theirs.wrapper);
await bench.graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);
const { admin } = clientsOf(server.base, TOKEN);
await using cleanup = new AsyncDisposableStack();
await signIn();
await begin('process', { repo: 'admin/code' });
if (noEngine) console.log(`NOT MEASURED: containers. ${noEngine}`);
else await begin('container', { image: IMAGE });
if (!sshd) console.log('NOT MEASURED: against sshd. Install openssh-server.');
const peer = noEngine ? null : await openContainer();

console.log(`${availableParallelism()} cores, load ${loadavg()[0]?.toFixed(1)}`);
if (PROMPTS > 0) await comparePrompts();
if (sshd && COPIES > 0) await compareCopies(sshd.port);
if (peer && KEYS > 0) for (const name of ['process', 'container']) await compareKeys(name, peer);
console.log(`load ${loadavg()[0]?.toFixed(1)}`);

async function signIn(): Promise<void> {
  const words = [LOAM, 'login', server.base, '--token', '-'];
  const env = { PATH: process.env.PATH, HOME: folder };
  const child = spawn(process.execPath, words, { env, stdio: ['pipe', 'ignore', 'inherit'] });
  child.stdin.end(TOKEN);
  await once(child, 'close');
}

/** Creates a job that runs until the end, and waits until shells open in it. */
async function begin(name: string, source: JobSource): Promise<void> {
  await createJob(server.base, { ...source, name, command: SLEEP });
  const { ended } = await firstLine(server.base, name);
  cleanup.defer(async () => {
    await cancelJob(server.base, name);
    await ended;
  });
  await untilShell(admin, `admin/${name}`);
}

async function openContainer(): Promise<Docker.Container> {
  const Entrypoint = ['/bin/sh', '-c', SLEEP];
  const container = await docker.createContainer({ Image: IMAGE, Entrypoint, Cmd: [] });
  cleanup.defer(async () => container.remove({ force: true }));
  await container.start();
  return container;
}

async function comparePrompts(): Promise<void> {
  const shell = (name: string) => [LOAM, 'shell', `admin/${name}`];
  const over = (user: string, port: number, ...command: string[]) => [
    ...['ssh', ...ssh.options, '-t', '-p', `${port}`, '-l', user, '127.0.0.1', ...command],
  ];
  const exec = (id: string) => ['docker', 'exec', '-it', id, '/bin/sh', '-c', SHELL];
  const lines = new Map([
    ['loam shell, process', shell('process')],
    ['ssh, process', over('admin/process', sshPort)],
  ]);
  if (peer) {
    lines.set('loam shell, container', shell('container'));
    lines.set('ssh, container', over('admin/container', sshPort));
    lines.set('docker exec', exec(peer.id));
  }
  if (sshd) lines.set('sshd', over(process.env.USER ?? 'root', sshd.port, BARE_SHELL));
  const samples = new Map(Array.from(lines.keys(), (name) => [name, [] as number[]]));
  for (let round = -WARM_UP; round < PROMPTS; round++)
    for (const [name, line] of lines) {
      const ms = await timeToPrompt(line);
      if (round >= 0) samples.get(name)?.push(ms);
      await delay(REST_MS);
    }
  console.log(`start → prompt on the terminal, ${PROMPTS} rounds`);
  const of = (name: string) => median(samples.get(name) ?? []);
  const fastest = (name: string) => Math.min(...(samples.get(name) ?? [])).toFixed(0);
  for (const name of lines.keys()) {
    const peers = ['docker exec', 'sshd'].filter((other) => other !== name && lines.has(other));
    const more = peers.map((other) => `${(of(name) - of(other)).toFixed(0)} ms more than ${other}`);
    const isPeer = name === 'docker exec' || name === 'sshd';
    console.log(
      `  ${name}: ${of(name).toFixed(0)} ms (minimum ${fastest(name)})${isPeer ? '' : `, ${more.join(', ')}`}`,
    );
  }
}

/** Runs a command in a terminal of its own. @returns the milliseconds until it prompts */
async function timeToPrompt(line: readonly string[]): Promise<number> {
  const quoted = line.map((word) => `'${word}'`).join(' ');
  const begun = performance.now();
  const child = spawn('script', ['-qefc', `exec ${quoted}`, '/dev/null'], {
    env: {
      PATH: process.env.PATH,
      HOME: folder,
      TERM: 'xterm',
      SHELL: '/bin/sh',
      DOCKER_HOST: DOCKER.host,
    },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const closed = once(child, 'close');
  let shown = '';
  const prompted = Promise.withResolvers<number>();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    shown += text;
    if (hasPrompt(shown)) prompted.resolve(performance.now() - begun);
  });
  void closed.then(() => prompted.reject(new Error(`${quoted} said ${shown}`)));
  const timer = setTimeout(() => child.kill(), PROMPT_TIMEOUT_MS);
  const ms = await prompted.promise;
  child.stdin.end('exit\n');
  await closed;
  clearTimeout(timer);
  return ms;
}

async function compareCopies(port: number): Promise<void> {
  const file = join(folder, 'sent');
  await using handle = await open(file, 'w');
  for (let i = 0; i < COPY_BYTES; i += 2 ** 20)
    await handle.write(Buffer.alloc(Math.min(2 ** 20, COPY_BYTES - i), i));
  await handle.sync();
  const back = join(folder, 'back');
  const there = join(folder, 'there');
  const sides = [
    { account: ours, port: sshPort, user: 'admin/process', path: '/work/there' },
    { account: theirs, port, user: process.env.USER ?? 'root', path: there },
  ];
  for (const direction of ['to', 'from'] as const) {
    const samples: Sample[][] = [[], []];
    for (let round = -1; round < COPIES; round++)
      for (const [i, { account, user, path, port }] of sides.entries()) {
        const remote = `127.0.0.1:${path}`;
        const words = direction === 'to' ? [file, remote] : [remote, back];
        const options = [...ssh.options, '-q', '-P', `${port}`, '-o', `User=${user}`];
        const before = await account.seconds();
        const ms = await time(() => run('scp', [...options, ...words]));
        await delay(REST_MS);
        if (round >= 0) samples[i]?.push({ ms, cpu: (await account.seconds()) - before });
        await rm(back, { force: true });
      }
    const [own = [], other = []] = samples;
    show(`scp of 1 GB ${direction} the job, ${COPIES} rounds, against sshd`, own, other);
  }
}

async function openShellTerminal(name: string, stack: DisposableStack): Promise<Terminal> {
  const socket = stack.use(await shellSocket(admin, `admin/${name}`));
  const terminal = new Terminal((key) => socket.data(key));
  socket.onOutput = (piece) => terminal.show(piece.toString());
  socket.exec({ terminal: SIZE });
  await terminal.prompted;
  return terminal;
}

async function openExecTerminal(
  container: Docker.Container,
  stack: DisposableStack,
): Promise<Terminal> {
  const streams = { AttachStdin: true, AttachStdout: true, AttachStderr: true, Tty: true };
  const exec = await container.exec({ ...streams, Cmd: ['/bin/sh', '-c', SHELL] });
  const stream: Duplex = await exec.start({ hijack: true, stdin: true, Tty: true });
  stack.defer(() => stream.destroy());
  const terminal = new Terminal((key) => stream.write(key));
  stream.on('data', (chunk: Buffer) => terminal.show(chunk.toString()));
  await terminal.prompted;
  return terminal;
}

async function compareKeys(name: string, container: Docker.Container): Promise<void> {
  using stack = new DisposableStack();
  const terminals: [Terminal[], Terminal[]] = [[], []];
  for (let i = 0; i < TERMINALS; i++) {
    terminals[0].push(await openShellTerminal(name, stack));
    terminals[1].push(await openExecTerminal(container, stack));
  }
  const samples: [number[], number[]] = [[], []];
  const echoes: Promise<unknown>[] = [];
  const warmUp = TERMINALS * WARM_UP;
  for (let key = -warmUp; key < KEYS; key++)
    for (const side of [0, 1] as const) {
      const terminal = terminals[side].at(key % TERMINALS);
      const echo = terminal?.type().then((ms) => key >= 0 && samples[side].push(ms));
      echoes.push(echo ?? Promise.resolve());
      await delay(KEY_PAUSE_MS);
    }
  await Promise.all(echoes);
  const p = (share: number, side: 0 | 1) =>
    samples[side].toSorted((a, b) => a - b)[Math.floor(samples[side].length * share)] ?? 0;
  const [p99, peerP99] = [p(0.99, 0), p(0.99, 1)];
  console.log(
    `key → echo, ${TERMINALS} terminals in a ${name}, ${KEYS} keys: p50 ${p(0.5, 0).toFixed(1)} ms, p99 ${p99.toFixed(1)}; ` +
      `docker exec p50 ${p(0.5, 1).toFixed(1)} ms, p99 ${peerP99.toFixed(1)}: ${(p99 - peerP99).toFixed(1)} ms more at p99`,
  );
}
