/**
 * Requirements of tests beyond Node, npm and git. A test without its requirement is skipped, and the last lines of the run name
 * it with its Debian package; under `LOAM_TEST_REQUIRE=all` (as in CI) the test fails instead, unless the requirement is optional.
 */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'vitest';
import { PREVIOUS_RELEASE } from './previous-release.ts';

type Requirement = {
  /** Succeeds if the requirement is met. */
  probe: readonly [string, ...string[]];
  /** How to meet it. */
  remedy: string;
  /** CI does not meet it yet, so its tests are skipped there too. */
  isOptional?: true;
};

const command = (name: string) => ['sh', '-c', `command -v ${name}`] as const;
const install = (packages: string) => `apt install ${packages}`;

/** Folder of the programs of `kube/kube.sh`. */
export const KUBE_CACHE =
  process.env.LOAM_TEST_KUBE_DIR ??
  join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'loam/kubernetes');

/** The Node with which npm was started. Its scripts find the one of node_modules before it. */
export const SYSTEM_NODE =
  process.env.PATH?.split(':')
    .filter((folder) => !folder.includes('node_modules'))
    .map((folder) => join(folder, 'node'))
    .find((path) => existsSync(path)) ?? process.execPath;

const REQUIREMENTS = {
  bubblewrap: {
    probe: ['bwrap', '--unshare-user', '--ro-bind', '/', '/', 'true'],
    remedy: install('bubblewrap'),
  },
  btrfs: {
    probe: [
      'sh',
      '-c',
      'command -v mkfs.btrfs && grep -qw btrfs /proc/filesystems && test -e /dev/loop-control',
    ],
    remedy: `${install('btrfs-progs')}, on a kernel with btrfs`,
  },
  busybox: { probe: ['busybox', 'true'], remedy: install('busybox-static') },
  caddy: { probe: ['caddy', 'version'], remedy: install('caddy') },
  ceph: {
    probe: ['sh', '-c', 'command -v radosgw && command -v ceph-mon && command -v ceph-osd'],
    remedy: install('radosgw ceph-mon ceph-osd'),
  },
  cgroup2: {
    probe: [
      'sh',
      '-c',
      `p=$(awk '/ - cgroup2 / { print $5; exit }' /proc/self/mountinfo) && mkdir "$p/loam-probe" && rmdir "$p/loam-probe"`,
    ],
    remedy: 'run as root on a kernel with cgroup v2',
  },
  cgroups: {
    // Version 1 has a folder for each controller.
    probe: [
      'sh',
      '-c',
      'for d in pids .; do p=/sys/fs/cgroup/$d/loam-probe; mkdir $p && rmdir $p && exit 0; done; exit 1',
    ],
    remedy: 'run as root, where control groups can be made',
  },
  chromium: { probe: ['/usr/bin/chromium', '--version'], remedy: install('chromium') },
  curl: { probe: ['curl', '--version'], remedy: install('curl') },
  docker: { probe: ['docker', 'info'], remedy: `${install('docker.io')}, and start it` },
  dulwich: {
    probe: ['/usr/bin/python3', '-c', 'import dulwich'],
    remedy: install('python3-dulwich'),
  },
  'git-lfs': { probe: ['git-lfs', 'version'], remedy: install('git-lfs') },
  haproxy: { probe: ['haproxy', '-v'], remedy: install('haproxy') },
  jgit: {
    probe: ['sh', '-c', 'java -version && test -e /usr/share/java/org.eclipse.jgit.pgm.jar'],
    remedy: install('jgit-cli default-jre-headless'),
  },
  jq: { probe: ['jq', '--version'], remedy: install('jq') },
  jupyter: { probe: ['jupyter-notebook', '--version'], remedy: install('jupyter-notebook') },
  kubernetes: {
    probe: [
      'sh',
      '-c',
      `test "$(id -u)" = 0 && test -d /sys/fs/cgroup/memory && test -e "${KUBE_CACHE}/bin/.complete" && command -v ip iptables openssl busybox`,
    ],
    remedy: 'run test/support/kube/kube.sh build (6 minutes), as root with control groups v1',
  },
  libgit2: {
    probe: ['/usr/bin/python3', '-c', 'import pygit2'],
    remedy: install('python3-pygit2'),
  },
  mypy: { probe: command('mypy'), remedy: install('mypy') },
  mmdebstrap: { probe: command('mmdebstrap'), remedy: install('mmdebstrap') },
  mount: {
    probe: ['unshare', '--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt'],
    remedy: 'run as root, where file systems can be mounted',
  },
  netns: {
    probe: ['sh', '-c', 'iptables --version && unshare --net ip link && command -v nsenter'],
    remedy: `${install('iproute2 iptables')}, and run as root`,
  },
  nft: { probe: ['nft', '--version'], remedy: install('nftables') },
  nginx: { probe: ['nginx', '-v'], remedy: install('nginx-light') },
  node20: {
    probe: ['sh', '-c', `${SYSTEM_NODE} --version | grep "^v20[.]"`],
    remedy: 'start npm with Node 20',
  },
  openssl: { probe: ['openssl', 'version'], remedy: install('openssl') },
  paramiko: {
    probe: ['/usr/bin/python3', '-c', 'import paramiko'],
    remedy: install('python3-paramiko'),
  },
  perl: { probe: ['perl', '-MSocket', '-e', '1'], remedy: install('perl') },
  'previous-release': {
    probe: ['git', '-C', import.meta.dirname, 'cat-file', '-e', `${PREVIOUS_RELEASE}^{commit}`],
    remedy: 'git fetch --unshallow',
  },
  'privileged-ports': {
    probe: ['sh', '-c', 'test "$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)" -gt 80'],
    remedy: 'run where only root may listen on port 80',
  },
  proc: {
    probe: ['test', '-e', '/proc/self/status'],
    remedy: 'run on Linux',
  },
  python3: { probe: ['/usr/bin/python3', '--version'], remedy: install('python3') },
  redis: { probe: ['redis-server', '--version'], remedy: install('redis-server') },
  root: { probe: ['sh', '-c', 'test "$(id -u)" = 0'], remedy: 'run as root' },
  rsync: { probe: ['rsync', '--version'], remedy: install('rsync') },
  script: { probe: ['script', '-qec', 'true', '/dev/null'], remedy: install('bsdutils') },
  'shared-checkout': {
    // Only root can start programs as another user.
    probe: [
      'sh',
      '-c',
      `test "$(id -u)" != 0 || setpriv --reuid=65534 --regid=65534 --clear-groups test -r '${import.meta.filename}'`,
    ],
    remedy: 'clone into a folder that other users can read',
  },
  slirp4netns: {
    probe: [
      'sh',
      '-c',
      'slirp4netns --version && ip -V && { [ "$(id -u)" = 0 ] || [ -w /dev/net/tun ]; }',
    ],
    remedy: install('slirp4netns iproute2'),
  },
  slurm: {
    probe: [
      'sh',
      '-c',
      'test "$(id -u)" = 0 && command -v sbatch slurmctld slurmd munged && unshare --pid --fork --mount true',
    ],
    remedy: `${install('slurm-wlm munge')}, and run as root`,
  },
  sftp: {
    probe: ['sh', '-c', 'test -x /usr/lib/openssh/sftp-server && command -v scp'],
    remedy: install('openssh-client openssh-sftp-server'),
  },
  ssh: { probe: ['ssh', '-V'], remedy: install('openssh-client') },
  sshfs: {
    probe: ['sh', '-c', 'command -v sshfs fusermount3 && test -w /dev/fuse'],
    remedy: `${install('sshfs')}, on a kernel with FUSE`,
  },
  strace: {
    // It attaches to its parent, which Yama may forbid.
    probe: [
      'sh',
      '-c',
      "strace -o /dev/null -p $$ & until grep -q 'TracerPid:.*[1-9]' /proc/$$/status; do kill -0 $! || exit 1; done",
    ],
    remedy: install('strace'),
  },
  unshare: {
    probe: ['unshare', '--user', '--map-root-user', '--mount', 'setpriv', '--no-new-privs', 'true'],
    remedy: 'run where unprivileged user namespaces are allowed',
  },
  unzip: { probe: command('unzip'), remedy: install('unzip') },
} as const satisfies Record<string, Requirement>;

export type Need = keyof typeof REQUIREMENTS;

const probed = new Map<Need, boolean>();

/** Call first in a test: `needs(ctx, 'bubblewrap')`. */
export function needs(ctx: TestContext, ...wanted: Need[]): void {
  for (const need of wanted) {
    if (has(need)) continue;
    const lacking = `for lack of ${need}: ${REQUIREMENTS[need].remedy}`;
    const { isOptional }: Requirement = REQUIREMENTS[need];
    if (process.env.LOAM_TEST_REQUIRE === 'all' && !isOptional)
      throw new Error(`LOAM_TEST_REQUIRE forbids to skip ${lacking}`);
    ctx.skip(lacking);
  }
}

export function has(need: Need): boolean {
  let isMet = probed.get(need);
  if (isMet === undefined) {
    const [program, ...args] = REQUIREMENTS[need].probe;
    try {
      execFileSync(program, args, { stdio: 'ignore' });
      isMet = true;
    } catch {
      isMet = false;
    }
    probed.set(need, isMet);
  }
  return isMet;
}
