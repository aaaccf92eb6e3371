/**
 * A sandbox built from the tools of util-linux, for machines without bubblewrap: the mounts of `view.ts` become the root of
 * a job with its own pids, message queues and host name.
 *
 * An ordinary user sets the sandbox up in a user namespace. The command then enters a second user namespace, in which it
 * cannot change the mounts of the first.
 */
import { lstatSync } from 'node:fs';
import { dirname } from 'node:path';
import { setprivPrefix } from '../supervisor/user.ts';
import { quoteForShell } from './namespace.ts';
import type { Mount } from './view.ts';

const DEVICES = ['null', 'zero', 'full', 'random', 'urandom', 'tty'];

type UnshareOptions = {
  /** An empty folder on which the new root is mounted. Only the attempt sees the mount. */
  root: string;
  /** The user of the command; null: the server is not root, or cannot change its user. */
  uid: number | null;
  network: 'shared' | 'none';
};

/** The beginning of the job's command line, and the table of mounts that it reads from descriptor 4. */
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
      // Ends together with the shim, as bubblewrap does.
      ...['setpriv', '--pdeathsig', 'KILL', '--'],
      ...['unshare', ...namespaces, '--', '/bin/sh', '-c', setupScript(all, root, network), 'sh'],
      ...(uid === null ? asInnerUser() : setprivPrefix(uid)),
    ],
    table: mountTable(all, root),
  };
}

function asInnerUser(): string[] {
  return [
    ...['unshare', '--user', '--map-user=1000', '--map-group=1000', '--'],
    ...['setpriv', '--no-new-privs', '--inh-caps=-all', '--'],
  ];
}

/**
 * Reports on descriptor 3 as bubblewrap does: the pid of the first process, once the setup is complete, and the exit code.
 * The shell stays the first process, because it has to reap orphaned processes.
 */
function setupScript(mounts: readonly Mount[], root: string, network: string): string {
  const folders = new Set(['./proc', './dev/pts', './dev/shm', './.old']);
  const files: string[] = [];
  const links: string[] = [];
  for (const mount of mounts) {
    const to = `.${mount.to}`;
    if (mount.kind === 'link') {
      folders.add(dirname(to));
      links.push(`ln -s ${quoteForShell(mount.target)} ${quoteForShell(to)}`);
    } else if (mount.kind !== 'empty' && !lstatSync(mount.from).isDirectory()) {
      folders.add(dirname(to));
      files.push(to);
      // The folder of an `empty` mount is below another mount and exists there.
    } else if (mount.kind !== 'empty') folders.add(to);
  }
  return `
set -e
# The outer /proc, which is still mounted, has the pid as the shim sees it.
read -r pid rest < /proc/self/stat
mount -t tmpfs -o mode=755 tmpfs ${quoteForShell(root)}
cd ${quoteForShell(root)}
mkdir -p ${[...folders].map(quoteForShell).join(' ')}
for file in ${files.map(quoteForShell).join(' ')}; do : > "$file"; done
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

/** Lists the mounts in the format of /etc/fstab, so that one program makes all mounts. A program for each took 2 ms each. */
function mountTable(mounts: readonly Mount[], root: string): string {
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
    if (mount.kind === 'volume')
      lines.push([mount.from, mount.to, 'none', `bind,nosuid,nodev${mount.readOnly ? ',ro' : ''}`]);
    if (mount.kind === 'empty') lines.push(['tmpfs', mount.to, 'tmpfs', 'ro,mode=755']);
  }
  return lines
    .map(([from = '', to = '', type = '', options = '']) =>
      [escapeFstabField(from), escapeFstabField(root + to), type, options, '0', '0\n'].join(' '),
    )
    .join('');
}

function escapeFstabField(path: string): string {
  return path.replace(/[\s\\#]/g, (c) => `\\${c.charCodeAt(0).toString(8).padStart(3, '0')}`);
}
