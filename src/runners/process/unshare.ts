/**
 * A sandbox out of what util-linux brings, for machines without bubblewrap: the mounts of `view.ts` become the
 * root of a job with its own pids, message queues and host name.
 *
 * As an ordinary user this happens in a user namespace, and the command then enters a second one: there it has
 * no power over the mounts made in the first, which are locked for it.
 */
import { lstatSync } from 'node:fs';
import { dirname } from 'node:path';
import { asUser } from '../supervisor/user.ts';
import { quote } from './namespace.ts';
import type { Mount } from './view.ts';

const DEVICES = ['null', 'zero', 'full', 'random', 'urandom', 'tty'];

export type UnshareOptions = {
  /** An empty folder, in which the new root is mounted: seen by the attempt alone. */
  root: string;
  /** The user that the command becomes; null: we are an ordinary user, or cannot change ours. */
  uid: number | null;
  network: 'shared' | 'none';
};

/** The command line before the job's own, and the table of mounts that it reads from descriptor 4. */
export function unshareCommand(
  mounts: readonly Mount[],
  { root, uid, network }: UnshareOptions,
): { argv: string[]; table: string } {
  const all: Mount[] = [
    ...mounts,
    ...DEVICES.map((name): Mount => ({ kind: 'device', from: `/dev/${name}`, to: `/dev/${name}` })),
  ];
  const namespaces = ['--mount', '--pid', '--ipc', '--uts', '--cgroup', '--fork', '--kill-child'];
  if (network === 'none') namespaces.push('--net');
  if (uid === null) namespaces.push('--user', '--map-root-user');
  return {
    argv: [
      // Ends with the shim, as bubblewrap does.
      ...['setpriv', '--pdeathsig', 'KILL', '--'],
      ...['unshare', ...namespaces, '--', '/bin/sh', '-c', setup(all, root, network), 'sh'],
      ...(uid === null ? asInnerUser() : asUser(uid)),
    ],
    table: tableOf(all, root),
  };
}

function asInnerUser(): string[] {
  return [
    ...['unshare', '--user', '--map-user=1000', '--map-group=1000', '--'],
    ...['setpriv', '--no-new-privs', '--inh-caps=-all', '--'],
  ];
}

/**
 * Reports on descriptor 3 as bubblewrap does: the pid of the first process, here once everything stands, and
 * the exit code. The shell stays as that first process, because it has to collect what daemons leave.
 */
function setup(mounts: readonly Mount[], root: string, network: string): string {
  const folders = new Set(['./proc', './dev/pts', './dev/shm', './.old']);
  const files: string[] = [];
  const links: string[] = [];
  for (const mount of mounts) {
    const to = `.${mount.to}`;
    if (mount.kind === 'link') {
      folders.add(dirname(to));
      links.push(`ln -s ${quote(mount.target)} ${quote(to)}`);
    } else if (mount.kind !== 'empty' && !lstatSync(mount.from).isDirectory()) {
      folders.add(dirname(to));
      files.push(to);
      // An empty place lies below another mount and exists there.
    } else if (mount.kind !== 'empty') folders.add(to);
  }
  return `
set -e
# By the table of processes outside, which is still mounted.
read -r pid rest < /proc/self/stat
mount -t tmpfs -o mode=755 tmpfs ${quote(root)}
cd ${quote(root)}
mkdir -p ${[...folders].map(quote).join(' ')}
for file in ${files.map(quote).join(' ')}; do : > "$file"; done
${links.join('\n')}
ln -s /proc/self/fd dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/\${n%:*}" "dev/\${n#*:}"; done
ln -s pts/ptmx dev/ptmx
mount --all --fstab /dev/fd/4
exec 4<&-
hostname job 2>/dev/null || true
${network === 'none' ? 'ip link set lo up 2>/dev/null || true' : ''}
pivot_root . .old
umount -l /.old
rmdir /.old
mount -o remount,bind,ro /
cd /
unset LOAM_ATTEMPT_ID
echo "{\\"child-pid\\": $pid, \\"set-up\\": true}" >&3
"$@" 3>&- && code=0 || code=$?
echo "{\\"exit-code\\": $code}" >&3
exit $code`;
}

/** As in /etc/fstab: one program makes all mounts, where a program for each took 2 ms each. */
function tableOf(mounts: readonly Mount[], root: string): string {
  const lines: string[][] = [
    ['proc', '/proc', 'proc', 'defaults'],
    ['/proc/sys', '/proc/sys', 'none', 'bind,ro'],
    ['tmpfs', '/dev/shm', 'tmpfs', 'mode=1777,nosuid,nodev'],
    ['devpts', '/dev/pts', 'devpts', 'newinstance,ptmxmode=0666,mode=620'],
  ];
  for (const mount of mounts) {
    if (mount.kind === 'read') lines.push([mount.from, mount.to, 'none', 'rbind,ro']);
    if (mount.kind === 'write') lines.push([mount.from, mount.to, 'none', 'bind']);
    if (mount.kind === 'device') lines.push([mount.from, mount.to, 'none', 'bind']);
    if (mount.kind === 'empty') lines.push(['tmpfs', mount.to, 'tmpfs', 'ro,mode=755']);
  }
  return lines
    .map(([from = '', to = '', type = '', options = '']) =>
      [escaped(from), escaped(root + to), type, options, '0', '0\n'].join(' '),
    )
    .join('');
}

function escaped(path: string): string {
  return path.replace(/[\s\\#]/g, (c) => `\\${c.charCodeAt(0).toString(8).padStart(3, '0')}`);
}
