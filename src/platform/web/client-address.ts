import type { Request } from 'express';

/** Address of the client: the peer, or the address that trusted proxies (`LOAM_TRUSTED_PROXIES`) report. */
export function clientAddress({ ip = 'gone' }: Request): string {
  return addressNetwork(ip);
}

/** The address, or for IPv6 its first 64 bits, because one customer has all addresses with this prefix. */
export function addressNetwork(peer: string): string {
  if (peer.startsWith('::ffff:') || !peer.includes(':')) return peer.replace('::ffff:', '');
  const [head = '', tail] = peer.split('%')[0]?.split('::') ?? [];
  const groups = head ? head.split(':') : [];
  const after = tail ? tail.split(':') : [];
  const zeros = tail === undefined ? 0 : 8 - groups.length - after.length;
  return [...groups, ...Array<string>(zeros).fill('0'), ...after].slice(0, 4).join(':');
}
