/** Running as root, or as an ordinary user where the test itself is root. */
import { chownSync } from 'node:fs';

export type Who = 'root' | 'an ordinary user';

/**
 * Any but root and the users of jobs: no user of this id is needed. Another for each test file, because the kernel
 * counts the processes of a user together, and files run side by side.
 */
const ORDINARY = 10_000_000 + process.pid;

/** The beginning of a command line that runs as an ordinary user, also when we are root. */
export function asWho(who: Who): string[] {
  if (who === 'root' || process.getuid?.() !== 0) return [];
  // On most machines anyone may open this device. Where not, root can make one that only this command sees.
  const tun =
    'mount -t tmpfs -o mode=755 tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200; exec "$@"';
  return [
    ...['unshare', '--mount', '--', '/bin/sh', '-c', tun, 'sh'],
    ...['setpriv', `--reuid=${ORDINARY}`, `--regid=${ORDINARY}`, '--clear-groups', '--'],
  ];
}

/** Gives it to whoever runs the server. */
export function give(path: string, who: Who): void {
  if (who !== 'root' && process.getuid?.() === 0) chownSync(path, ORDINARY, ORDINARY);
}
