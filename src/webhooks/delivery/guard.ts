/**
 * Which addresses webhooks are sent to: those of the public internet. A user chooses the URL, and the server stands in
 * its operator's network, so without this rule a webhook could ask what no outsider reaches: the database, the metadata
 * of a cloud, our own ports.
 *
 * Addresses are compared as numbers, each against the ranges of its own family. One of IPv6 that holds one of IPv4 is
 * refused whatever that is, because who translates it, and into what, is decided elsewhere.
 */

import { promises as dns } from 'node:dns';
import { readFile } from 'node:fs/promises';
import { BlockList, isIP } from 'node:net';

export type AddressGuard = {
  /** null when it may be contacted, else why not: "is a loopback address (RFC 1122)". */
  whyNot(address: string): string | null;
};

/**
 * Where each range is defined. All are in the registries of special-purpose addresses of IANA (RFC 6890), except the
 * last ones of each family. Of those registries only ranges that are part of the public internet are left out: AS112
 * (RFC 7534, RFC 7535) and AMT (RFC 7450).
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
  // A public number that is answered by the host of every virtual machine there.
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
  // All that is outside 2000::/3.
  ['::/3', 'an address that is not assigned', 'RFC 4291'],
  ['4000::/2', 'an address that is not assigned', 'RFC 4291'],
  ['8000::/1', 'an address that is not assigned', 'RFC 4291'],
];

const FAMILIES = { 4: 'ipv4', 6: 'ipv6' } as const;
type Family = keyof typeof FAMILIES;

/** Of one range; the first that holds an address says what it is. */
type RefusedRange = { family: Family; list: BlockList; why: string };

const REFUSED_RANGES: readonly RefusedRange[] = RANGES.map(([range, kind, source]) => {
  const family = familyOf(range.split('/')[0] ?? '');
  return { family, list: toBlockList([range], family), why: `is ${kind} (${source})` };
});

/** @param allow CIDRs and addresses that may be contacted all the same */
export function createGuard(allow: readonly string[]): AddressGuard {
  const allowed = {
    4: toBlockList(allow, 4),
    6: toBlockList(allow, 6),
  };
  return {
    whyNot(address) {
      // What follows a % is the interface to leave by, of addresses that hold for one link alone.
      const [bare = '', zone] = address.split('%');
      if (isIP(bare) === 0) return 'is no address';
      const family = familyOf(bare);
      if (allowed[family].check(bare, FAMILIES[family])) return null;
      const range = REFUSED_RANGES.find(
        (one) => one.family === family && one.list.check(bare, FAMILIES[family]),
      );
      if (range) return range.why;
      return zone === undefined ? null : 'has a zone, so it is of one link alone (RFC 4007)';
    },
  };
}

function familyOf(address: string): Family {
  return isIP(address) === 4 ? 4 : 6;
}

/** A list for each family, because Node takes an IPv4-mapped address for the one of IPv4 in it. */
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

/** For how long the creation of a webhook waits for the lookup of its host. */
const LOOKUP_MS = 2_000;
const MAX_URL = 2_048;
const REFUSED_ADDRESS = 'leads to an address that webhooks are not sent to';
const HOW_TO_ALLOW = 'the operator of this server can allow it with LOAM_WEBHOOK_ALLOW';

/**
 * For creation: null, or why the url is refused: it is too long, not of https, has a user name, a password or a
 * fragment, or leads to an address that is refused. Of several addresses one that is refused is enough. A name that
 * cannot be looked up within 2 seconds is accepted, because every attempt checks again. The reason completes "url: …".
 * Of a name it says neither which address it has nor of which kind, so that little is learnt of the operator's network.
 */
export async function whyNotUrl(
  text: string,
  guard: AddressGuard,
  lookup: Lookup = lookUp,
): Promise<string | null> {
  if (text.length > MAX_URL) return `must be at most ${MAX_URL} characters long`;
  if (!URL.canParse(text)) return 'must be a URL';
  const url = new URL(text);
  if (url.protocol !== 'https:') return 'must use https';
  // The URL standard takes https:host, https:///host and backslashes for slashes too. Other readers of the same text
  // take another part of it for the host.
  const [, authority] = /^https:\/\/([^/?#\\]+)(?:[/?#]|$)/i.exec(text) ?? [];
  if (authority === undefined) return 'must begin with https:// and a host, and use / alone';
  // Also empty ones, which the parts of a URL do not tell.
  if (authority.includes('@')) return 'must not hold a user name or a password';
  if (url.port === '0') return 'must name a port from 1 to 65535, or none';
  // Also an empty one, which `hash` does not tell.
  if (url.href.includes('#')) return 'must have no fragment, which is never sent';
  const host = hostOf(url);
  if (isIP(host)) {
    const why = guard.whyNot(host);
    return why && `${REFUSED_ADDRESS}: it ${why}; ${HOW_TO_ALLOW}`;
  }
  const addresses = await lookup(host, AbortSignal.timeout(LOOKUP_MS)).catch(() => []);
  return addresses.some((address) => guard.whyNot(address))
    ? `${REFUSED_ADDRESS}; ${HOW_TO_ALLOW}`
    : null;
}

/** The name or address that a URL names, the latter without brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, '$1');
}

/*
 * The addresses of a host's name: of the file of hosts if it has the name, else of the name servers of this machine.
 *
 * Not by `dns.lookup`, which occupies a thread of the pool that file system calls use, cannot be given up, and of which
 * two run at once: two names whose servers are silent would hold up every other lookup of the process. The resolver
 * asks over sockets of its own, so any number of names may be silent. The price: what else the machine is configured
 * to look up by (search domains, mDNS) is not used, so names are looked up as they stand.
 */

/** @throws Error when there is no address; what `signal` was aborted with */
export type Lookup = (host: string, signal: AbortSignal) => Promise<string[]>;

const HOSTS_FILE = '/etc/hosts';
/** Of one question to one server; each is asked twice at most. */
const QUERY_MS = 3_000;
const TRIES = 2;

export const lookUp: Lookup = async (host, signal) => {
  signal.throwIfAborted();
  // The root's dot at the end changes nothing about an absolute name.
  const name = host.toLowerCase().replace(/\.$/, '');
  const known = addressesIn(await readFile(HOSTS_FILE, 'utf8').catch(() => ''), name);
  if (known.length > 0) return known;
  // All names under it are of this machine (RFC 6761, 6.3), and many resolvers do not know that.
  if (/(?:^|\.)localhost$/.test(name)) return ['127.0.0.1'];
  // One for each lookup, so that giving up one ends no other, and a changed resolv.conf is seen; it costs 0.1 ms.
  const resolver = new dns.Resolver({ timeout: QUERY_MS, tries: TRIES });
  const giveUp = () => resolver.cancel();
  signal.addEventListener('abort', giveUp);
  try {
    const answers = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
    signal.throwIfAborted();
    const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
    if (found.length > 0) return found;
    throw answers.find((answer) => answer.status === 'rejected')?.reason ?? noAddressError(name);
  } finally {
    signal.removeEventListener('abort', giveUp);
  }
};

/** Those of a name in the text of a file of hosts: lines of an address and its names. */
export function addressesIn(hosts: string, name: string): string[] {
  return hosts.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return isIP(address) && names.some((one) => one.toLowerCase() === name) ? [address] : [];
  });
}

function noAddressError(name: string): Error {
  return new Error(`${name} has no address`);
}
