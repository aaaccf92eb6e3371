/**
 * Options of a Kubernetes cluster. One cluster is configured by variables; a file that lists several clusters has the fields of
 * `kubernetesOptions`.
 */
import { z } from 'zod';
import { gpuModel, image, integer, oneOf, refuse } from './kinds.ts';

const LABEL_NAME = /^[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?$/;
const DNS_NAME = /^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$/;

/** A label key or a resource name: a name, with an optional DNS name and a slash before it. */
function isQualifiedName(text: string): boolean {
  const [name = '', prefix, ...more] = text.split('/').reverse();
  return (
    LABEL_NAME.test(name) && (prefix === undefined || DNS_NAME.test(prefix)) && more.length === 0
  );
}

function isLabelValue(text: string): boolean {
  return text === '' || LABEL_NAME.test(text);
}

const qualifiedName = z.string().refine(isQualifiedName, {
  error: 'must be a Kubernetes name, such as nvidia.com/gpu',
});

/** Name of an object in the cluster. */
const objectName = z
  .string()
  .regex(DNS_NAME, 'must be a Kubernetes name of lower-case letters, digits, hyphens and dots');

const labels = z.record(
  qualifiedName,
  z.string().refine(isLabelValue, 'must be a valid label value'),
);

const EFFECTS = ['NoSchedule', 'PreferNoSchedule', 'NoExecute'] as const;

const toleration = z.strictObject({
  key: qualifiedName,
  /** Unset: every value. */
  value: z.string().refine(isLabelValue, 'must be a valid label value').optional(),
  /** Unset: every effect. */
  effect: z.enum(EFFECTS, `must be one of ${EFFECTS.join(', ')}`).optional(),
});

/** What stands for a GPU model of the API. */
const gpu = z.strictObject({
  /** The most GPUs of this model that one node has. */
  max: z.number().int().min(1).max(64),
  resource: qualifiedName.default('nvidia.com/gpu'),
  /** Labels of the nodes with this model. */
  nodeSelector: labels.default({}),
});

/** Any recent Node with tar and mkfifo is enough. */
const DEFAULT_AGENT_IMAGE = 'node:26-slim';
/** The same as that of the Docker runner. */
const DEFAULT_JOB_IMAGE = 'buildpack-deps:bookworm-scm';
const DEFAULT_MAX_JOBS = 100;

/** The options of a cluster. */
export const kubernetesOptions = z
  .strictObject({
    /** Path of a kubeconfig file, or several separated by colons; unset: as kubectl finds it, or the pod's service account. */
    kubeconfig: z.string().optional(),
    /** Context of the kubeconfig; unset: the current one. */
    context: z.string().optional(),
    /** Namespace of the pods; unset: that of the context, or `default`. */
    namespace: objectName.optional(),
    /** LocalQueue of Kueue. */
    queue: objectName.optional(),
    agentImage: image.default(DEFAULT_AGENT_IMAGE),
    /** Image of jobs that name none. */
    defaultImage: image.default(DEFAULT_JOB_IMAGE),
    nodeSelector: labels.default({}),
    tolerations: z.array(toleration).default([]),
    runtimeClass: objectName.optional(),
    priorityClass: objectName.optional(),
    imagePullSecrets: z.array(objectName).default([]),
    /** Whether a job runs as the user of its image, which may be root; false: as user 1000. */
    allowRoot: z.boolean().default(false),
    /** A job without a GPU needs no entry. */
    gpus: z.record(gpuModel, gpu).default({}),
    /** The most that one job gets; unset: what the largest node has. */
    maxCpus: z.number().min(0.1).max(1_024).optional(),
    maxMemoryGb: z.number().min(0.125).max(65_536).optional(),
    /** The most jobs that are in the cluster at once, waiting or running. */
    maxJobs: z.number().int().min(1).max(10_000).default(DEFAULT_MAX_JOBS),
  })
  .superRefine(({ gpus }, ctx) => {
    const models = Object.entries(gpus);
    for (const [model, { resource, nodeSelector }] of models) {
      const isDistinct =
        Object.keys(nodeSelector).length > 0 ||
        models.every(([other, options]) => other === model || options.resource !== resource);
      if (!isDistinct)
        refuse(ctx, `${model} needs a node label or a resource of its own beside other models`);
    }
  });

export type KubernetesConfig = z.output<typeof kubernetesOptions>;

/* The forms in variables */

/** `key=value,key=value` */
function parseLabels(text: string, separator = ','): Record<string, string> | null {
  const parsed: Record<string, string> = {};
  for (const entry of text.split(separator)) {
    const [, key = '', value = ''] = /^([^=]+)=(.*)$/.exec(entry.trim()) ?? [];
    if (!isQualifiedName(key) || !isLabelValue(value) || key in parsed) return null;
    parsed[key] = value;
  }
  return parsed;
}

const labelList = z
  .string()
  .transform(
    (text, ctx) =>
      parseLabels(text) ??
      refuse(ctx, 'must be labels key=value, separated by commas, each key once'),
  );

/** As in `kubectl taint`: `key=value:Effect`, `key:Effect`, `key`. */
const tolerationList = z.string().transform((text, ctx) =>
  text.split(',').map((entry) => {
    const [, key, value, effect] = /^([^=:]+)(?:=([^:]*))?(?::(\w+))?$/.exec(entry.trim()) ?? [];
    const { data } = toleration.safeParse({
      key,
      ...(value !== undefined && { value }),
      ...(effect !== undefined && { effect }),
    });
    return (
      data ??
      refuse(
        ctx,
        `${JSON.stringify(entry)} must be key=value:effect, key:effect or key, with one of the effects ${EFFECTS.join(', ')}`,
      )
    );
  }),
);

const objectNames = z
  .string()
  .transform((text) => text.split(',').map((name) => name.trim()))
  .pipe(z.array(objectName));

const GPU_FORM =
  'must be model:number, such as H100-80GB:8, and may have after a ? resource=name and label=key=value, separated by &';

/** `H100-80GB:8?label=gpu=h100,T4:4?resource=example.com/t4` */
const gpuList = z.string().transform((text, ctx) => {
  const parsed: Record<string, z.input<typeof gpu>> = {};
  for (const entry of text.split(',').map((part) => part.trim())) {
    const [, model = '', max, query = ''] = /^([^:]+):([1-9]\d?)(?:\?(.*))?$/.exec(entry) ?? [];
    if (!gpuModel.safeParse(model).success || model in parsed)
      return refuse(ctx, `${JSON.stringify(entry)} ${GPU_FORM}`);
    const options: z.input<typeof gpu> = { max: Number(max) };
    for (const pair of query.split('&').filter(Boolean)) {
      const [, key = '', value = ''] = /^(\w+)=(.+)$/.exec(pair) ?? [];
      const label = key === 'label' ? parseLabels(value) : null;
      if (key === 'resource' && isQualifiedName(value)) options.resource = value;
      else if (label) options.nodeSelector = { ...options.nodeSelector, ...label };
      else return refuse(ctx, `${JSON.stringify(entry)} ${GPU_FORM}`);
    }
    parsed[model] = options;
  }
  return parsed;
});

function decimal(min: number, max: number) {
  const must = `must be a number from ${min} to ${max}`;
  return z
    .string()
    .regex(/^\d{1,6}(\.\d{1,3})?$/, must)
    .transform(Number)
    .pipe(z.number().min(min, must).max(max, must));
}

/** The variable of kubectl and the Kubernetes client. Same form as `VARIABLES` in config.ts. */
export const KUBERNETES_OWN_VARIABLES = {
  KUBECONFIG: [
    '',
    'kubeconfig file; unset: ~/.kube/config, or in a pod its service account',
    z.string().regex(/^[^\0]{1,3000}$/, 'must be the path of a file'),
  ],
} as const;

/** Part of `VARIABLES` in config.ts. */
export const KUBERNETES_VARIABLES = {
  LOAM_KUBERNETES_CONTEXT: [
    '',
    'context of the kubeconfig; unset: the current one',
    z.string().regex(/^[^\s]{1,253}$/, 'must be the name of a context'),
  ],
  LOAM_KUBERNETES_NAMESPACE: [
    '',
    'namespace of the pods of jobs; unset: that of the context',
    objectName,
  ],
  LOAM_KUBERNETES_QUEUE: ['', "Kueue's LocalQueue for the pods of jobs", objectName],
  LOAM_KUBERNETES_AGENT_IMAGE: [
    DEFAULT_AGENT_IMAGE,
    'image of the agent beside each job; it needs Node 22 or newer and tar',
    image,
  ],
  LOAM_KUBERNETES_DEFAULT_IMAGE: [DEFAULT_JOB_IMAGE, 'image of jobs that name none', image],
  LOAM_KUBERNETES_NODE_SELECTOR: [
    '',
    'labels of the nodes for jobs: key=value, separated by commas',
    labelList,
  ],
  LOAM_KUBERNETES_TOLERATIONS: [
    '',
    'taints that jobs tolerate: key=value:effect, key:effect or key, separated by commas',
    tolerationList,
  ],
  LOAM_KUBERNETES_RUNTIME_CLASS: ['', 'RuntimeClass of the pods, such as gvisor', objectName],
  LOAM_KUBERNETES_PRIORITY_CLASS: ['', 'PriorityClass of the pods', objectName],
  LOAM_KUBERNETES_IMAGE_PULL_SECRETS: [
    '',
    'names of Secrets with registry logins, separated by commas',
    objectNames,
  ],
  LOAM_KUBERNETES_ALLOW_ROOT: [
    'off',
    'on: a job runs as the user of its image, which may be root; off: as user 1000',
    oneOf('on', 'off'),
  ],
  LOAM_KUBERNETES_GPUS: [
    '',
    'the most GPUs of a node for each model, with its resource and node label: H100-80GB:8?label=gpu=h100,T4:4?resource=example.com/t4&label=gpu=t4',
    gpuList,
  ],
  LOAM_KUBERNETES_MAX_CPUS: [
    '',
    'the most vCPUs of a job; unset: what the largest node has',
    decimal(0.1, 1_024),
  ],
  LOAM_KUBERNETES_MAX_MEMORY_GB: [
    '',
    'the most memory of a job in GB; unset: what the largest node has',
    decimal(0.125, 65_536),
  ],
  LOAM_KUBERNETES_MAX_JOBS: [
    String(DEFAULT_MAX_JOBS),
    'maximum number of jobs in the cluster at once, waiting or running',
    integer(1, 10_000),
  ],
} as const satisfies Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;

type Table = typeof KUBERNETES_VARIABLES & typeof KUBERNETES_OWN_VARIABLES;
type Values = {
  [N in keyof Table]: z.output<Table[N][2]> | (Table[N][0] extends '' ? undefined : never);
};

/** @throws ZodError when variables contradict each other */
export function readKubernetesConfig(values: Values): KubernetesConfig {
  return kubernetesOptions.parse({
    kubeconfig: values.KUBECONFIG,
    context: values.LOAM_KUBERNETES_CONTEXT,
    namespace: values.LOAM_KUBERNETES_NAMESPACE,
    queue: values.LOAM_KUBERNETES_QUEUE,
    agentImage: values.LOAM_KUBERNETES_AGENT_IMAGE,
    defaultImage: values.LOAM_KUBERNETES_DEFAULT_IMAGE,
    nodeSelector: values.LOAM_KUBERNETES_NODE_SELECTOR,
    tolerations: values.LOAM_KUBERNETES_TOLERATIONS,
    runtimeClass: values.LOAM_KUBERNETES_RUNTIME_CLASS,
    priorityClass: values.LOAM_KUBERNETES_PRIORITY_CLASS,
    imagePullSecrets: values.LOAM_KUBERNETES_IMAGE_PULL_SECRETS,
    allowRoot: values.LOAM_KUBERNETES_ALLOW_ROOT === 'on',
    gpus: values.LOAM_KUBERNETES_GPUS,
    maxCpus: values.LOAM_KUBERNETES_MAX_CPUS,
    maxMemoryGb: values.LOAM_KUBERNETES_MAX_MEMORY_GB,
    maxJobs: values.LOAM_KUBERNETES_MAX_JOBS,
  });
}
