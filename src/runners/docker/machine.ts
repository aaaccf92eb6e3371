/**
 * The networks of this machine, as its kernel tells them, read anew for each container: bridges and addresses come and
 * go. Node's own list leaves out interfaces without a carrier, whose addresses answer all the same.
 */
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { NOT_PUBLIC } from '../public.ts';

/** What no job may reach: what is not the internet, each address of this machine, and each network that it is in. */
export async function closedRanges(): Promise<string[]> {
  const [addresses, networks] = await Promise.all([ownAddresses(), ownNetworks()]);
  return [...NOT_PUBLIC, ...[...addresses].map((address) => `${address}/32`), ...networks];
}

/** Of all interfaces but the loopback's own range. */
export async function ownAddresses(): Promise<Set<string>> {
  return parseAddresses(await readFile('/proc/net/fib_trie', 'utf8'));
}

/** `fib_trie` of proc(5): a line of an address, and below it lines of what it is. */
export function parseAddresses(trie: string): Set<string> {
  const found = new Set<string>();
  let address = '';
  for (const line of trie.split('\n')) {
    address = /\|-- (\S+)/.exec(line)?.[1] ?? address;
    if (/\/32 host LOCAL/.test(line) && !address.startsWith('127.')) found.add(address);
  }
  return found;
}

async function ownNetworks(): Promise<string[]> {
  return parseNetworks(await readFile('/proc/net/route', 'utf8'));
}

/** Those that are reached without a gateway, but for a default route: numbers are in the order of this machine's bytes. */
export function parseNetworks(routes: string): string[] {
  return routes.split('\n').flatMap((line) => {
    const [, destination = '', gateway, , , , , mask = ''] = line.split(/\s+/);
    if (gateway !== '00000000' || !/^[0-9A-F]{8}$/.test(destination)) return [];
    const bits = Number.parseInt(mask, 16).toString(2).replaceAll('0', '').length;
    // A point-to-point link may hold all addresses, or half of them: those are not the operator's.
    return bits < 8 ? [] : [`${dotted(destination)}/${bits}`];
  });
}

/** The first address of a network that a machine can have: of `172.17.0.0/16`, `172.17.0.1`. */
export function firstOf(network: string): string {
  const bytes = (network.split('/')[0] ?? '').split('.').map(Number);
  return [...bytes.slice(0, 3), (bytes[3] ?? 0) + 1].join('.');
}

function dotted(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  return [...bytes.toReversed()].join('.');
}

/** Where the stub of systemd-resolved says whom it asks. The engine goes by it in the same case. */
const BEHIND_STUB = '/run/systemd/resolve/resolv.conf';

/** Whom containers ask for names, of IPv4; none of the loopback. */
export async function resolvers(): Promise<string[]> {
  const all = await nameservers('/etc/resolv.conf');
  const used = all.length === 1 && all[0] === '127.0.0.53' ? await nameservers(BEHIND_STUB) : all;
  return used.filter((address) => isIPv4(address) && !address.startsWith('127.'));
}

async function nameservers(file: string): Promise<string[]> {
  const text = await readFile(file, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  return [...text.matchAll(/^[ \t]*nameserver[ \t]+(\S+)/gm)].map(([, address = '']) => address);
}
