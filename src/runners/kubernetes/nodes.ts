/** What the engine wants to know about nodes. */
import type { V1Node } from '@kubernetes/client-node';
import { ApiError, type KubernetesApi } from './api.ts';
import { AGENT_REQUESTS } from './pod.ts';

export type NodeSize = { cpus: number; memoryBytes: number };

const PAGE_SIZE = 500;

/**
 * The most CPUs and the most memory that a job may have on a node with the labels, beside its agent. Pods of the cluster
 * itself, on every node, may need some of that.
 * @returns undefined when Loam may not list nodes
 * @throws ApiError, RunnerUnavailable
 */
export async function readLargestNode(
  api: KubernetesApi,
  nodeSelector: Readonly<Record<string, string>>,
): Promise<NodeSize | undefined> {
  const labelSelector = Object.entries(nodeSelector)
    .map(([key, value]) => `${key}=${value}`)
    .join(',');
  const largest = { cpus: 0, memoryBytes: 0 };
  try {
    for (let next: string | undefined; ; ) {
      const page = await api.core((core) =>
        core.listNode({
          limit: PAGE_SIZE,
          ...(labelSelector && { labelSelector }),
          ...(next !== undefined && { _continue: next }),
        }),
      );
      for (const node of page.items) {
        const { cpus, memoryBytes } = sizeOf(node);
        largest.cpus = Math.max(largest.cpus, cpus);
        largest.memoryBytes = Math.max(largest.memoryBytes, memoryBytes);
      }
      next = page.metadata?._continue || undefined;
      if (next === undefined) return largest;
    }
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return undefined;
    throw error;
  }
}

/**
 * Whether the control plane hears from the node; true when Loam may not list nodes.
 * @throws ApiError, RunnerUnavailable
 */
export async function isNodeReady(api: KubernetesApi, name: string): Promise<boolean> {
  try {
    const { items } = await api.core((core) =>
      core.listNode({ fieldSelector: `metadata.name=${name}` }),
    );
    const [node] = items;
    return Boolean(
      node?.status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True'),
    );
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return true;
    throw error;
  }
}

function sizeOf({ status }: V1Node): NodeSize {
  const { cpu = '0', memory = '0' } = status?.allocatable ?? {};
  return {
    cpus: Math.max(0, parseQuantity(cpu) - AGENT_REQUESTS.cpus),
    memoryBytes: Math.max(0, parseQuantity(memory) - AGENT_REQUESTS.memoryBytes),
  };
}

const FACTORS: Readonly<Record<string, number>> = {
  m: 1e-3,
  '': 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  P: 1e15,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  Pi: 2 ** 50,
};

/** A quantity such as `3920m` or `16Gi`; 0 if it is unknown. */
export function parseQuantity(text: string): number {
  const [, number = '0', suffix = ''] = /^(\d+(?:\.\d+)?)([a-zA-Z]*)$/.exec(text) ?? [];
  return Number(number) * (FACTORS[suffix] ?? 0);
}
