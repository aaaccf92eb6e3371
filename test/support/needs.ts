/**
 * What a test needs beyond Node, npm and git. Missing: the test is skipped with the reason, out loud;
 * under `LOAM_TEST_REQUIRE=all` (as in CI) it fails instead.
 */
import { execFileSync } from 'node:child_process';
import type { TestContext } from 'vitest';

const NEEDS = {
  bubblewrap: [
    'bwrap',
    ['--unshare-user', '--ro-bind', '/', '/', 'true'],
    'jobs run unconfined without it',
  ],
  caddy: ['caddy', ['version'], 'a proxy'],
  ceph: [
    'sh',
    ['-c', 'command -v radosgw && command -v ceph-mon && command -v ceph-osd'],
    'a real S3 server',
  ],
  cgroup2: [
    'sh',
    [
      '-c',
      `p=$(awk '/ - cgroup2 / { print $5; exit }' /proc/self/mountinfo) && mkdir "$p/loam-probe" && rmdir "$p/loam-probe"`,
    ],
    'killing a group at once',
  ],
  cgroups: [
    'sh',
    // Version 1 has a folder for each controller.
    [
      '-c',
      'for d in pids .; do p=/sys/fs/cgroup/$d/loam-probe; mkdir $p && rmdir $p && exit 0; done; exit 1',
    ],
    'limits on whole jobs',
  ],
  chromium: ['/usr/bin/chromium', ['--version'], 'the dashboard in a browser'],
  docker: ['docker', ['info'], 'the image'],
  nft: ['nft', ['--version'], 'rules of containers that are set at once'],
  proc: ['test', ['-e', '/proc/self/status'], 'the memory that a process takes'],
  unshare: [
    'unshare',
    ['--user', '--map-root-user', '--mount', 'setpriv', '--no-new-privs', 'true'],
    'jobs run unconfined without it where bubblewrap is missing too',
  ],
  slirp4netns: [
    'sh',
    ['-c', 'slirp4netns --version && ip -V && { [ "$(id -u)" = 0 ] || [ -w /dev/net/tun ]; }'],
    'jobs share the network of the machine without it',
  ],
  perl: ['perl', ['-MSocket', '-e', '1'], 'jobs that open sockets'],
  'git-lfs': ['git-lfs', ['version'], 'large-file objects'],
  haproxy: ['haproxy', ['-v'], 'a proxy'],
  nginx: ['nginx', ['-v'], 'a proxy'],
  openssl: ['openssl', ['version'], 'certificates for proxies'],
  redis: ['redis-server', ['--version'], 'counts that servers share'],
  root: ['sh', ['-c', 'test "$(id -u)" = 0'], 'acting as another user, and mounts'],
  mount: ['unshare', ['--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt'], 'a disk that is full'],
  btrfs: [
    'sh',
    [
      '-c',
      'command -v mkfs.btrfs && grep -qw btrfs /proc/filesystems && test -e /dev/loop-control',
    ],
    'a disk with quotas',
  ],
  'privileged-ports': [
    'sh',
    ['-c', 'test "$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)" -gt 80'],
    'ports that only root may take',
  ],
  ssh: ['ssh', ['-V'], 'git over SSH'],
  strace: ['strace', ['-o', '/dev/null', 'true'], 'what a program asks of the system'],
  libgit2: ['/usr/bin/python3', ['-c', 'import pygit2'], 'a client of git'],
  dulwich: ['/usr/bin/python3', ['-c', 'import dulwich'], 'a client of git'],
  paramiko: ['/usr/bin/python3', ['-c', 'import paramiko'], 'a client of SSH'],
  jgit: [
    'sh',
    ['-c', 'java -version && test -e /usr/share/java/org.eclipse.jgit.pgm.jar'],
    'a client of git',
  ],
} as const satisfies Record<string, readonly [string, readonly string[], string]>;

export type Need = keyof typeof NEEDS;

const missing = new Map<Need, string | null>();

/** Call first in a test: `needs(ctx, 'bubblewrap')`. */
export function needs(ctx: TestContext, ...wanted: Need[]): void {
  for (const need of wanted) {
    const why = whyMissing(need);
    if (why && process.env.LOAM_TEST_REQUIRE === 'all') throw new Error(`required, but ${why}`);
    if (why) ctx.skip(why);
  }
}

export function has(need: Need): boolean {
  return whyMissing(need) === null;
}

function whyMissing(need: Need): string | null {
  let why = missing.get(need);
  if (why === undefined) {
    const [command, args, use] = NEEDS[need];
    try {
      execFileSync(command, args, { stdio: 'ignore' });
      why = null;
    } catch {
      why = `${need} is not usable here (${use})`;
    }
    missing.set(need, why);
  }
  return why;
}
