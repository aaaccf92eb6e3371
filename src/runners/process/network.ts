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
import { run } from '../../platform/processes/starter.ts';
import { NOT_PUBLIC } from '../public.ts';
import type { Account } from '../supervisor/accounts.ts';
import { memoizeTtl } from '../supervisor/memoize-ttl.ts';
import { asUser } from '../supervisor/user.ts';
import { PATH } from './launch.ts';
import { type NetworkSpec, openNetwork } from './namespace.ts';

/** One of them is what a job sees around it; which one must not be a network that this machine is in. */
const INSIDE = ['10.0.2', '192.168.231', '172.31.231'];

/** How an attempt's namespace is made, connected and entered, and who answers DNS in it. */
export function internetFor(account: Account | null): { spec: NetworkSpec; nameserver: string } {
  const { closed, inside } = ranges();
  const rules = closed.map((range) => `route replace unreachable ${range}\n`).join('');
  const uid = account?.networkUid ?? null;
  const slirp = [
    ...['slirp4netns', '--configure', '--mtu=65520', `--cidr=${inside}.0/24`],
    ...['--disable-host-loopback', '--enable-sandbox', '--enable-seccomp'],
    ...['--ready-fd=3', '--exit-fd=4', '{pid}', 'tap0'],
  ];
  return {
    nameserver: `${inside}.3`,
    spec: {
      // It shows the loopback as soon as it runs, and again when the routes are there.
      hold: {
        argv: ['unshare', '--user', '--map-root-user', '--net', '--', 'ip', '-batch', '-'],
        uid,
      },
      orders: `link show lo\nlink set lo up\n${rules}link show lo\n`,
      connect: { argv: slirp, uid },
      // Root keeps its rights to make the sandbox. Anyone else has some in the namespace's own user namespace.
      enter: account
        ? ['nsenter', '--net=/proc/{pid}/ns/net', '--']
        : ['nsenter', '--user', '--net', '--preserve-credentials', '--target={pid}', '--'],
    },
  };
}

/** By their packages, which are what the operator installs. */
const PROGRAMS = [
  { program: 'ip', args: ['-V'], name: 'iproute2' },
  { program: 'slirp4netns', args: ['--version'], name: 'slirp4netns' },
];

/** Why jobs cannot have networks of their own here; null: they can. */
export async function whyNoInternet(account: Account | null): Promise<string | null> {
  const missing: string[] = [];
  for (const { program, args, name } of PROGRAMS)
    await run(program, args).catch(() => missing.push(name));
  if (missing.length === 1) return `the package ${missing[0]} is not installed`;
  if (missing.length > 1) return `the packages ${missing.join(' and ')} are not installed`;
  try {
    (await openNetwork(aloneFor(account), { PATH })).close();
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

/** The same without what is around shims: it becomes the user after that was made. */
function aloneFor(account: Account | null): NetworkSpec {
  const { spec } = internetFor(account);
  const around = withOpenTun(account);
  if (!account || around.length === 0) return spec;
  const { argv } = spec.connect;
  return {
    ...spec,
    connect: { argv: [...around, ...asUser(account.networkUid), ...argv], uid: null },
  };
}

const TUN = '/dev/net/tun';

/** On most machines everyone may open it: it gives rights in one's own namespaces only. */
function isOpen(device: string): boolean {
  const stat = statSync(device, { throwIfNoEntry: false });
  return stat !== undefined && (stat.mode & 0o006) === 0o006;
}

/**
 * The beginning of a command line that gives what follows a device of its own that every user may open, where the
 * machine's is root's alone. What is mounted on the machine later appears there too. For what opens networks for
 * others: made for each of them, it took four programs and 5 of the 100 ms of CPU time of a short job.
 */
export function withOpenTun(account: Account | null): string[] {
  if (!account || isOpen(TUN)) return [];
  const script = `mount -t tmpfs -o mode=755 tmpfs /dev/net && mknod -m 666 ${TUN} c 10 200 && exec "$@"`;
  return ['unshare', '--mount', '--propagation=slave', '--', '/bin/sh', '-c', script, 'sh'];
}

/** To look at the networks of this machine takes 0.5 ms of this thread, and 12 where others change theirs meanwhile. */
const SEEN_MS = 5_000;
const ranges = memoizeTtl(SEEN_MS, rangesNow);

/** What no job may reach, and the first three bytes of a network of 256 addresses that this machine does not use. */
function rangesNow(): { closed: string[]; inside: string } {
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
