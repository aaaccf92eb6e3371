/** Builds the options of bubblewrap for a job: the mounts of `view.ts`, and namespaces for pids, users, host name and IPC. */
import { dirname } from 'node:path';
import type { Mount } from './view.ts';

const COMMON = [
  '--die-with-parent',
  '--new-session',
  '--unshare-pid',
  '--unshare-ipc',
  '--unshare-uts',
  '--unshare-cgroup-try',
  ...['--hostname', 'job', '--clearenv'],
  ...['--cap-drop', 'ALL'],
];

/**
 * `asRoot`: the command changes its user itself and has no other right. A user namespace would not be enough, because outside
 * of it the job would still be root.
 */
export function bubblewrapOptions(
  mounts: readonly Mount[],
  options: { asRoot: boolean; network: 'shared' | 'none'; path: string },
): string[] {
  const user = options.asRoot
    ? ['SETUID', 'SETGID', 'SETPCAP'].flatMap((name) => ['--cap-add', `CAP_${name}`])
    : ['--unshare-user', '--uid', '1000', '--gid', '1000'];
  return [
    ...['--proc', '/proc', '--dev', '/dev'],
    // Read-only, because root can write 1,271 kernel settings there, and every user can write some of them.
    ...['--ro-bind', '/proc/sys', '/proc/sys'],
    ...['--perms', '1777', '--tmpfs', '/dev/shm'],
    // Without `--dir`, only bubblewrap's own user could enter these folders.
    ...[...listParents(mounts)].flatMap((folder) => ['--dir', folder]),
    ...mounts.flatMap(buildMountOptions),
    ...COMMON,
    ...user,
    ...(options.network === 'none' ? ['--unshare-net'] : []),
    ...['--setenv', 'PATH', options.path, '--chdir', '/'],
  ];
}

function buildMountOptions(mount: Mount): string[] {
  switch (mount.kind) {
    case 'read':
      return ['--ro-bind', mount.from, mount.to];
    case 'write':
      return ['--bind', mount.from, mount.to];
    case 'volume':
      // These options imply nosuid and nodev, also for file systems that are mounted below.
      return [mount.readOnly ? '--ro-bind' : '--bind', mount.from, mount.to];
    case 'device':
      return ['--dev-bind', mount.from, mount.to];
    case 'empty':
      return ['--tmpfs', mount.to, '--remount-ro', mount.to];
    case 'link':
      return ['--symlink', mount.target, mount.to];
  }
}

/** The parent folders of all mounts, outermost first. */
function listParents(mounts: readonly Mount[]): Set<string> {
  const parents = new Set<string>();
  const add = (folder: string) => {
    if (folder === '/') return;
    add(dirname(folder));
    parents.add(folder);
  };
  for (const { kind, to } of mounts) if (kind !== 'empty') add(dirname(to));
  return parents;
}
