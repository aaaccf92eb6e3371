/** Runs programs as root, or as an ordinary user if the test itself is root. */
import { chownSync } from 'node:fs';

export type Who = 'root' | 'an ordinary user';

/**
 * Any id except root and the users of jobs: no such user has to exist. Each test file has its own id, because the kernel
 * counts the processes of a user together, and files run side by side.
 */
const ORDINARY = 10_000_000 + process.pid;

/** The start of a command line that runs as an ordinary user, also if the test is root. */
export function commandPrefixFor(who: Who): string[] {
  if (who === 'root' || process.getuid?.() !== 0) return [];
  // On most machines anyone may open this device. On others root can create one that only this command sees.
  const tun =
    'mount -t tmpfs -o mode=755 tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200; exec "$@"';
  return [
    ...['unshare', '--mount', '--', '/bin/sh', '-c', tun, 'sh'],
    ...['setpriv', `--reuid=${ORDINARY}`, `--regid=${ORDINARY}`, '--clear-groups', '--'],
  ];
}

/** Changes the owner to the user who runs the server. */
export function chownTo(path: string, who: Who): void {
  if (who !== 'root' && process.getuid?.() === 0) chownSync(path, ORDINARY, ORDINARY);
}
