import type { Request } from 'express';

/** Who asks: the peer of the connection, or whom proxies that are trusted (`LOAM_TRUSTED_PROXIES`) say it was. */
export function address({ ip = 'gone' }: Request): string {
  return network(ip);
}

/** Of IPv6 the first 64 bits count, because one customer has all the rest. */
export function network(peer: string): string {
  if (peer.startsWith('::ffff:') || !peer.includes(':')) return peer.replace('::ffff:', '');
  const [head = '', tail] = peer.split('%')[0]?.split('::') ?? [];
  const groups = head ? head.split(':') : [];
  const after = tail ? tail.split(':') : [];
  const zeros = tail === undefined ? 0 : 8 - groups.length - after.length;
  return [...groups, ...Array<string>(zeros).fill('0'), ...after].slice(0, 4).join(':');
}
