/** The pod of an attempt, and the options of a cluster. */
import { expect, test } from 'vitest';
import {
  KUBERNETES_VARIABLES,
  type KubernetesConfig,
  kubernetesOptions,
  readKubernetesConfig,
} from '../../src/base/config/kubernetes.ts';
import type { Submission } from '../../src/runners/agent/engine.ts';
import { buildNetworkPolicy } from '../../src/runners/kubernetes/network-policy.ts';
import { parseQuantity } from '../../src/runners/kubernetes/nodes.ts';
import {
  buildPod,
  buildSecret,
  findDroppedField,
  podName,
} from '../../src/runners/kubernetes/pod.ts';

const ATTEMPT = 'att_01jz8m3q4nfc2v6rj0sxkw5e7t';
const SUBMISSION: Submission = {
  attempt: ATTEMPT,
  machine: 'cluster',
  job: { id: 'job_01jz8m3q4nfc2v6rj0sxkw5e7u', name: 'train it', namespace: 'ada' },
  agent: { url: 'https://loam.example.com/agents', token: 'the-credential' },
  image: 'python:3.13',
  hardware: {
    gpu: 'H100-80GB',
    gpuCount: 2,
    cpu: 8,
    memoryGb: 32,
    diskGb: 100,
    region: 'us-east-1',
  },
  cpus: 7.5,
  memoryBytes: 32 * 2 ** 30,
  timeoutMs: 3_600_000,
};

function podOf(options: Partial<KubernetesConfig> = {}, changes: Partial<Submission> = {}) {
  const gpus = { 'H100-80GB': { max: 8, nodeSelector: { gpu: 'h100' } } };
  const config = kubernetesOptions.parse({ gpus, ...options });
  return buildPod({ ...SUBMISSION, ...changes }, { ...config, workerLabel: 'w1' });
}

const containersOf = (pod: ReturnType<typeof podOf>) =>
  Object.fromEntries((pod.spec?.containers ?? []).map((container) => [container.name, container]));

test('a pod has the rights that the restricted policy of Kubernetes allows', () => {
  const pod = podOf();
  expect(pod.spec).toMatchObject({
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    terminationGracePeriodSeconds: 40,
    securityContext: {
      runAsNonRoot: true,
      runAsUser: 1000,
      runAsGroup: 1000,
      fsGroup: 1000,
      seccompProfile: { type: 'RuntimeDefault' },
    },
  });
  for (const container of pod.spec?.containers ?? [])
    expect(container.securityContext).toMatchObject({
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
    });
  // A silent node must not make Kubernetes end or replace the pod.
  for (const key of ['node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable'])
    expect(pod.spec?.tolerations).toContainEqual({
      key,
      operator: 'Exists',
      effect: 'NoExecute',
    });
});

test('a pod gets the resources of the job, and its agent a little', () => {
  const { job, agent } = containersOf(podOf());
  const resources = { cpu: '7500m', memory: String(32 * 2 ** 30), 'nvidia.com/gpu': '2' };
  expect(job?.resources?.limits).toMatchObject(resources);
  expect(job?.resources?.requests).toMatchObject(resources);
  expect(job?.image).toBe('python:3.13');
  expect(podOf().spec?.nodeSelector).toEqual({ gpu: 'h100' });
  expect(agent?.image).toBe('node:26-slim');
  expect(agent?.resources?.requests).toEqual({ cpu: '50m', memory: String(64 * 2 ** 20) });
  const folders = Object.fromEntries(
    (job?.volumeMounts ?? []).map(({ name, mountPath, readOnly }) => [
      mountPath,
      { name, readOnly },
    ]),
  );
  expect(folders).toMatchObject({
    '/work': { name: 'work' },
    '/tmp': { name: 'tmp' },
    '/home/job': { name: 'home' },
    '/.loam': { name: 'loam', readOnly: true },
  });
  // The timeout of the agent comes first.
  expect(podOf().spec?.activeDeadlineSeconds).toBeGreaterThan(3_600 + 3_600);
});

test('the credential is only in a Secret that the pod owns, and only the agent has it', () => {
  const pod = podOf();
  expect(JSON.stringify(pod)).not.toContain('the-credential');
  const stored = { ...pod, metadata: { ...pod.metadata, uid: 'uid-of-the-pod' } };
  const secretName = pod.spec?.volumes?.find(({ name }) => name === 'token')?.secret?.secretName;
  expect(secretName).toMatch(/^loam-att-\w+-[0-9a-f]{8}$/);
  expect(buildSecret(SUBMISSION, stored)).toMatchObject({
    metadata: {
      name: secretName,
      ownerReferences: [{ kind: 'Pod', name: podName(ATTEMPT), uid: 'uid-of-the-pod' }],
    },
    stringData: { token: 'the-credential' },
  });
  // The Secret of an earlier pod of the attempt may have another credential.
  expect(podOf().spec?.volumes).not.toEqual(pod.spec?.volumes);
  const { job, agent } = containersOf(pod);
  const mounts = (container: typeof job) => container?.volumeMounts?.map(({ name }) => name);
  expect(mounts(agent)).toContain('token');
  expect(mounts(job)).not.toContain('token');
  expect(mounts(job)).not.toContain('agent');
});

test('names and labels are valid for any attempt and job', () => {
  expect(podName(ATTEMPT)).toBe('loam-att-01jz8m3q4nfc2v6rj0sxkw5e7t');
  const odd = ['att_1_2', 'att_1-2', `att_${'x'.repeat(100)}`, 'ATT', 'ä'].map(podName);
  expect(new Set(odd).size).toBe(odd.length);
  for (const name of odd) expect(name).toMatch(/^loam-[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?$/);
  const { metadata } = podOf({ queue: 'team-a' });
  expect(metadata).toMatchObject({
    labels: {
      'app.kubernetes.io/managed-by': 'loam',
      'loam/worker': 'w1',
      'loam/job': SUBMISSION.job.id,
      'kueue.x-k8s.io/queue-name': 'team-a',
    },
    annotations: {
      'loam/attempt-id': ATTEMPT,
      'loam/job-name': 'train it',
      'loam/namespace': 'ada',
    },
  });
});

test('the options of the cluster are in the pod', () => {
  const pod = podOf(
    {
      nodeSelector: { pool: 'jobs' },
      tolerations: [{ key: 'dedicated', value: 'loam', effect: 'NoSchedule' }, { key: 'spot' }],
      runtimeClass: 'gvisor',
      priorityClass: 'low',
      imagePullSecrets: ['registry'],
      defaultImage: 'debian:12',
    },
    { image: null },
  );
  expect(pod.spec).toMatchObject({
    nodeSelector: { pool: 'jobs', gpu: 'h100' },
    runtimeClassName: 'gvisor',
    priorityClassName: 'low',
    imagePullSecrets: [{ name: 'registry' }],
  });
  expect(pod.spec?.tolerations?.slice(2)).toEqual([
    { key: 'dedicated', operator: 'Equal', value: 'loam', effect: 'NoSchedule' },
    { key: 'spot', operator: 'Exists' },
  ]);
  expect(containersOf(pod).job?.image).toBe('debian:12');
  const root = podOf({ allowRoot: true });
  expect(root.spec?.securityContext).toEqual({
    fsGroup: 1000,
    seccompProfile: { type: 'RuntimeDefault' },
  });
  expect(containersOf(root).job?.securityContext?.capabilities).toEqual({ drop: ['ALL'] });
});

test('text for Kubernetes has no references that it would replace', () => {
  for (const container of podOf().spec?.containers ?? []) {
    const command = container.command?.at(-1) ?? '';
    expect(command.replaceAll('$$', '')).not.toContain('$');
    expect(command).not.toContain('the-credential');
  }
});

test('a field that the server drops is noticed', () => {
  const sent = podOf({ runtimeClass: 'gvisor' });
  const stored = structuredClone(sent);
  expect(findDroppedField(sent, stored)).toBeUndefined();
  // Defaults that the server adds are no difference.
  Object.assign(stored.spec ?? {}, { dnsPolicy: 'ClusterFirst', serviceAccountName: 'default' });
  stored.spec?.tolerations?.push({ key: 'more', operator: 'Exists' });
  expect(findDroppedField(sent, stored)).toBeUndefined();
  const without = (change: (spec: NonNullable<typeof stored.spec>) => void) => {
    const other = structuredClone(stored);
    if (other.spec) change(other.spec);
    return findDroppedField(sent, other);
  };
  expect(without((spec) => delete spec.securityContext?.seccompProfile)).toBe(
    'spec.securityContext.seccompProfile.type',
  );
  expect(without((spec) => delete spec.runtimeClassName)).toBe('spec.runtimeClassName');
  expect(without((spec) => void spec.tolerations?.shift())).toContain('spec.tolerations');
  expect(without((spec) => delete spec.containers[1]?.resources?.limits?.['nvidia.com/gpu'])).toBe(
    'spec.containers.job.limits.nvidia.com/gpu',
  );
});

test('the network policy blocks private networks, and lets the agent reach its server', () => {
  const options = {
    workerLabel: 'w1',
    agentUrl: 'http://loam.internal:3000',
    allow: ['10.9.0.1'],
  } as const;
  const { spec } = buildNetworkPolicy({ ...options, network: 'internet' }, ['10.1.2.3']);
  expect(spec).toMatchObject({
    podSelector: { matchLabels: { 'loam/worker': 'w1' } },
    policyTypes: ['Ingress', 'Egress'],
    ingress: [],
  });
  const internet = spec?.egress?.find(({ to }) => to?.some(({ ipBlock }) => ipBlock?.except));
  expect(internet?.to?.[0]?.ipBlock).toMatchObject({
    cidr: '0.0.0.0/0',
    except: expect.arrayContaining(['169.254.0.0/16', '10.0.0.0/8', '192.168.0.0/16']),
  });
  expect(internet?.to).toContainEqual({ ipBlock: { cidr: '10.9.0.1/32' } });
  expect(spec?.egress).toContainEqual({
    to: [{ ipBlock: { cidr: '10.1.2.3/32' } }],
    ports: [{ protocol: 'TCP', port: 3000 }],
  });
  const closed = buildNetworkPolicy({ ...options, network: 'none' }, []).spec;
  expect(JSON.stringify(closed?.egress)).not.toContain('0.0.0.0/0');
  // A rule without destinations would allow all of them; DNS is the only one.
  expect(closed?.egress?.filter(({ to }) => !to?.length)).toEqual([
    {
      ports: [
        { protocol: 'UDP', port: 53 },
        { protocol: 'TCP', port: 53 },
      ],
    },
  ]);
});

test('quantities of nodes', () => {
  expect(['4', '3920m', '16Gi', '16393244Ki', '1.5G', 'x'].map(parseQuantity)).toEqual([
    4,
    3.92,
    2 ** 34,
    16393244 * 1024,
    1.5e9,
    0,
  ]);
});

/** Values of variables, parsed as config.ts does. */
function readVariables(env: Partial<Record<keyof typeof KUBERNETES_VARIABLES, string>>) {
  const entries = Object.entries(KUBERNETES_VARIABLES).flatMap(([name, [fallback, , kind]]) => {
    const text = env[name as keyof typeof KUBERNETES_VARIABLES] || fallback;
    return text ? [[name, kind.parse(text)]] : [];
  });
  return readKubernetesConfig(Object.fromEntries(entries));
}

test('variables have the options of a cluster', () => {
  expect(readVariables({})).toMatchObject({
    agentImage: 'node:26-slim',
    defaultImage: 'buildpack-deps:bookworm-scm',
    allowRoot: false,
    gpus: {},
    maxJobs: 100,
  });
  expect(
    readVariables({
      LOAM_KUBERNETES_NODE_SELECTOR: 'pool=jobs,example.com/zone=a',
      LOAM_KUBERNETES_TOLERATIONS: 'dedicated=loam:NoSchedule,spot:NoExecute,any',
      LOAM_KUBERNETES_IMAGE_PULL_SECRETS: 'one,two',
      LOAM_KUBERNETES_GPUS:
        'H100-80GB:8?label=nvidia.com/gpu.product=H100,T4:4?resource=example.com/t4',
      LOAM_KUBERNETES_ALLOW_ROOT: 'on',
      LOAM_KUBERNETES_MAX_CPUS: '7.5',
      LOAM_KUBERNETES_MAX_JOBS: '5',
    }),
  ).toMatchObject({
    nodeSelector: { pool: 'jobs', 'example.com/zone': 'a' },
    tolerations: [
      { key: 'dedicated', value: 'loam', effect: 'NoSchedule' },
      { key: 'spot', effect: 'NoExecute' },
      { key: 'any' },
    ],
    imagePullSecrets: ['one', 'two'],
    gpus: {
      'H100-80GB': {
        max: 8,
        resource: 'nvidia.com/gpu',
        nodeSelector: { 'nvidia.com/gpu.product': 'H100' },
      },
      T4: { max: 4, resource: 'example.com/t4', nodeSelector: {} },
    },
    allowRoot: true,
    maxCpus: 7.5,
    maxJobs: 5,
  });
});

test.each([
  ['LOAM_KUBERNETES_NODE_SELECTOR', 'pool', /must be labels key=value/],
  ['LOAM_KUBERNETES_TOLERATIONS', 'a:Never', /NoSchedule/],
  ['LOAM_KUBERNETES_GPUS', 'H200_8GB:8', /must be model:number/],
  ['LOAM_KUBERNETES_GPUS', 'T4:1,T4:2', /must be model:number/],
  ['LOAM_KUBERNETES_GPUS', 'T4:4,L4:4', /needs a node label or a resource of its own/],
  ['LOAM_KUBERNETES_NAMESPACE', 'Jobs', /lower-case/],
  ['LOAM_KUBERNETES_MAX_CPUS', '0', /from 0.1/],
] as const)('%s=%s is refused', (name, value, why) => {
  expect(() => readVariables({ [name]: value })).toThrow(why);
});

test('a pod mounts the claims of volumes, and has links in the folders of the job', () => {
  const options = { ...kubernetesOptions.parse({}), workerLabel: 'w1' };
  const submission = { ...SUBMISSION, hardware: { ...SUBMISSION.hardware, gpu: 'none' } };
  const pod = buildPod(submission, options, [
    { claim: 'imagenet-pvc', to: '/data', readOnly: true, folder: null },
    { claim: 'models-pvc', to: '/work/models', readOnly: false, folder: 'ns_1' },
  ]);
  expect(pod.spec?.securityContext?.fsGroupChangePolicy).toBe('OnRootMismatch');
  expect(pod.spec?.volumes).toEqual(
    expect.arrayContaining([
      {
        name: 'volume-0',
        persistentVolumeClaim: { claimName: 'imagenet-pvc', readOnly: true },
      },
      { name: 'volume-1', persistentVolumeClaim: { claimName: 'models-pvc', readOnly: false } },
    ]),
  );
  const { job, agent } = containersOf(pod);
  expect(job?.volumeMounts).toEqual(
    expect.arrayContaining([
      { name: 'volume-0', mountPath: '/data', readOnly: true },
      { name: 'volume-1', mountPath: '/.loam-volumes/1', readOnly: false, subPath: 'ns_1' },
    ]),
  );
  // The agent has the credential of the attempt, and needs nothing of the volumes.
  expect(JSON.stringify(agent)).not.toContain('volume-');
  expect(podOf().spec?.securityContext?.fsGroupChangePolicy).toBeUndefined();
});
