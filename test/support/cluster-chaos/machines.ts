/**
 * Joined machines for the chaos test, which reach Loam through a router that translates addresses: `rooted` runs the worker
 * program as root, with the container engine of this machine, `plain` as an ordinary user, without one. Each is a network
 * namespace. Jobs use the networks of this machine, so that a cut between a machine and Loam leaves them the witness.
 */
import { execFile } from 'node:child_process';
import { chmod, chown, mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { readProcessStat } from '../../../src/runners/supervisor/proc.ts';
import { type KilledAttempts, partVictim } from '../chaos/victims.ts';
import { DOCKER, docker } from '../docker.ts';
import { eventually } from '../eventually.ts';
import { type MachineProcess, startMachine } from '../joined-machine.ts';
import type { Victim } from '../kills/killer.ts';
import type { ChaosCluster, Kill } from './cluster.ts';
import type { Loss } from './compare.ts';
import type { ServerUnderChaos } from './server.ts';

const run = promisify(execFile);

/** It has bash. */
const IMAGE = 'loam-test/debian';
const PLAIN_UID = 61_234;
/** Of cuts and suspensions, in seconds; the short ones where CI waits for the test. */
const SHORTEST_S = process.env.LOAM_TEST_CHAOS ? 5 : 2;
const LONGEST_CUT_S = process.env.LOAM_TEST_CHAOS ? 120 : 12;
/**
 * A machine that is suspended for longer than the lease and its margin, counted from its last request, continues its jobs for a
 * moment when Loam may have started them elsewhere: nothing on it can run before that.
 */
const LONGEST_SUSPENSION_S = Math.min(LONGEST_CUT_S, 90);
/** Silence in which the lease, of a minute, may run out: the last request was up to 20 seconds before. */
const LEASE_OVER_MS = 35_000;

type ChaosMachine = {
  name: string;
  /** Its network namespace. */
  netns: string;
  /** The folder of the worker program. */
  dir: string;
  user: string[];
  env: Record<string, string>;
  program?: MachineProcess;
};

export async function openMachinesChaos(): Promise<ChaosCluster> {
  await using cleanup = new AsyncDisposableStack();
  const root = await mkdtemp(join(tmpdir(), 'loam-machines-'));
  cleanup.defer(() => rm(root, { recursive: true, force: true, maxRetries: 5 }));
  await chmod(root, 0o711);
  const id = `loam${process.pid}`;
  const machine = (name: string, env: Record<string, string>, user: string[] = []) => ({
    name,
    netns: `${id}-${name}`,
    dir: join(root, name),
    user,
    env: { LOAM_JOB_NETWORK: 'host', LOAM_JOB_SLOTS: '5', HOME: join(root, name), ...env },
  });
  const ids = [`--reuid=${PLAIN_UID}`, `--regid=${PLAIN_UID}`, '--clear-groups'];
  const machines: ChaosMachine[] = [
    machine('rooted', { LOAM_RUNNER: 'auto', DOCKER_HOST: DOCKER.host }),
    machine('plain', { LOAM_RUNNER: 'process' }, ['setpriv', ...ids]),
  ];
  for (const { dir, user } of machines) {
    await mkdir(dir, { mode: 0o700 });
    if (user.length > 0) await chown(dir, PLAIN_UID, PLAIN_UID);
  }
  const hostAddress = await openNetworks(id, machines, cleanup);
  cleanup.defer(async () => {
    for (const one of machines) await endMachine(one);
  });

  let port = '';
  const hit: KilledAttempts = { containerShim: [], processShim: [] };
  const owned = cleanup.move();
  return {
    folder: 'machines',
    env: { LOAM_RUNNER: 'none' },
    // Jobs with an image run on `rooted` only.
    fieldsOf: (at) => (at % 3 === 0 ? { image: IMAGE } : {}),
    say: 'bash',
    hostAddress,
    victims: machines.flatMap((one) => [
      restarted(one),
      suspended(one),
      cut(one, () => ({ host: hostAddress, port })),
      partVictim('processShim', { name: one.name, dataDir: join(one.dir, 'runner') }, hit),
      ...(one.env.DOCKER_HOST
        ? [partVictim('containerShim', { name: one.name, dataDir: join(one.dir, 'runner') }, hit)]
        : []),
    ]),
    async join(loam) {
      port = new URL(loam.agentUrl).port;
      for (const one of machines) await joinMachine(one, loam);
    },
    isExplained({ id, node, created, ended }: Loss, kills: readonly Kill[]) {
      if (hit.processShim.includes(id) || hit.containerShim.includes(id)) return true;
      // Its node is unknown before it has begun.
      const away = kills.filter(
        ({ name }) => node === null || !/ of /.test(name) || name.endsWith(node),
      );
      const silences = away.map(({ from, to }) => Math.min(to, ended) - Math.max(from, created));
      return silences.reduce((sum, ms) => sum + Math.max(0, ms), 0) > LEASE_OVER_MS;
    },
    countTears: (attempt) => hit.containerShim.filter((one) => one === attempt).length,
    async listLeftovers() {
      const left = await Promise.all(
        machines.map(async ({ name, dir }) =>
          [
            ...(await listAttempts(join(dir, 'attempts'))),
            ...(await listAttempts(join(dir, 'runner/attempts'))),
            ...(await listAttempts(join(dir, 'runner/containers'))),
            ...(await listContainers(dir, '--all')),
          ].map((what) => `${what} on ${name}`),
        ),
      );
      return left.flat();
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** The machines' namespaces and their router. @returns the address of this machine, which only the router reaches */
async function openNetworks(
  id: string,
  machines: readonly ChaosMachine[],
  cleanup: AsyncDisposableStack,
): Promise<string> {
  const router = `${id}-router`;
  const at = 4 * (process.pid % 64);
  const address = `198.51.100.${at + 1}`;
  const lan = ({ netns }: ChaosMachine, i: number) => `
ip netns add ${netns}
ip link add lan${i} netns ${router} type veth peer name eth0 netns ${netns}
ip -n ${router} address add 192.168.${i}.1/24 dev lan${i}
ip -n ${router} link set lan${i} up
ip -n ${netns} address add 192.168.${i}.2/24 dev eth0
ip -n ${netns} link set eth0 up
ip -n ${netns} link set lo up
ip -n ${netns} route add default via 192.168.${i}.1`;
  const script = `
ip netns add ${router}
ip link add ${id} type veth peer name wan netns ${router}
ip address add ${address}/30 dev ${id}
ip link set ${id} up
ip -n ${router} address add 198.51.100.${at + 2}/30 dev wan
ip -n ${router} link set wan up
${machines.map(lan).join('\n')}
ip netns exec ${router} sysctl -qw net.ipv4.ip_forward=1
ip netns exec ${router} iptables --table nat --append POSTROUTING --out-interface wan --jump MASQUERADE`;
  cleanup.defer(async () => {
    for (const name of [...machines.map(({ netns }) => netns), router])
      await run('ip', ['netns', 'delete', name]).catch(() => {});
  });
  await run('sh', ['-ec', script]);
  return address;
}

async function joinMachine(machine: ChaosMachine, { admin, agentUrl }: ServerUnderChaos) {
  const { name, netns, dir, user, env } = machine;
  const { createWorkerToken } = await admin.gql(
    'mutation ($input: CreateWorkerTokenInput!) { createWorkerToken(input: $input) { token } }',
    { input: { name } },
  );
  const { token } = createWorkerToken;
  const wrapper = ['nsenter', `--net=/run/netns/${netns}`, ...user];
  machine.program = startMachine({ server: agentUrl, dir, token, name, env, wrapper });
  const query = 'query ($name: String!) { machine(name: $name) { status } }';
  await eventually(async () => {
    const { data } = await admin.graphql(query, { name });
    if (data?.machine?.status !== 'ONLINE') throw new Error(`${name}: ${machine.program?.said}`);
  });
}

/** The worker program, as when systemd starts it again. */
function restarted(machine: ChaosMachine): Victim {
  return {
    name: `program of ${machine.name}`,
    of: [machine.name],
    kill: async () => void (await machine.program?.end('SIGKILL')),
    start: async () => machine.program?.start(),
  };
}

/** Its packets to Loam, and those of Loam, are lost. */
function cut({ name, netns }: ChaosMachine, loam: () => { host: string; port: string }): Victim {
  const change = async (how: '--append' | '--delete') => {
    const { host, port } = loam();
    const inNetwork = (...rule: string[]) =>
      run('ip', ['netns', 'exec', netns, 'iptables', '--wait', how, ...rule, '--jump', 'DROP']);
    const tcp = ['--protocol', 'tcp'];
    await inNetwork('OUTPUT', '--destination', host, ...tcp, '--dport', port);
    await inNetwork('INPUT', '--source', host, ...tcp, '--sport', port);
  };
  return {
    name: `network of ${name}`,
    kill: () => change('--append'),
    async start() {
      await delay(randomMs(LONGEST_CUT_S));
      await change('--delete');
    },
  };
}

/** All of its processes stop, with its jobs. */
function suspended(machine: ChaosMachine): Victim {
  const { name, dir } = machine;
  let containers: string[] = [];
  return {
    name: `sleep of ${name}`,
    of: [name],
    async kill() {
      // Until no process has started another one meanwhile.
      for (let isDone = false; !isDone; ) {
        const running = (await listPids(machine)).filter((pid) => !isStopped(pid));
        for (const pid of running) signal(pid, 'SIGSTOP');
        isDone = running.length === 0;
      }
      containers = await listContainers(dir);
      // One that has just ended is not paused.
      for (const container of containers) await docker('pause', container).catch(() => {});
    },
    async start() {
      await delay(randomMs(LONGEST_SUSPENSION_S));
      for (const container of containers) await docker('unpause', container).catch(() => {});
      for (const pid of await listPids(machine)) signal(pid, 'SIGCONT');
    },
  };
}

const randomMs = (longestS: number) =>
  (SHORTEST_S + Math.random() * (longestS - SHORTEST_S)) * 1_000;

/** The processes in its network namespace: the worker program, shims, and jobs without an image. */
async function listPids({ netns }: ChaosMachine): Promise<number[]> {
  const { stdout } = await run('ip', ['netns', 'pids', netns]);
  return stdout.split('\n').filter(Boolean).map(Number);
}

/** Also if it has ended. */
const isStopped = (pid: number) => ['T', 'Z', 'X', undefined].includes(readProcessStat(pid)?.state);

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended.
  }
}

/** Names of the containers with a mount in the folder. */
async function listContainers(dir: string, ...options: string[]): Promise<string[]> {
  const format = ['--no-trunc', '--format', '{{.Names}} {{.Mounts}}'];
  const listed = await docker('ps', ...options, ...format);
  return listed.split('\n').flatMap((line) => {
    const [name = '', mounts = ''] = line.split(' ');
    return mounts.includes(`${dir}/`) ? [name] : [];
  });
}

async function listAttempts(dir: string): Promise<string[]> {
  const names = await readdir(dir).catch(() => []);
  return names.filter((name) => name.startsWith('att_')).map((name) => join(dir, name));
}

/** Ends the machine with all of its jobs. */
async function endMachine(machine: ChaosMachine): Promise<void> {
  await eventually(async () => {
    const pids = await listPids(machine);
    for (const pid of pids) signal(pid, 'SIGKILL');
    const containers = await listContainers(machine.dir, '--all');
    if (containers.length > 0) await docker('rm', '--force', ...containers);
    if (pids.length > 0) throw new Error(`${machine.name} still has processes`);
  });
}
