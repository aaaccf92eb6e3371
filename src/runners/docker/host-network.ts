/**
 * Addresses, networks and nameservers of this machine, read from the kernel and /etc for each container, because bridges and
 * addresses change. `os.networkInterfaces()` omits interfaces without a carrier, whose addresses can be reached all the same.
 */
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { NON_PUBLIC_RANGES } from '../public-addresses.ts';

/** Ranges that no job may reach: everything that is not the internet, and the addresses and networks of this machine. */
export async function listBlockedRanges(): Promise<string[]> {
  const [addresses, networks] = await Promise.all([readOwnAddresses(), readOwnNetworks()]);
  return [...NON_PUBLIC_RANGES, ...[...addresses].map((address) => `${address}/32`), ...networks];
}

/** IPv4 addresses of all interfaces, without 127.0.0.0/8. */
export async function readOwnAddresses(): Promise<Set<string>> {
  return parseAddresses(await readFile('/proc/net/fib_trie', 'utf8'));
}

/** `fib_trie` (proc(5)) has a line with an address, and below it lines with its types. */
function parseAddresses(trie: string): Set<string> {
  const found = new Set<string>();
  let address = '';
  for (const line of trie.split('\n')) {
    address = /\|-- (\S+)/.exec(line)?.[1] ?? address;
    if (/\/32 host LOCAL/.test(line) && !address.startsWith('127.')) found.add(address);
  }
  return found;
}

const MIN_NETWORK_BITS = 8;

async function readOwnNetworks(): Promise<string[]> {
  return parseNetworks(await readFile('/proc/net/route', 'utf8'));
}

/**
 * Networks that are reached without a gateway, except for a default route. The file has numbers in host byte order, which
 * is little-endian on all supported machines.
 */
function parseNetworks(routes: string): string[] {
  return routes.split('\n').flatMap((line) => {
    const [, destination = '', gateway, , , , , mask = ''] = line.split(/\s+/);
    if (gateway !== '00000000' || !/^[0-9A-F]{8}$/.test(destination)) return [];
    const bits = Number.parseInt(mask, 16).toString(2).replaceAll('0', '').length;
    // A point-to-point link may route all addresses or half of them. Such a range is not the operator's network: no private
    // network is larger than a /8.
    return bits < MIN_NETWORK_BITS ? [] : [`${parseLittleEndianAddress(destination)}/${bits}`];
  });
}

function parseLittleEndianAddress(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  return [...bytes.toReversed()].join('.');
}

/** Has the nameservers that the stub of systemd-resolved forwards to. The engine reads this file in the same case. */
const RESOLVED_UPSTREAMS = '/run/systemd/resolve/resolv.conf';

/** IPv4 nameservers that containers can reach, which excludes nameservers on the loopback. */
export async function readResolvers(): Promise<string[]> {
  const all = await readNameservers('/etc/resolv.conf');
  const isStub = all.length === 1 && all[0] === '127.0.0.53';
  const used = isStub ? await readNameservers(RESOLVED_UPSTREAMS) : all;
  return used.filter((address) => isIPv4(address) && !address.startsWith('127.'));
}

async function readNameservers(file: string): Promise<string[]> {
  const text = await readFile(file, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  return [...text.matchAll(/^[ \t]*nameserver[ \t]+(\S+)/gm)].map(([, address = '']) => address);
}
