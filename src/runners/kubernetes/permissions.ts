/** The permissions that the engine uses (docs/clusters.md), and which of them the account of Loam lacks. */
import type { KubernetesConfig } from '../../base/config/kubernetes.ts';
import { ApiError, type KubernetesApi } from './api.ts';

type Permission = {
  verb: string;
  resource: string;
  group?: string;
  isClusterWide?: true;
  /** What does not work without the permission; unset: no job runs without it. */
  without?: string;
};

const REQUIRED: readonly Permission[] = [
  ...['create', 'get', 'list', 'watch', 'delete'].map((verb) => ({ verb, resource: 'pods' })),
  { verb: 'create', resource: 'secrets' },
];
const EVENTS: Permission = {
  verb: 'list',
  resource: 'events',
  without: 'a job does not say why its pod gets no containers',
};
const NETWORK_POLICIES: readonly Permission[] = ['create', 'update'].map((verb) => ({
  verb,
  resource: 'networkpolicies',
  group: 'networking.k8s.io',
  without: 'jobs may reach private networks',
}));
const NODES: Permission = { verb: 'list', resource: 'nodes', isClusterWide: true };

export type MissingPermissions = {
  required: readonly Permission[];
  optional: readonly Permission[];
};

type Options = {
  config: Pick<KubernetesConfig, 'maxCpus' | 'maxMemoryGb'>;
  hasNetworkPolicy: boolean;
};

/**
 * Asks the API server about each permission. A cluster that does not let accounts ask about themselves counts as granting all.
 * @throws ApiError, RunnerUnavailable
 */
export async function findMissingPermissions(
  api: KubernetesApi,
  { config, hasNetworkPolicy }: Options,
): Promise<MissingPermissions> {
  const knowsNodes = config.maxCpus !== undefined && config.maxMemoryGb !== undefined;
  const used = [
    ...REQUIRED,
    ...(knowsNodes ? [] : [NODES]),
    EVENTS,
    ...(hasNetworkPolicy ? NETWORK_POLICIES : []),
  ];
  const granted = await Promise.all(used.map((permission) => isGranted(api, permission)));
  const missing = used.filter((_, index) => !granted[index]);
  return {
    required: missing.filter(({ without }) => without === undefined),
    optional: missing.filter(({ without }) => without !== undefined),
  };
}

async function isGranted(
  api: KubernetesApi,
  { verb, resource, group = '', isClusterWide }: Permission,
): Promise<boolean> {
  const namespace = isClusterWide ? {} : { namespace: api.namespace };
  const body = {
    apiVersion: 'authorization.k8s.io/v1',
    kind: 'SelfSubjectAccessReview',
    spec: { resourceAttributes: { verb, resource, group, ...namespace } },
  };
  try {
    const review = await api.authorization((client) =>
      client.createSelfSubjectAccessReview({ body }),
    );
    return review.status?.allowed === true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return true;
    throw error;
  }
}

/** For example `Loam has no permission for pods (create, delete), secrets (create) in the namespace jobs (docs/clusters.md)`. */
export function describeMissing(
  missing: readonly Permission[],
  { namespace }: Pick<KubernetesApi, 'namespace'>,
): string {
  const list = (permissions: readonly Permission[]) =>
    [...Map.groupBy(permissions, ({ resource }) => resource)]
      .map(([resource, used]) => `${resource} (${used.map(({ verb }) => verb).join(', ')})`)
      .join(', ');
  const inNamespace = list(missing.filter(({ isClusterWide }) => !isClusterWide));
  const inCluster = list(missing.filter(({ isClusterWide }) => isClusterWide));
  const what = [inNamespace && `${inNamespace} in the namespace ${namespace}`, inCluster];
  return `Loam has no permission for ${what.filter(Boolean).join(' and ')} (docs/clusters.md)`;
}

/**
 * Whether the API server has refused the request because the account lacks a permission, not because of a quota or an admission
 * policy, which answer with the same status.
 */
export function isPermissionRefusal({ status, message }: ApiError): boolean {
  return status === 403 && /^[\w./-]+(?: "[^"]*")? is forbidden: User "/.test(message);
}
