/**
 * A real Kubernetes cluster for tests, by `kube.sh`, with the images `loam.test/busybox:1`, `loam.test/node:1` and
 * `loam.test/shell:1`, which is the first with bash, `script` of util-linux, perl, rsync and `sftp-server`.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type KubernetesConfig, kubernetesOptions } from '../../../src/base/config/kubernetes.ts';
import { KUBE_CACHE } from '../needs.ts';

const run = promisify(execFile);
const SCRIPT = join(import.meta.dirname, 'kube.sh');
/** The nodes have the CPUs of this machine, and tests run several jobs at once. The last node has two pretended GPUs. */
const LIMITS = { maxCpus: 0.2, maxMemoryGb: 0.25 };

/** The metrics of the API server have more than a megabyte. */
const MAX_OUTPUT = 64 * 2 ** 20;

export type KubeCluster = AsyncDisposable & {
  /** Options for an engine that has only the documented permissions. */
  config: KubernetesConfig;
  /** Path of the administrator's kubeconfig. */
  adminConfig: string;
  /** A server that pods must reach listens at this address of this machine. */
  hostAddress: string;
  /** Kills a node, a part of it (`node-1/kubelet`) or a part of the control plane (`apiserver`) at once. */
  kill(name: string): Promise<void>;
  start(name: string): Promise<void>;
  /** Unplugs the network of a node, or plugs it in. */
  cut(node: string): Promise<void>;
  join(node: string): Promise<void>;
  /** Process id on this machine. */
  pid(name: string): Promise<number>;
  /** Runs kubectl as administrator, in the namespace of the jobs. @returns its output */
  kubectl(...args: string[]): Promise<string>;
  /** The same without a namespace. */
  admin(...args: string[]): Promise<string>;
  /** Variables with which a pod finds the API server, because there are no Services. */
  inPod: { KUBERNETES_SERVICE_HOST: string; KUBERNETES_SERVICE_PORT: string };
  /** Loads an image (`kube.sh image`) on the first node. @param tar path */
  importImage(tar: string): Promise<void>;
};

/** @param nodeGrace seconds until a silent node is NotReady */
export async function openKubeCluster({ nodes = 2, nodeGrace = 10 } = {}): Promise<KubeCluster> {
  await using cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'loam-kube-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true }));
  const env = { ...process.env, NODE_GRACE: `${nodeGrace}s`, NODE_BINARY: process.execPath };
  const script = async (...args: string[]) =>
    (await run('bash', [SCRIPT, ...args], { env })).stdout;
  cleanup.defer(async () => void (await script('down', dir)));
  const printed = await script('up', dir, String(nodes));
  const settings = Object.fromEntries(
    printed
      .trim()
      .split('\n')
      .map((line) => line.split('=')),
  );
  const owned = cleanup.move();
  const kubectl = join(KUBE_CACHE, 'bin/kubectl');
  const admin = async (...args: string[]) =>
    (await run(kubectl, ['--kubeconfig', settings.KUBECONFIG, ...args], { maxBuffer: MAX_OUTPUT }))
      .stdout;
  const server = new URL(
    await admin('config', 'view', '-o', 'jsonpath={.clusters[0].cluster.server}'),
  );
  return {
    config: kubernetesOptions.parse({
      kubeconfig: settings.RUNNER_KUBECONFIG,
      agentImage: 'loam.test/node:1',
      defaultImage: 'loam.test/busybox:1',
      gpus: { T4: { max: 2, nodeSelector: { 'loam.test/gpu': 'h100' } } },
      ...LIMITS,
    }),
    adminConfig: settings.KUBECONFIG,
    hostAddress: settings.HOST_ADDRESS,
    kill: async (name) => void (await script('kill', dir, name)),
    start: async (name) => void (await script('start', dir, name)),
    cut: async (name) => void (await script('cut', dir, name)),
    join: async (name) => void (await script('join', dir, name)),
    pid: async (name) => Number(await script('pid', dir, name)),
    kubectl: (...args) => admin('-n', 'loam-jobs', ...args),
    admin,
    inPod: { KUBERNETES_SERVICE_HOST: server.hostname, KUBERNETES_SERVICE_PORT: server.port },
    importImage: async (tar) => void (await script('ctr', dir, 'node-1', 'images', 'import', tar)),
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
