/**
 * The pod of an attempt: an agent beside the container of the job. A pod by itself is never started a second time, which a
 * `batch/v1` Job may do when its pod is deleted, whatever its `backoffLimit`.
 *
 * The command, its environment and its secrets are not in the pod, which everyone who may list pods can read: the agent has
 * them from Loam. Its credential is in a Secret that belongs to the pod and is deleted with it.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { V1Pod, V1Secret, V1Volume, V1VolumeMount } from '@kubernetes/client-node';
import type { KubernetesConfig } from '../../base/config/kubernetes.ts';
import { ACCOUNT_FILES, accountFiles } from '../account-files.ts';
import { buildBootstrap } from '../agent/bootstrap.ts';
import type { Submission } from '../agent/engine.ts';
import { SHARED_DIR } from '../container/shared-folder.ts';
import { buildWrapper } from '../container/wrapper.ts';
import { MOUNTS, WORKING_DIR } from '../runner.ts';
import { findOwnFolder } from '../supervisor/mounted-folders.ts';

export const JOB_CONTAINER = 'job';
export const AGENT_CONTAINER = 'agent';

export const LABEL_MANAGED = 'app.kubernetes.io/managed-by';
export const LABEL_WORKER = 'loam/worker';
const LABEL_ATTEMPT = 'loam/attempt';
const LABEL_JOB = 'loam/job';
/** The label of Kueue, with the name of a LocalQueue. */
const LABEL_QUEUE = 'kueue.x-k8s.io/queue-name';
/** Annotations, because their values may be any text. */
const ANNOTATION_ATTEMPT = 'loam/attempt-id';
const ANNOTATION_JOB = 'loam/job-name';
const ANNOTATION_NAMESPACE = 'loam/namespace';
/** Followed by the name of a file (`../account-files.ts`), which the pod mounts. */
const ANNOTATION_ACCOUNT = 'loam/etc-';
const ACCOUNT_VOLUME = 'account';

/** User and group of both containers, unless the configuration allows root. */
const JOB_UID = 1_000;
/**
 * Time between SIGTERM and SIGKILL of the kubelet. Both containers get SIGTERM at once; the agent passes it on, ends the
 * command after its own 30 seconds, and reports that.
 */
export const POD_GRACE_S = 40;
/** What the agent uses beside the job. Its log is on disk; the limit of CPU lets it copy a million lines in seconds. */
export const AGENT_REQUESTS = { cpus: 0.05, memoryBytes: 64 * 2 ** 20 };
const AGENT_LIMITS = { cpus: 1, memoryBytes: 192 * 2 ** 20 };
/** The agent ends a job that exceeds its disk, before the kubelet evicts the pod at this much more. */
const DISK_MARGIN = { share: 0.1, bytes: 2 ** 30 };
/**
 * The kubelet's own limit counts from the placement of the pod, and leaves no exit code. It ends a pod whose agent and server
 * are both gone. Added to the timeout: pulling images, the checkout, and the hour for which an agent waits for a server.
 */
const DEADLINE_MARGIN_S = 4 * 3_600;

/** Folders in the container of the agent. */
const AGENT_DIR = '/agent';
const JOB_DIR = '/job';
const TOKEN_DIR = '/loam-token';
const TOKEN = 'token';

export type PodOptions = Omit<KubernetesConfig, 'kubeconfig' | 'context' | 'namespace'> & {
  /** Label value that is common to all pods of this worker. */
  workerLabel: string;
};

/** A label value for any id of a worker. */
export function workerLabel(worker: string): string {
  return hash(worker).slice(0, 16);
}

/** Name of the pod and of its Secret: at most 63 lower-case letters, digits and hyphens. */
export function podName(attempt: string): string {
  if (/^att_[0-9a-z]{26}$/.test(attempt)) return `loam-${attempt.replace('_', '-')}`;
  const readable = attempt.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  return ['loam', readable.join('-').slice(0, 40), hash(attempt).slice(0, 10)]
    .filter(Boolean)
    .join('-');
}

function hash(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** The attempt of a pod of this module; undefined for other pods. */
export function attemptOf({ metadata }: V1Pod): string | undefined {
  return metadata?.annotations?.[ANNOTATION_ATTEMPT];
}

/** A volume of the job, with its claim. */
export type ClaimMount = { claim: string; to: string; readOnly: boolean; folder: string | null };

/**
 * Where the container of the job has a volume. In the folders of the job, the agent makes a link to it: the checkout may have
 * something at its path, and is unpacked while the container starts.
 */
export function mountPathOf(to: string, index: number): string {
  return findOwnFolder(to) ? `/.loam-volumes/${index}` : to;
}

export function buildPod(
  submission: Submission,
  options: PodOptions,
  claims: readonly ClaimMount[] = [],
): V1Pod {
  const { attempt, job, hardware } = submission;
  const gpu = findGpu(submission, options);
  const diskBytes = hardware.diskGb * 2 ** 30;
  const podDiskBytes = Math.ceil(diskBytes * (1 + DISK_MARGIN.share)) + DISK_MARGIN.bytes;
  const account = options.allowRoot ? [] : Object.entries(accountFiles(JOB_UID));
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: podName(attempt),
      labels: {
        [LABEL_MANAGED]: 'loam',
        [LABEL_WORKER]: options.workerLabel,
        [LABEL_ATTEMPT]: podName(attempt).slice('loam-'.length),
        ...(/^[\w.-]{0,62}\w$/.test(job.id) && { [LABEL_JOB]: job.id }),
        ...(options.queue && { [LABEL_QUEUE]: options.queue }),
      },
      annotations: {
        [ANNOTATION_ATTEMPT]: attempt,
        [ANNOTATION_JOB]: job.name,
        [ANNOTATION_NAMESPACE]: job.namespace,
        ...Object.fromEntries(account.map(([name, text]) => [ANNOTATION_ACCOUNT + name, text])),
      },
    },
    spec: {
      restartPolicy: 'Never',
      terminationGracePeriodSeconds: POD_GRACE_S,
      activeDeadlineSeconds: Math.ceil(submission.timeoutMs / 1000) + DEADLINE_MARGIN_S,
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      // Without a limit of time, so that a silent node does not end its pods: the job may go on there, and its agent reports.
      tolerations: [
        ...['not-ready', 'unreachable'].map((taint) => ({
          key: `node.kubernetes.io/${taint}`,
          operator: 'Exists',
          effect: 'NoExecute',
        })),
        ...options.tolerations.map(({ key, value, effect }) => ({
          key,
          operator: value === undefined ? 'Exists' : 'Equal',
          ...(value !== undefined && { value }),
          ...(effect && { effect }),
        })),
      ],
      ...(Object.keys({ ...options.nodeSelector, ...gpu?.nodeSelector }).length > 0 && {
        nodeSelector: { ...options.nodeSelector, ...gpu?.nodeSelector },
      }),
      ...(options.runtimeClass && { runtimeClassName: options.runtimeClass }),
      ...(options.priorityClass && { priorityClassName: options.priorityClass }),
      ...(options.imagePullSecrets.length > 0 && {
        imagePullSecrets: options.imagePullSecrets.map((name) => ({ name })),
      }),
      securityContext: {
        // Makes the volumes writable, and the credential readable, for a user who is not root.
        fsGroup: JOB_UID,
        // Otherwise each start would change the group of all files in the volumes.
        ...(claims.length > 0 && { fsGroupChangePolicy: 'OnRootMismatch' }),
        seccompProfile: { type: 'RuntimeDefault' },
        ...(!options.allowRoot && {
          runAsNonRoot: true,
          runAsUser: JOB_UID,
          runAsGroup: JOB_UID,
        }),
      },
      // The kubelet starts the containers in this order, so the agent claims the attempt while the job's image is pulled.
      containers: [
        buildAgentContainer(submission, options),
        buildJobContainer(submission, options, podDiskBytes, claims),
      ],
      volumes: [...buildVolumes(submission, options, podDiskBytes), ...buildClaims(claims)],
    },
  };
}

function buildAgentContainer({ agent, attempt }: Submission, options: PodOptions) {
  const { agentImage, allowRoot } = options;
  const script = buildBootstrap({
    url: agent.url,
    attempt,
    expressions: {
      token: `(await import('node:fs')).readFileSync('${TOKEN_DIR}/${TOKEN}', 'utf8')`,
      dir: `'${AGENT_DIR}'`,
      jobDir: `'${JOB_DIR}'`,
      sharedDir: `'${SHARED_DIR}'`,
      node: 'process.env.NODE_NAME',
    },
  });
  const folders = Object.keys(MOUNTS).map((name) => ({ name, mountPath: `${JOB_DIR}/${name}` }));
  return {
    name: AGENT_CONTAINER,
    image: agentImage,
    command: ['node', '--input-type=module', '--eval', escapeExpansion(script)],
    workingDir: AGENT_DIR,
    // The end of its log, if it fails: the reason of an agent that cannot start.
    terminationMessagePolicy: 'FallbackToLogsOnError',
    env: [
      { name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } },
      { name: 'HOME', value: AGENT_DIR },
      { name: 'TMPDIR', value: AGENT_DIR },
    ],
    resources: {
      requests: toResources(AGENT_REQUESTS),
      limits: toResources(AGENT_LIMITS),
    },
    securityContext: {
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      // The files of a job that runs as any user must be readable for artifacts.
      ...(allowRoot && { runAsUser: 0 }),
      capabilities: { drop: ['ALL'], ...(allowRoot && { add: ['DAC_OVERRIDE', 'FOWNER'] }) },
    },
    volumeMounts: [
      ...folders,
      { name: 'loam', mountPath: SHARED_DIR },
      { name: 'agent', mountPath: AGENT_DIR },
      { name: TOKEN, mountPath: TOKEN_DIR, readOnly: true },
    ],
  };
}

function buildJobContainer(
  submission: Submission,
  options: PodOptions,
  diskBytes: number,
  claims: readonly ClaimMount[],
) {
  const { image, cpus, memoryBytes } = submission;
  const gpu = findGpu(submission, options);
  const gpus = gpu && { [gpu.resource]: String(submission.hardware.gpuCount) };
  const mounts: V1VolumeMount[] = [
    ...Object.entries(MOUNTS).map(([name, mountPath]) => ({ name, mountPath })),
    { name: 'loam', mountPath: SHARED_DIR, readOnly: true },
    { name: 'shm', mountPath: '/dev/shm' },
    ...(options.allowRoot ? [] : ACCOUNT_FILES).map((name) => ({
      name: ACCOUNT_VOLUME,
      subPath: name,
      mountPath: `/etc/${name}`,
      readOnly: true,
    })),
    ...claims.map(({ to, readOnly, folder }, index) => ({
      name: claimVolume(index),
      mountPath: mountPathOf(to, index),
      readOnly,
      ...(folder !== null && { subPath: folder }),
    })),
  ];
  return {
    name: JOB_CONTAINER,
    image: image ?? options.defaultImage,
    command: ['/bin/sh', '-c', escapeExpansion(buildWrapper())],
    workingDir: WORKING_DIR,
    resources: {
      requests: {
        ...toResources({ cpus, memoryBytes }),
        ...gpus,
        // The limit counts files outside the job's folders too. Without a request it would be reserved, which no other
        // runner does.
        'ephemeral-storage': '0',
      },
      limits: {
        ...toResources({ cpus, memoryBytes }),
        ...gpus,
        'ephemeral-storage': String(diskBytes),
      },
    },
    securityContext: {
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
    },
    volumeMounts: mounts,
  };
}

function buildVolumes(
  { attempt, memoryBytes }: Submission,
  { allowRoot }: PodOptions,
  diskBytes: number,
): V1Volume[] {
  const sizeLimit = String(diskBytes);
  return [
    ...Object.keys(MOUNTS).map((name) => ({ name, emptyDir: { sizeLimit } })),
    { name: 'agent', emptyDir: {} },
    { name: 'loam', emptyDir: { medium: 'Memory', sizeLimit: '4Mi' } },
    // The default of 64 MB is too small for programs that share tensors. It counts towards the memory of the job.
    {
      name: 'shm',
      emptyDir: { medium: 'Memory', sizeLimit: String(Math.floor(memoryBytes / 2)) },
    },
    ...(allowRoot ? [] : [accountVolume]),
    { name: TOKEN, secret: { secretName: newSecretName(attempt), defaultMode: 0o400 } },
  ];
}

function buildClaims(claims: readonly ClaimMount[]): V1Volume[] {
  return claims.map(({ claim: claimName, readOnly }, index) => ({
    name: claimVolume(index),
    persistentVolumeClaim: { claimName, readOnly },
  }));
}

function claimVolume(index: number): string {
  return `volume-${index}`;
}

const accountVolume: V1Volume = {
  name: ACCOUNT_VOLUME,
  downwardAPI: {
    items: ACCOUNT_FILES.map((path) => ({
      path,
      fieldRef: { fieldPath: `metadata.annotations['${ANNOTATION_ACCOUNT}${path}']` },
    })),
  },
};

/** A name that no earlier pod of the attempt had, whose Secret may still exist with another credential. */
function newSecretName(attempt: string): string {
  return `${podName(attempt)}-${randomBytes(4).toString('hex')}`;
}

/** The Secret that the pod names. It is deleted with the pod, by Kubernetes. */
export function buildSecret({ attempt, agent }: Submission, pod: V1Pod): V1Secret {
  const name = podName(attempt);
  const volume = pod.spec?.volumes?.find((one) => one.name === TOKEN);
  return {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: {
      name: volume?.secret?.secretName ?? name,
      labels: pod.metadata?.labels ?? {},
      ownerReferences: [{ apiVersion: 'v1', kind: 'Pod', name, uid: pod.metadata?.uid ?? '' }],
    },
    type: 'Opaque',
    immutable: true,
    stringData: { [TOKEN]: agent.token },
  };
}

function findGpu({ hardware }: Submission, { gpus }: PodOptions) {
  return Object.entries(gpus).find(([model]) => model === hardware.gpu)?.[1];
}

function toResources({ cpus, memoryBytes }: { cpus: number; memoryBytes: number }) {
  return { cpu: `${Math.floor(cpus * 1000)}m`, memory: String(Math.floor(memoryBytes)) };
}

/** Kubernetes replaces `$(NAME)` in commands, and `$$` by `$`. */
function escapeExpansion(text: string): string {
  return text.replaceAll('$', '$$$$');
}

/**
 * Finds a field that the API server has dropped, as a server does with fields that are newer than itself. Only the fields are
 * compared without which a pod has more rights, or would run elsewhere.
 * @returns the path of the field; undefined: all are there
 */
export function findDroppedField(sent: V1Pod, stored: V1Pod): string | undefined {
  const relevant = ({ spec }: V1Pod) => ({
    automountServiceAccountToken: spec?.automountServiceAccountToken,
    runtimeClassName: spec?.runtimeClassName,
    priorityClassName: spec?.priorityClassName,
    nodeSelector: spec?.nodeSelector,
    securityContext: spec?.securityContext,
    tolerations: Object.fromEntries(
      (spec?.tolerations ?? []).map(({ key, value, effect }) => [
        `${key}=${value ?? ''}:${effect ?? ''}`,
        true,
      ]),
    ),
    containers: Object.fromEntries(
      (spec?.containers ?? []).map(({ name, securityContext, resources }) => [
        name,
        { securityContext, limits: Object.keys(resources?.limits ?? {}) },
      ]),
    ),
  });
  return findMissing(relevant(sent), relevant(stored), 'spec');
}

function findMissing(sent: unknown, stored: unknown, path: string): string | undefined {
  if (sent === undefined) return undefined;
  if (Array.isArray(sent)) {
    const found = Array.isArray(stored) ? stored : [];
    const missing = sent.find((value) => !found.includes(value));
    return missing === undefined ? undefined : `${path}.${missing}`;
  }
  if (typeof sent !== 'object' || sent === null) return sent === stored ? undefined : path;
  for (const [key, value] of Object.entries(sent)) {
    const missing = findMissing(
      value,
      (stored as Record<string, unknown>)?.[key],
      `${path}.${key}`,
    );
    if (missing !== undefined) return missing;
  }
  return undefined;
}
