/**
 * A separate container engine, on a simulated machine with its own networks: a LAN whose router leads to the internet and to
 * addresses that a job must not reach, all simulated by `internet.ts`. Its bridges have public addresses, because private
 * ones are blocked anyway. Its containers have IPv6, too, and can reach every address with it.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { eventually } from '../eventually.ts';
import { INTERNET, LAN, METADATA } from './internet.ts';

const run = promisify(execFile);

export const ROUTER = '203.0.113.2';
export const PRIVATE = '10.9.9.9';
export const CARRIER = '100.64.9.9';
export const AZURE = '168.63.129.16';
export const RESOLVER = '10.9.9.53';
export const INTERNET6 = '2001:db8:7::7';
export const LAN6 = '2001:db8:1::1';
/** The network of the containers. */
const CONTAINERS6 = '2001:db8:2::/64';
/** The address of the engine's first bridge: the first of its pool. With `--bip`, engines before Docker 23 report it at once. */
export const BRIDGE = '198.51.80.1';

export type OwnEngine = AsyncDisposable & {
  /** `unix://…`. */
  host: string;
  /** The start of a command line that runs on the machine of the engine. */
  wrapper: string[];
  docker(...args: string[]): Promise<string>;
  /** Stops the engine and starts it again; containers keep running. */
  restart(): Promise<void>;
};

const FAR = [INTERNET, METADATA, PRIVATE, CARRIER, AZURE, RESOLVER];

/** A script for `sh -c` that creates the networks, then runs the program in its arguments. */
const NETWORKS = (nameserver: string) => `
set -e
mount -t tmpfs tmpfs /mnt && echo nameserver ${nameserver} > /mnt/resolv && mount --bind /mnt/resolv /etc/resolv.conf
ip link set lo up
unshare --net -- /bin/sh -c '
  ip link set lo up
  until ip link show out; do sleep 0.02; done
  ip addr add ${ROUTER}/24 dev out && ip link set out up
  ip addr add 2001:db8:1::2/64 dev out nodad && ip addr add ${INTERNET6}/128 dev lo
  ip route add ${CONTAINERS6} via ${LAN6}
  ${FAR.map((address) => `ip addr add ${address}/32 dev lo`).join('\n  ')}
  exec "$@"' sh ${process.execPath} ${join(import.meta.dirname, 'internet.ts')} ${RESOLVER} ${[...FAR, ROUTER].join(' ')} < /dev/null > /mnt/far 2>&1 &
far=$!
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link add lan type veth peer name out netns $far
ip addr add ${LAN}/24 dev lan && ip addr add ${LAN6}/64 dev lan nodad && ip link set lan up
ip route add default via ${ROUTER} && ip route add default via 2001:db8:1::2
${process.execPath} ${join(import.meta.dirname, 'internet.ts')} 127.0.0.1 ${LAN} < /dev/null > /mnt/near 2>&1 &
until grep -q up /mnt/far && grep -q up /mnt/near; do sleep 0.05; done
exec "$@"`;

/** @param nameserver the nameserver of the machine: RESOLVER, or an address on its loopback */
export async function ownEngine(nameserver = RESOLVER): Promise<OwnEngine> {
  const dir = await mkdtemp('/tmp/loam-engine-');
  const host = `unix://${dir}/docker.sock`;
  const words = [
    ...['dockerd', '--host', host, '--live-restore', '--data-root', `${dir}/data`],
    ...['--exec-root', `${dir}/exec`, '--pidfile', `${dir}/pid`],
    ...['--default-address-pool', 'base=198.51.80.0/20,size=24'],
    ...['--ipv6', '--fixed-cidr-v6', CONTAINERS6],
  ];
  // The first process lives as long as the machine.
  const holder = spawn(
    'unshare',
    ['--net', '--mount', '--', '/bin/sh', '-c', NETWORKS(nameserver), 'sh', 'sleep', '3600'],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let said = '';
  holder.stderr.on('data', (chunk) => {
    said += chunk;
  });
  const space = (kind: string) =>
    `--${kind}=/proc/${holder.pid}/ns/${kind === 'mount' ? 'mnt' : kind}`;
  const wrapper = ['nsenter', space('net'), space('mount'), '--'];
  const docker = async (...args: string[]) =>
    (await run('docker', ['--host', host, ...args])).stdout.trim();
  let engine: ReturnType<typeof spawn> | undefined;

  async function start(): Promise<void> {
    await eventually(async () => {
      const { stdout } = await run('cat', [`/proc/${holder.pid}/comm`]);
      if (stdout.trim() !== 'sleep') throw new Error(`the networks are not up: ${said}`);
    });
    const [program = '', ...args] = [...wrapper, ...words];
    engine = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    engine.stderr?.on('data', (chunk) => {
      said = (said + chunk).slice(-10_000);
    });
    await eventually(async () => {
      if (engine?.exitCode !== null) throw new Error(`dockerd ended: ${said}`);
      await docker('version');
    });
  }
  async function stop(): Promise<void> {
    if (!engine || engine.exitCode !== null) return;
    engine.kill('SIGTERM');
    await once(engine, 'exit');
  }
  const close = async () => {
    const left = await docker('ps', '--all', '--quiet').catch(() => '');
    if (left) await docker('rm', '--force', '--volumes', ...left.split('\n')).catch(() => {});
    await stop();
    holder.kill('SIGKILL');
    if (holder.exitCode === null && holder.signalCode === null) await once(holder, 'exit');
    await rm(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  };
  try {
    await start();
    return {
      host,
      wrapper,
      docker,
      async restart() {
        await stop();
        await start();
      },
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** An image of busybox and perl, with additional files and links. */
export async function importPerl(engine: OwnEngine, name: string, more = 'true'): Promise<void> {
  const script = `
set -e
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/etc" "$root/tmp"; chmod 1777 "$root/tmp"
dpkg -L perl-base libc6 libcrypt1 | grep -v -e /usr/share/ -e gconv | tar -C / -h --no-recursion -cT - | tar -C "$root" -x
cp "$(command -v busybox)" "$root/bin/busybox"
for n in sh cat ip sleep id mount grep sed ls chmod; do ln -sf busybox "$root/bin/$n"; done
cd "$root"; ${more}
tar -c . | docker --host ${engine.host} import - ${name}`;
  await run('/bin/sh', ['-c', script]);
}
