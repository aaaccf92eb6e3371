/**
 * The network of a job.
 *
 * - `internet`: a network namespace of its own, connected by slirp4netns, an ordinary process that carries its
 *   traffic. Neither this machine's loopback nor the operator's networks can be reached.
 * - `none`: a namespace with a loopback of its own and nothing else.
 * - `host`: what the server itself has, loopback included.
 */
import { statSync } from 'node:fs';
import { BlockList } from 'node:net';
import { networkInterfaces } from 'node:os';
import { NOT_PUBLIC } from '../public.ts';
import type { Account } from './accounts.ts';
import type { NetworkSpec } from './namespace.ts';
import { asUser } from './user.ts';

export const NETWORK_MODES = ['internet', 'none', 'host'] as const;
export type NetworkMode = (typeof NETWORK_MODES)[number];

/** One of them is what a job sees around it; which one must not be a network that this machine is in. */
const INSIDE = ['10.0.2', '192.168.231', '172.31.231'];

/** How an attempt's namespace is made, connected and entered, and who answers DNS in it. */
export function internetFor(account: Account | null): { spec: NetworkSpec; nameserver: string } {
  const { closed, inside } = ranges();
  const rules = closed.map((range) => `route replace unreachable ${range}\n`).join('');
  const script = 'echo made; printf %s "$1" | ip -batch - && echo up && read -r end';
  const user = account ? asUser(account.networkUid) : [];
  const slirp = [
    ...['slirp4netns', '--configure', '--mtu=65520', `--cidr=${inside}.0/24`],
    ...['--disable-host-loopback', '--enable-sandbox', '--enable-seccomp'],
    ...['--ready-fd=3', '--exit-fd=4', '{pid}', 'tap0'],
  ];
  return {
    nameserver: `${inside}.3`,
    spec: {
      hold: [
        ...[...user, 'unshare', '--user', '--map-root-user', '--net', '--'],
        ...['/bin/sh', '-c', script, 'sh', `link set lo up\n${rules}`],
      ],
      connect: [...(account && !isOpen(TUN) ? withOpenTun() : []), ...user, ...slirp],
      // Root keeps its rights to make the sandbox. Anyone else has some in the namespace's own user namespace.
      enter: account
        ? ['nsenter', '--net=/proc/{pid}/ns/net', '--']
        : ['nsenter', '--user', '--net', '--preserve-credentials', '--target={pid}', '--'],
    },
  };
}

const TUN = '/dev/net/tun';

/** On most machines everyone may open it: it gives rights in one's own namespaces only. */
function isOpen(device: string): boolean {
  const stat = statSync(device, { throwIfNoEntry: false });
  return stat !== undefined && (stat.mode & 0o006) === 0o006;
}

/** A device of our own that another user may open, which only the command that follows sees. */
function withOpenTun(): string[] {
  const script = `mount -t tmpfs -o mode=755 tmpfs /dev/net && mknod -m 666 ${TUN} c 10 200 && exec "$@"`;
  return ['unshare', '--mount', '--', '/bin/sh', '-c', script, 'sh'];
}

/** What no job may reach, and the first three bytes of a network of 256 addresses that this machine does not use. */
function ranges(): { closed: string[]; inside: string } {
  const own = new BlockList();
  const closed = new Set(NOT_PUBLIC);
  for (const { family, address, cidr, internal } of Object.values(networkInterfaces()).flatMap(
    (i) => i ?? [],
  )) {
    if (family !== 'IPv4' || internal) continue;
    const prefix = Number(cidr?.split('/')[1] ?? 32);
    // Whatever their numbers are: who is in one network with this machine is the operator's.
    const length = prefix < 8 ? 32 : prefix;
    own.addSubnet(address, length, 'ipv4');
    closed.add(`${networkOf(address, length)}/${length}`);
  }
  const inside = INSIDE.find((start) => !own.check(`${start}.1`) && !own.check(`${start}.254`));
  return { closed: [...closed], inside: inside ?? (INSIDE[0] as string) };
}

function networkOf(address: string, length: number): string {
  const number = address.split('.').reduce((sum, byte) => sum * 256 + Number(byte), 0);
  const network = number - (number % 2 ** (32 - length));
  return [24, 16, 8, 0].map((bits) => Math.floor(network / 2 ** bits) % 256).join('.');
}
