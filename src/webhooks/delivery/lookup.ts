/**
 * The addresses of a host's name: of the file of hosts if it has the name, else of the name servers of this machine.
 *
 * Not by `dns.lookup`, which occupies a thread of the pool that file system calls use, cannot be given up, and of which
 * two run at once: two names whose servers are silent would hold up every other lookup of the process. The resolver
 * asks over sockets of its own, so any number of names may be silent. The price: what else the machine is configured
 * to look up by (search domains, mDNS) is not used, so names are looked up as they stand.
 */
import { promises as dns } from 'node:dns';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';

/** @throws Error when there is no address; what `signal` was aborted with */
export type Lookup = (host: string, signal: AbortSignal) => Promise<string[]>;

const HOSTS = '/etc/hosts';
/** Of one question to one server; each is asked twice at most. */
const QUERY_MS = 3_000;
const TRIES = 2;

export const lookUp: Lookup = async (host, signal) => {
  signal.throwIfAborted();
  // The root's dot at the end changes nothing about an absolute name.
  const name = host.toLowerCase().replace(/\.$/, '');
  const known = addressesIn(await readFile(HOSTS, 'utf8').catch(() => ''), name);
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
    throw answers.find((answer) => answer.status === 'rejected')?.reason ?? noAddress(name);
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

function noAddress(name: string): Error {
  return new Error(`${name} has no address`);
}
