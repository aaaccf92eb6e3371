/** Starts a separate container engine that a test can kill and restart. Needs root. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { chmod, copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import type { DockerConfig } from '../../src/base/config/docker.ts';
import { statOf } from '../../src/runners/supervisor/proc.ts';
import { removeTree } from '../../src/runners/supervisor/removal.ts';
import { makeCertificate } from './certificate.ts';
import { BUSYBOX } from './docker.ts';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';

const run = promisify(execFile);

export type OwnEngine = AsyncDisposable & {
  config: DockerConfig;
  /** `unix://…`; also reachable here when the engine counts as remote. */
  socket: string;
  docker(...args: string[]): Promise<string>;
  /** The engine's bridge on this machine; unset: the engine is in another network namespace. */
  bridge?: Bridge;
  kill(signal: 'SIGKILL' | 'SIGTERM'): Promise<void>;
  start(): Promise<void>;
  /**
   * Saves the engine's stored state of a container.
   * @returns a function that restores it while the engine is down, as if it had been killed before it stored later changes
   */
  remember(container: string): Promise<() => Promise<void>>;
};

type Bridge = {
  name: string;
  /** An unused address. */
  free: string;
};

/**
 * The engine has the busybox image of the machine's engine.
 * @param sharesNetwork run in the network namespace of this machine; otherwise in a new one
 * @param quotas store data on a Btrfs file system of 1 GB, which supports quotas
 * @param remapped use user namespaces, so that user ids in containers differ from those on the machine
 * @param args additional arguments of the engine
 * @param remote behave like an engine on another machine: reached by TCP and TLS, without access to our temporary files
 */
export async function startOwnEngine({
  liveRestore,
  remote = false,
  quotas = false,
  remapped = false,
  args: further = [],
  sharesNetwork = remote,
}: {
  liveRestore: boolean;
  sharesNetwork?: boolean;
  remote?: boolean;
  quotas?: boolean;
  remapped?: boolean;
  args?: string[];
}): Promise<OwnEngine> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-engine-'));
  const at = (name: string) => join(dir, name);
  const host = `unix://${at('docker.sock')}`;
  let engine: ChildProcess | undefined;

  async function docker(...args: string[]): Promise<string> {
    return (await run('docker', ['--host', host, ...args])).stdout.trim();
  }
  async function start(): Promise<void> {
    const args = ['--host', host, '--data-root', at('data'), '--exec-root', at('exec')];
    args.push('--pidfile', at('pid'), '--iptables=false', '--ip6tables=false');
    if (liveRestore) args.push('--live-restore');
    if (remapped) args.push('--userns-remap=daemon');
    args.push(...further);
    if (sharesNetwork) args.push(`--bridge=${bridge}`);
    // Without a network namespace it would use the bridge of the machine's engine.
    const inNetwork = sharesNetwork ? [] : ['unshare', '--net'];
    const [program = '', ...words] = [...inNetwork, ...hidden, 'dockerd', ...args, ...tls];
    const log = openSync(at('log'), 'a');
    engine = spawn(program, words, { stdio: ['ignore', log, log] });
    await eventually(() => docker('info'));
  }
  async function kill(signal: NodeJS.Signals): Promise<void> {
    const ended = engine && engine.exitCode === null && once(engine, 'exit');
    engine?.kill(signal);
    await ended;
    // containerd exits with its engine. By its pid file a starting engine would take a zombie, which the init of a
    // container may collect late, for a running containerd.
    const file = at('exec/containerd/containerd.pid');
    const pid = await readFile(file, 'utf8').catch(() => '');
    if (pid) await eventually(() => expect(statOf(pid)?.state ?? 'Z').toBe('Z'));
    await rm(file, { force: true });
  }

  const port = remote ? await freePort() : 0;
  const [ca, cert, key] = ['ca.pem', 'cert.pem', 'key.pem'].map(at);
  if (remote) {
    makeCertificate(dir);
    await copyFile(at('cert.pem'), at('ca.pem'));
  }
  const tls = remote
    ? [`--host=tcp://127.0.0.1:${port}`, '--tlsverify'].concat(
        `--tlscacert=${ca}`,
        `--tlscert=${cert}`,
        `--tlskey=${key}`,
      )
    : [];
  const hide =
    'mount -t tmpfs tmpfs /mnt && mkdir /mnt/own && mount --bind "$1" /mnt/own && ' +
    'mount -t tmpfs tmpfs /tmp && mkdir -p "$1" && mount --bind /mnt/own "$1" && shift && exec "$@"';
  const give = (id: string) => `mount --bind "$1" /etc/sub${id}`;
  const ranges = `${give('uid')} && ${give('gid')} && shift && exec "$@"`;
  const inMounts = (script: string, at: string) => [
    ...['unshare', '--mount', '/bin/sh', '-c', script, 'sh', at],
  ];
  const hidden = remote ? inMounts(hide, dir) : remapped ? inMounts(ranges, at('ranges')) : [];
  if (remapped) {
    await writeFile(at('ranges'), 'daemon:231072:65536\n');
    // Mapped users must pass through this folder to reach the files of images.
    await chmod(dir, 0o711);
  }
  const bridge = `loam${process.pid}`;
  const link = (...args: string[]) => run('ip', ['link', ...args]);
  const network = await freeNetwork();
  if (sharesNetwork) {
    await link('add', bridge, 'type', 'bridge');
    // The engine requires an address, although nothing is routed there.
    await run('ip', ['address', 'add', `${network(1)}/28`, 'dev', bridge]);
    await link('set', bridge, 'up');
  }
  if (quotas) {
    await run('truncate', ['--size=1G', at('disk')]);
    await run('mkfs.btrfs', ['-q', at('disk')]);
    await mkdir(at('data'));
    await run('mount', ['-o', 'loop', at('disk'), at('data')]);
  }
  await start();
  await run('sh', ['-c', `docker save ${BUSYBOX} | docker --host ${host} load`]);
  return {
    config: remote
      ? {
          host: `tcp://localhost:${port}`,
          named: true,
          tlsVerify: true,
          certPath: dir,
          configFolder: dir,
        }
      : { host, named: true, tlsVerify: false, configFolder: dir },
    socket: host,
    docker,
    ...(sharesNetwork && { bridge: { name: bridge, free: network(14) } }),
    kill,
    start,
    async remember(container) {
      const id = await docker('inspect', '--format', '{{.Id}}', container);
      const file = at(`data/containers/${id}/config.v2.json`);
      const text = await readFile(file);
      return () => writeFile(file, text);
    },
    async [Symbol.asyncDispose]() {
      const left = await docker('ps', '--all', '--quiet').catch(() => '');
      if (left) await docker('rm', '--force', ...left.split('\n'));
      await kill('SIGTERM');
      if (sharesNetwork) await link('delete', bridge);
      if (quotas) await run('umount', ['--lazy', at('data')]);
      // A killed engine leaves its mounts, which `removeTree` unmounts.
      await removeTree(dir);
    },
  };
}

/**
 * Finds 16 unused addresses in 192.0.2.0/24, which is reserved for documentation. The first 16 are skipped: on a machine
 * that uses this network, its router is among them.
 * @returns a function that returns the address with a number
 */
async function freeNetwork(): Promise<(number: number) => string> {
  const { stdout: used } = await run('ip', ['-o', 'address']);
  for (let tries = 0, at = process.pid; tries < 15; tries++, at++) {
    const address = (number: number) => `192.0.2.${(1 + (at % 15)) * 16 + number}`;
    if (!used.includes(` ${address(1)}/`)) return address;
  }
  throw new Error('15 engines of tests have networks on this machine');
}
