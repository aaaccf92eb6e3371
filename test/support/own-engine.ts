/** A container engine of a test's own, to be killed and started again. It needs root. */
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
  /** `unix://…`, as the engine's own machine has it. */
  socket: string;
  docker(...args: string[]): Promise<string>;
  /** Of its own network, on this machine; unset: it is in another network than this machine. */
  bridge?: Bridge;
  kill(signal: 'SIGKILL' | 'SIGTERM'): Promise<void>;
  start(): Promise<void>;
  /**
   * What it has on the disk about a container now.
   * @returns writes that again, while it does not run: as if it had been killed before it noted what came since
   */
  remember(container: string): Promise<() => Promise<void>>;
};

type Bridge = {
  name: string;
  /** An address that nobody has. */
  free: string;
};

/**
 * With the image busybox of the shared one.
 * @param sharesNetwork its containers may have the network of this machine; else the engine is in one of its own
 * @param quotas its storage is a Btrfs of 1 GB, of which an engine can limit parts
 * @param remapped its containers have other users of this machine than they see
 * @param args further ones of its command line
 * @param remote as on another machine: it is reached by TCP and TLS, and does not see our temporary files
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
    // Of its own, or it takes the bridge of the machine's.
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
    // What it runs its containers with dies with it. One that starts takes a dead process that nobody has collected yet,
    // as some first processes of containers do late, for a living one, by this file.
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
    // They go through it to the files of images.
    await chmod(dir, 0o711);
  }
  const bridge = `loam${process.pid}`;
  const link = (...args: string[]) => run('ip', ['link', ...args]);
  const network = await freeNetwork();
  if (sharesNetwork) {
    await link('add', bridge, 'type', 'bridge');
    // Nothing is routed there; the engine wants an address.
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
      // One that was killed has left its mounts.
      await removeTree(dir);
    },
  };
}

/**
 * Of 16 addresses that are for documentation alone, and that no other engine of a test has. A machine that is in that
 * network itself has its router among the first 16.
 * @returns gives the address with that number
 */
async function freeNetwork(): Promise<(number: number) => string> {
  const { stdout: used } = await run('ip', ['-o', 'address']);
  for (let tries = 0, at = process.pid; tries < 15; tries++, at++) {
    const address = (number: number) => `192.0.2.${(1 + (at % 15)) * 16 + number}`;
    if (!used.includes(` ${address(1)}/`)) return address;
  }
  throw new Error('15 engines of tests have networks on this machine');
}
