/**
 * Plans the network of a job.
 *
 * - `internet`: a network namespace of its own, connected by slirp4netns, an ordinary process that carries its traffic.
 *   Neither this machine's loopback nor the operator's networks can be reached.
 * - `none`: a namespace with only a loopback of its own.
 * - `host`: the network of the server, including its loopback.
 */
import { statSync } from 'node:fs';
import { BlockList } from 'node:net';
import { networkInterfaces } from 'node:os';
import { run } from '../../platform/processes/starter.ts';
import { NON_PUBLIC_RANGES, subtractNetworks } from '../public-addresses.ts';
import type { Account } from '../supervisor/accounts.ts';
import { memoizeTtl } from '../supervisor/memoize-ttl.ts';
import { setprivPrefix } from '../supervisor/user.ts';
import { PATH } from './launch.ts';
import { type NetworkSpec, openNetwork } from './namespace.ts';

/** First three bytes of candidates for the network that a job sees, which must not be a network of this machine. */
const INSIDE_PREFIXES = ['10.0.2', '192.168.231', '172.31.231'];

/**
 * Plans how an attempt's namespace is created, connected and entered, and the address of its DNS server.
 * @param allow non-public networks that the attempt may reach
 */
export function planInternet(
  account: Account | null,
  allow: readonly string[] = [],
): { spec: NetworkSpec; nameserver: string } {
  const { closed, inside } = readRanges();
  const rules = subtractNetworks(closed, allow)
    .map((range) => `route replace unreachable ${range}\n`)
    .join('');
  const uid = account?.networkUid ?? null;
  const slirp = [
    ...['slirp4netns', '--configure', '--mtu=65520', `--cidr=${inside}.0/24`],
    ...['--disable-host-loopback', '--enable-sandbox', '--enable-seccomp'],
    ...['--ready-fd=3', '--exit-fd=4', '{pid}', 'tap0'],
  ];
  return {
    nameserver: `${inside}.3`,
    spec: {
      hold: {
        argv: ['unshare', '--user', '--map-root-user', '--net', '--', 'ip', '-batch', '-'],
        uid,
      },
      // `ip` shows the loopback once it runs, and again when the routes exist.
      ipCommands: `link show lo\nlink set lo up\n${rules}link show lo\n`,
      connect: { argv: slirp, uid },
      // Root keeps its rights to set up the sandbox. Another user has rights only in the user namespace of the network.
      enter: account
        ? ['nsenter', '--net=/proc/{pid}/ns/net', '--']
        : ['nsenter', '--user', '--net', '--preserve-credentials', '--target={pid}', '--'],
    },
  };
}

/** `name`: the package that the operator has to install. */
const PROGRAMS = [
  { program: 'ip', args: ['-V'], name: 'iproute2' },
  { program: 'slirp4netns', args: ['--version'], name: 'slirp4netns' },
];

/** @returns why jobs cannot have networks of their own here, or null */
export async function findInternetProblem(account: Account | null): Promise<string | null> {
  const missing: string[] = [];
  for (const { program, args, name } of PROGRAMS)
    await run(program, args).catch(() => missing.push(name));
  if (missing.length === 1) return `the package ${missing[0]} is not installed`;
  if (missing.length > 1) return `the packages ${missing.join(' and ')} are not installed`;
  try {
    (await openNetwork(planTrialNetwork(account), { PATH })).close();
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

/** The trial runs without a shim, so its own command line opens the TUN device before it changes the user. */
function planTrialNetwork(account: Account | null): NetworkSpec {
  const { spec } = planInternet(account);
  const prefix = tunDevicePrefix(account);
  if (!account || prefix.length === 0) return spec;
  const { argv } = spec.connect;
  return {
    ...spec,
    connect: { argv: [...prefix, ...setprivPrefix(account.networkUid), ...argv], uid: null },
  };
}

const TUN = '/dev/net/tun';

/** On most machines everyone may open the TUN device: it gives rights only in the opener's own namespaces. */
function isWorldAccessible(device: string): boolean {
  const stat = statSync(device, { throwIfNoEntry: false });
  return stat !== undefined && (stat.mode & 0o006) === 0o006;
}

/**
 * The beginning of a command line whose processes see a TUN device that every user may open, for machines where only root may
 * open theirs. Later mounts on the machine still appear. Shims are started with it, once for all their jobs: for each job it
 * took four programs and 5 of the 100 ms of CPU time of a short job.
 */
export function tunDevicePrefix(account: Account | null): string[] {
  if (!account || isWorldAccessible(TUN)) return [];
  const script = `mount -t tmpfs -o mode=755 tmpfs /dev/net && mknod -m 666 ${TUN} c 10 200 && exec "$@"`;
  return ['unshare', '--mount', '--propagation=slave', '--', '/bin/sh', '-c', script, 'sh'];
}

/** Listing the networks of this machine blocks this thread for 0.5 ms, and for 12 ms while networks are being changed. */
const RANGES_TTL_MS = 5_000;
const readRanges = memoizeTtl(RANGES_TTL_MS, findRanges);

/** Ranges that no job may reach, and the first three bytes of a /24 network that this machine does not use. */
function findRanges(): { closed: string[]; inside: string } {
  const own = new BlockList();
  const closed = new Set(NON_PUBLIC_RANGES);
  for (const { family, address, cidr, internal } of Object.values(networkInterfaces()).flatMap(
    (i) => i ?? [],
  )) {
    if (family !== 'IPv4' || internal) continue;
    const prefix = Number(cidr?.split('/')[1] ?? 32);
    // All networks of this machine belong to the operator, whatever their addresses are.
    const length = prefix < 8 ? 32 : prefix;
    own.addSubnet(address, length, 'ipv4');
    closed.add(`${networkAddress(address, length)}/${length}`);
  }
  const inside = INSIDE_PREFIXES.find(
    (prefix) => !own.check(`${prefix}.1`) && !own.check(`${prefix}.254`),
  );
  return { closed: [...closed], inside: inside ?? (INSIDE_PREFIXES[0] as string) };
}

function networkAddress(address: string, length: number): string {
  const number = address.split('.').reduce((sum, byte) => sum * 256 + Number(byte), 0);
  const network = number - (number % 2 ** (32 - length));
  return [24, 16, 8, 0].map((bits) => Math.floor(network / 2 ** bits) % 256).join('.');
}
