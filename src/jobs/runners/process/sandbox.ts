/**
 * Bubblewrap around a job: its own pids, users and mounts, and of this machine's files only what programs
 * need to run, read-only. It shares the network, because most jobs download something; so it can reach what
 * listens on this machine's loopback, our API included, and needs credentials there as anyone does.
 */
import { execFile } from 'node:child_process';
import { lstatSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Where the folders of an attempt are seen from inside. */
export const MOUNTS = { work: '/work', tmp: '/tmp', home: '/home/job' } as const;

/**
 * The parts of /etc that programs read. Not all of it: as root we would show the job our shadow file.
 */
const ETC = [
  'alternatives',
  'ca-certificates',
  'crypto-policies',
  'fonts',
  'hosts',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'mime.types',
  'nsswitch.conf',
  'pki',
  'protocols',
  'resolv.conf',
  'services',
  'ssl',
];

/** The path of a bubblewrap that works here, or why jobs run unconfined. */
export async function findSandbox(): Promise<{ bwrap: string } | { missing: string }> {
  if (process.platform !== 'linux') return { missing: 'bubblewrap exists on Linux alone' };
  try {
    const { stdout } = await run('sh', ['-c', 'command -v bwrap']);
    const bwrap = stdout.trim();
    await run(bwrap, [...systemMounts(), ...ISOLATION, '--', '/bin/true'], { timeout: 5_000 });
    return { bwrap };
  } catch (error) {
    const said = (error as { stderr?: string }).stderr?.trim();
    return { missing: said || 'bubblewrap (bwrap) is not installed' };
  }
}

const ISOLATION = [
  '--die-with-parent',
  '--new-session',
  '--unshare-user',
  '--unshare-pid',
  '--unshare-ipc',
  '--unshare-uts',
  '--unshare-cgroup-try',
  // Not root, even where we are: tar and its like would try to give files away, and fail.
  ...['--uid', '1000', '--gid', '1000', '--cap-drop', 'ALL'],
];

/** bwrap's options for an attempt whose folders (work, tmp, home, etc) lie in `dir`. */
export function sandboxOptions(dir: string, env: Record<string, string>, gpu: boolean): string[] {
  writeFileSync(join(dir, 'etc/passwd'), 'job:x:1000:1000:job:/home/job:/bin/sh\n');
  writeFileSync(join(dir, 'etc/group'), 'job:x:1000:\n');
  return [
    ...systemMounts(),
    ...['passwd', 'group'].flatMap((f) => ['--ro-bind', join(dir, 'etc', f), `/etc/${f}`]),
    ...Object.entries(MOUNTS).flatMap(([folder, path]) => ['--bind', join(dir, folder), path]),
    ...(gpu ? gpuDevices() : []),
    ...ISOLATION,
    ...['--hostname', 'job', '--chdir', MOUNTS.work, '--clearenv'],
    ...Object.entries(env).flatMap(([name, value]) => ['--setenv', name, value]),
  ];
}

function systemMounts(): string[] {
  const roots = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'].flatMap((name) => {
    const path = `/${name}`;
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (!stat) return [];
    return stat.isSymbolicLink() ? ['--symlink', readlinkSync(path), path] : bind(path);
  });
  return [
    ...bind('/usr'),
    ...roots,
    ...['--ro-bind-try', '/opt', '/opt'],
    ...ETC.flatMap((name) => ['--ro-bind-try', `/etc/${name}`, `/etc/${name}`]),
    ...['--proc', '/proc', '--dev', '/dev'],
  ];
}

function bind(path: string): string[] {
  return ['--ro-bind', path, path];
}

function gpuDevices(): string[] {
  return readdirSync('/dev')
    .filter((name) => name.startsWith('nvidia'))
    .flatMap((name) => ['--dev-bind', `/dev/${name}`, `/dev/${name}`]);
}
