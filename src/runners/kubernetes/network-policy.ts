/**
 * The network of jobs: a NetworkPolicy for the pods of this worker, which the network plugin of the cluster must enforce. Agent
 * and job share the network of their pod, so a job reaches Loam's server too, like every client of its API.
 */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import type { V1NetworkPolicy, V1NetworkPolicyEgressRule } from '@kubernetes/client-node';
import { NON_PUBLIC_RANGES } from '../public-addresses.ts';
import type { NetworkMode } from '../runner.ts';
import { ApiError, type KubernetesApi } from './api.ts';
import { LABEL_MANAGED, LABEL_WORKER } from './pod.ts';

/** Private and link-local addresses, and those that a gateway translates to IPv4 (RFC 4193, 4291, 6052). */
const NON_PUBLIC_RANGES_6 = ['fc00::/7', 'fe80::/10', '64:ff9b::/96'];
/** The pods of a Loam server in the cluster have this label: an address of a Service does not match a range of addresses. */
const SERVER_LABELS = { 'app.kubernetes.io/name': 'loam' };
const DNS_PORT = 53;

export type PolicyOptions = {
  workerLabel: string;
  /** Base URL of the agents' server. */
  agentUrl: string;
  network: Exclude<NetworkMode, 'host'>;
  /** Non-public IPv4 networks that jobs may reach. */
  allow: readonly string[];
};

/** @param addresses those of the host of `agentUrl` */
export function buildNetworkPolicy(
  { workerLabel, agentUrl, network, allow }: PolicyOptions,
  addresses: readonly string[],
): V1NetworkPolicy {
  const { port, protocol } = new URL(agentUrl);
  const serverPort = Number(port || (protocol === 'https:' ? 443 : 80));
  const egress: V1NetworkPolicyEgressRule[] = [
    // Anywhere: a cluster's nameserver may be a pod, its node, or the cloud's at a link-local address.
    { ports: ['UDP', 'TCP'].map((dns) => ({ protocol: dns, port: DNS_PORT })) },
    { to: [{ namespaceSelector: {}, podSelector: { matchLabels: SERVER_LABELS } }] },
  ];
  // An empty list of destinations would allow all of them.
  if (addresses.length > 0)
    egress.push({
      to: addresses.map((address) => ({
        ipBlock: { cidr: `${address}/${isIP(address) === 6 ? 128 : 32}` },
      })),
      ports: [{ protocol: 'TCP', port: serverPort }],
    });
  if (network === 'internet')
    egress.push({
      to: [
        { ipBlock: { cidr: '0.0.0.0/0', except: [...NON_PUBLIC_RANGES] } },
        { ipBlock: { cidr: '::/0', except: [...NON_PUBLIC_RANGES_6] } },
        ...allow.map((range) => ({
          ipBlock: { cidr: range.includes('/') ? range : `${range}/32` },
        })),
      ],
    });
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: {
      name: `loam-${workerLabel}`,
      labels: { [LABEL_MANAGED]: 'loam', [LABEL_WORKER]: workerLabel },
    },
    spec: {
      podSelector: { matchLabels: { [LABEL_WORKER]: workerLabel } },
      policyTypes: ['Ingress', 'Egress'],
      ingress: [],
      egress,
    },
  };
}

/**
 * Creates the policy, or replaces that of an earlier start.
 * @throws ApiError, RunnerUnavailable
 */
export async function ensureNetworkPolicy(
  api: KubernetesApi,
  options: PolicyOptions,
): Promise<void> {
  const { hostname } = new URL(options.agentUrl);
  const host = hostname.replace(/^\[(.*)\]$/, '$1');
  // A name that only pods can resolve is that of a Service, whose pods have the label.
  const found = await lookup(host, { all: true }).catch(() => []);
  const addresses = found.map(({ address }) => address);
  const body = buildNetworkPolicy(options, addresses);
  const { namespace } = api;
  try {
    await api.networking((client) => client.createNamespacedNetworkPolicy({ namespace, body }));
  } catch (error) {
    if (!(error instanceof ApiError && error.reason === 'AlreadyExists')) throw error;
    const name = body.metadata?.name ?? '';
    await api.networking((client) =>
      client.replaceNamespacedNetworkPolicy({ name, namespace, body }),
    );
  }
}
