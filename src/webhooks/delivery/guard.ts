/**
 * Restricts webhooks to public addresses (protection against SSRF). A user chooses the URL, and the server is inside the
 * operator's network. Without this check, a webhook could reach the database, the metadata service of a cloud, or local
 * ports.
 *
 * Addresses are compared as numbers with the ranges of their own family. An IPv6 address that embeds an IPv4 address is
 * always refused, because the network decides how it is translated.
 */

import { promises as dns } from 'node:dns';
import { readFile } from 'node:fs/promises';
import { BlockList, isIP } from 'node:net';

export type AddressGuard = {
  /** Returns null if the address may be contacted, otherwise the reason: "is a loopback address (RFC 1122)". */
  findRefusal(address: string): string | null;
};

/**
 * Refused ranges, with their sources. They are IANA's special-purpose address registries (RFC 6890) without the ranges
 * that are part of the public internet, AS112 (RFC 7534, RFC 7535) and AMT (RFC 7450), plus the last ranges of each family.
 */
const RANGES: readonly (readonly [range: string, kind: string, source: string])[] = [
  ['0.0.0.0/8', 'an address of this host', 'RFC 791'],
  ['10.0.0.0/8', 'a private address', 'RFC 1918'],
  ['100.64.0.0/10', "an address of a carrier's own network", 'RFC 6598'],
  ['127.0.0.0/8', 'a loopback address', 'RFC 1122'],
  ['169.254.0.0/16', 'a link-local address', 'RFC 3927'],
  ['172.16.0.0/12', 'a private address', 'RFC 1918'],
  ['192.0.0.0/24', 'an address of a protocol', 'RFC 6890'],
  ['192.0.2.0/24', 'an address of documentation', 'RFC 5737'],
  ['192.88.99.0/24', 'an address of 6to4 relays', 'RFC 7526'],
  ['192.168.0.0/16', 'a private address', 'RFC 1918'],
  ['198.18.0.0/15', 'an address of benchmarks', 'RFC 2544'],
  ['198.51.100.0/24', 'an address of documentation', 'RFC 5737'],
  ['203.0.113.0/24', 'an address of documentation', 'RFC 5737'],
  ['224.0.0.0/4', 'a multicast address', 'RFC 5771'],
  ['255.255.255.255/32', 'the broadcast address', 'RFC 919'],
  ['240.0.0.0/4', 'a reserved address', 'RFC 1112'],
  // A public address, at which the host of every virtual machine on Azure answers.
  ['168.63.129.16/32', 'an address of the platform', 'Azure'],

  ['::/128', 'the unspecified address', 'RFC 4291'],
  ['::1/128', 'a loopback address', 'RFC 4291'],
  ['::/96', 'an IPv4-compatible address', 'RFC 4291'],
  ['::ffff:0:0/96', 'an IPv4-mapped address', 'RFC 4291'],
  ['::ffff:0:0:0/96', 'an IPv4-translated address', 'RFC 2765'],
  ['64:ff9b::/96', 'an address of NAT64', 'RFC 6052'],
  ['64:ff9b:1::/48', 'an address of NAT64', 'RFC 8215'],
  ['100::/64', 'an address whose packets are discarded', 'RFC 6666'],
  ['100:0:0:1::/64', 'an address that stands for none', 'RFC 9780'],
  ['2001::/32', 'an address of Teredo', 'RFC 4380'],
  ['2001:2::/48', 'an address of benchmarks', 'RFC 5180'],
  ['2001:10::/28', 'an address of ORCHID', 'RFC 4843'],
  ['2001:20::/28', 'an address of ORCHID', 'RFC 7343'],
  ['2001::/23', 'an address of a protocol', 'RFC 2928'],
  ['2001:db8::/32', 'an address of documentation', 'RFC 3849'],
  ['2002::/16', 'an address of 6to4', 'RFC 3056'],
  ['3fff::/20', 'an address of documentation', 'RFC 9637'],
  ['5f00::/16', 'an address of segment routing', 'RFC 9602'],
  ['fc00::/7', 'a private address', 'RFC 4193'],
  ['fe80::/10', 'a link-local address', 'RFC 4291'],
  ['fec0::/10', 'a site-local address', 'RFC 3879'],
  ['ff00::/8', 'a multicast address', 'RFC 4291'],
  // Everything outside 2000::/3.
  ['::/3', 'an address that is not assigned', 'RFC 4291'],
  ['4000::/2', 'an address that is not assigned', 'RFC 4291'],
  ['8000::/1', 'an address that is not assigned', 'RFC 4291'],
];

const FAMILIES = { 4: 'ipv4', 6: 'ipv6' } as const;
type Family = keyof typeof FAMILIES;

/** The first range that contains an address gives the reason. */
type RefusedRange = { family: Family; list: BlockList; reason: string };

const REFUSED_RANGES: readonly RefusedRange[] = RANGES.map(([range, kind, source]) => {
  const family = familyOf(range.split('/')[0] ?? '');
  return { family, list: toBlockList([range], family), reason: `is ${kind} (${source})` };
});

/** @param allow CIDRs and addresses that are allowed in spite of the ranges */
export function createGuard(allow: readonly string[]): AddressGuard {
  const allowed = {
    4: toBlockList(allow, 4),
    6: toBlockList(allow, 6),
  };
  return {
    findRefusal(address) {
      // The part after % is the zone, the network interface of a link-local address.
      const [bare = '', zone] = address.split('%');
      if (isIP(bare) === 0) return 'is not an IP address';
      const family = familyOf(bare);
      if (allowed[family].check(bare, FAMILIES[family])) return null;
      const range = REFUSED_RANGES.find(
        ({ family: ofRange, list }) => ofRange === family && list.check(bare, FAMILIES[family]),
      );
      if (range) return range.reason;
      return zone === undefined ? null : 'has a zone, so it is valid on one link only (RFC 4007)';
    },
  };
}

function familyOf(address: string): Family {
  return isIP(address) === 4 ? 4 : 6;
}

/** One list per family, because Node's BlockList matches an IPv4-mapped IPv6 address against IPv4 ranges. */
function toBlockList(ranges: readonly string[], family: Family): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = '', bits] = range.split('/');
    if (familyOf(address) !== family) continue;
    if (bits === undefined) list.addAddress(address, FAMILIES[family]);
    else list.addSubnet(address, Number(bits), FAMILIES[family]);
  }
  return list;
}

/** How long the creation of a webhook waits for the DNS lookup. */
const LOOKUP_MS = 2_000;
const MAX_URL = 2_048;
const REFUSED_ADDRESS = 'has an address that webhooks are not sent to';
const HOW_TO_ALLOW = 'the operator of this server can allow it with LOAM_WEBHOOK_ALLOW';

/**
 * Checks the URL of a webhook. It is refused if one of several addresses is refused. A host name that does not resolve within
 * 2 seconds is accepted, because every attempt checks again. For a host name, the reason contains neither the address nor
 * its kind, so that it reveals little about the operator's network.
 * @returns null if the URL is allowed, otherwise a reason that completes "url: …"
 */
export async function findUrlProblem(
  text: string,
  guard: AddressGuard,
  lookup: Lookup = resolveHost,
): Promise<string | null> {
  if (text.length > MAX_URL) return `must be at most ${MAX_URL} characters long`;
  if (!URL.canParse(text)) return 'must be a URL';
  const url = new URL(text);
  if (url.protocol !== 'https:') return 'must use https';
  // The URL standard also accepts https:host, https:///host and backslashes, in which other parsers see another host.
  const [, authority] = /^https:\/\/([^/?#\\]+)(?:[/?#]|$)/i.exec(text) ?? [];
  if (authority === undefined) return 'must begin with https:// and a host, without backslashes';
  // Also finds an empty user name, which `URL.username` does not show.
  if (authority.includes('@')) return 'must not contain a user name or a password';
  if (url.port === '0') return 'must name a port from 1 to 65535, or none';
  // Also finds an empty fragment, which `URL.hash` does not show.
  if (url.href.includes('#')) return 'must not have a fragment, because it is never sent';
  const host = hostOf(url);
  if (isIP(host)) {
    const refusal = guard.findRefusal(host);
    return refusal && `${REFUSED_ADDRESS}: it ${refusal}; ${HOW_TO_ALLOW}`;
  }
  const addresses = await lookup(host, AbortSignal.timeout(LOOKUP_MS)).catch(() => []);
  return addresses.some((address) => guard.findRefusal(address))
    ? `${REFUSED_ADDRESS}; ${HOW_TO_ALLOW}`
    : null;
}

/** The host of a URL; an IPv6 address without brackets. */
function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, '$1');
}

/*
 * Resolves host names: from the hosts file, otherwise from the name servers of this machine.
 *
 * `dns.lookup` is not used: it occupies a thread of the pool for file system calls, cannot be cancelled, and runs at most
 * twice at a time, so two names with silent servers would block all lookups of the process. The resolver uses its own
 * sockets. Its drawback is that it ignores the search domains and mDNS of the machine.
 */

/** @throws Error if there is no address; `signal.reason` on abort */
export type Lookup = (host: string, signal: AbortSignal) => Promise<string[]>;

const HOSTS_FILE = '/etc/hosts';
/** Timeout of one query to one server. */
const QUERY_MS = 3_000;
const TRIES = 2;

export const resolveHost: Lookup = async (host, signal) => {
  signal.throwIfAborted();
  // Drops the trailing dot of an absolute name.
  const name = host.toLowerCase().replace(/\.$/, '');
  const local = addressesIn(await readFile(HOSTS_FILE, 'utf8').catch(() => ''), name);
  if (local.length > 0) return local;
  // All names under localhost mean this machine (RFC 6761, 6.3), which many resolvers do not implement.
  if (/(?:^|\.)localhost$/.test(name)) return ['127.0.0.1'];
  // One resolver per lookup, so that cancelling affects only this lookup, and a changed resolv.conf is read; costs 0.1 ms.
  const resolver = new dns.Resolver({ timeout: QUERY_MS, tries: TRIES });
  const cancel = () => resolver.cancel();
  signal.addEventListener('abort', cancel);
  try {
    const answers = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
    signal.throwIfAborted();
    const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
    if (found.length > 0) return found;
    throw answers.find((answer) => answer.status === 'rejected')?.reason ?? noAddressError(name);
  } finally {
    signal.removeEventListener('abort', cancel);
  }
};

/** The addresses of a name in the text of a hosts file. */
export function addressesIn(hosts: string, name: string): string[] {
  return hosts.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return isIP(address) && names.some((alias) => alias.toLowerCase() === name) ? [address] : [];
  });
}

function noAddressError(name: string): Error {
  return new Error(`${name} has no address`);
}
