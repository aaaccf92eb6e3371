/** Kubernetes for the chaos test: what of it is killed, what explains a lost attempt, and what may be left over. */
import { readdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { openKubeCluster } from '../kube/kube.ts';
import type { ChaosCluster, Kill } from './cluster.ts';
import type { Loss } from './compare.ts';

const NODES = ['node-1', 'node-2'];
const CONTROL_PLANE = ['apiserver', 'etcd', 'scheduler', 'controller-manager'];

const OBJECTS =
  'jsonpath={range .items[*]}{.kind}/{.metadata.name} of {.metadata.ownerReferences[*].uid} created {.metadata.creationTimestamp} deleted {.metadata.deletionTimestamp}{"\\n"}{end}';

export async function openKubernetesChaos(): Promise<ChaosCluster> {
  const kube = await openKubeCluster({ nodes: NODES.length });
  const { kubeconfig = '', agentImage, defaultImage, maxCpus, maxMemoryGb } = kube.config;
  const folder = dirname(dirname(kubeconfig));
  const restarted = (name: string, of?: string) => ({
    name,
    ...(of && { of: [of] }),
    kill: () => kube.kill(name),
    start: () => kube.start(name),
  });
  const unplugged = (node: string) => ({
    name: `network of ${node}`,
    of: [node],
    kill: () => kube.cut(node),
    start: () => kube.join(node),
  });
  return {
    folder: 'clusters/kubernetes',
    env: {
      LOAM_RUNNER: 'kubernetes',
      KUBECONFIG: kubeconfig,
      LOAM_KUBERNETES_AGENT_IMAGE: agentImage,
      LOAM_KUBERNETES_DEFAULT_IMAGE: defaultImage,
      LOAM_KUBERNETES_MAX_CPUS: String(maxCpus),
      LOAM_KUBERNETES_MAX_MEMORY_GB: String(maxMemoryGb),
      LOAM_KUBERNETES_MAX_JOBS: '6',
    },
    say: 'nc',
    hostAddress: kube.hostAddress,
    victims: [
      ...CONTROL_PLANE.map((name) => restarted(name)),
      ...NODES.flatMap((node) => [
        restarted(node, node),
        restarted(`${node}/kubelet`, node),
        restarted(`${node}/containerd`, node),
        unplugged(node),
      ]),
    ],
    isExplained({ node, created, begun, ended }: Loss, kills: readonly Kill[]) {
      return kills.some(({ name, from, to }) => {
        const isMeanwhile = from < ended && to > created;
        // Its node is unknown.
        return isMeanwhile && (begun === null ? name.includes('node-') : name === node);
      });
    },
    async listLeftovers() {
      const objects = await kube.kubectl('get', 'pods,secrets,jobs', '-o', OBJECTS);
      const folders = await Promise.all(
        NODES.map(async (node) => {
          const pods = await readdir(join(folder, node, 'kubelet/pods')).catch(() => []);
          return pods.map((uid) => `folder of pod ${uid} on ${node}`);
        }),
      );
      return [
        // The tokens of the service accounts stay.
        ...objects
          .split('\n')
          .filter((name) => name && !/^Secret\/(loam|default)-token-/.test(name)),
        ...folders.flat(),
      ];
    },
    [Symbol.asyncDispose]: () => kube[Symbol.asyncDispose](),
  };
}
