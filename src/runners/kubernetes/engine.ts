/**
 * Jobs on a Kubernetes cluster: a pod for each attempt. The pods are watched, never polled. A pod says where its attempt is and
 * when it has certainly ended; everything else comes from the agent in it.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { V1Pod } from '@kubernetes/client-node';
import { type Config, ConfigError } from '../../base/config/config.ts';
import type { KubernetesConfig } from '../../base/config/kubernetes.ts';
import type { Logger } from '../../base/log.ts';
import type { EngineState, SharingEngine, Submission } from '../agent/engine.ts';
import type { AgentVolume } from '../agent/protocol.ts';
import { type NetworkMode, RunnerUnavailable, Unstartable, type VolumeMount } from '../runner.ts';
import { findOwnFolder } from '../supervisor/mounted-folders.ts';
import { ApiError, connectToCluster, type KubernetesApi } from './api.ts';
import { Attempts } from './attempts.ts';
import { ensureNetworkPolicy } from './network-policy.ts';
import { isNodeReady, type NodeSize, readLargestNode } from './nodes.ts';
import { describeMissing, findMissingPermissions, isPermissionRefusal } from './permissions.ts';
import {
  attemptOf,
  buildPod,
  buildSecret,
  type ClaimMount,
  findDroppedField,
  mountPathOf,
  type PodOptions,
  podName,
  workerLabel,
} from './pod.ts';
import { isBeingCreated, isUnsupervised, type PodView } from './pod-state.ts';
import { listPods, type PodReference, PodWatch, referenceTo, trimPod } from './pod-watch.ts';

/** How long to wait for the first answer of the API server. */
const OPEN_TIMEOUT_MS = 15_000;
/** Grace period of pods whose job must end now: with 0, the pod would vanish before its processes have ended. */
const KILL_GRACE_S = 1;
/** A pod that is being created for this long is explained by its events. */
const CREATION_MS = 30_000;
const RETRY_MS = 5_000;
/** How often missing permissions are looked up again. */
const PERMISSIONS_MS = 10_000;
/** Before the first answer. */
const NO_ANSWER = 'it has not answered yet';

export type KubernetesEngineOptions = {
  config: KubernetesConfig;
  /** Distinguishes the pods of this worker from those of other workers; the same after a restart. */
  worker: string;
  /** Base URL at which pods reach this worker. */
  agentUrl: string;
  /** Default: `internet`. */
  network?: NetworkMode | undefined;
  /** Non-public IPv4 networks that jobs may reach. */
  allow?: readonly string[];
  /** The volumes with their claims; unset: none. */
  volumes?: Config['volumes'];
  log: Logger;
};

/**
 * Returns also while the API server does not answer. Then the capacity is zero until it does.
 * @throws ConfigError when the cluster cannot be used as it is configured
 */
export async function openKubernetesEngine(
  options: KubernetesEngineOptions,
): Promise<SharingEngine> {
  const engine = new KubernetesEngine(options, connectToCluster(options.config));
  await engine.start();
  return engine;
}

class KubernetesEngine implements SharingEngine {
  readonly gpuSetting = 'LOAM_KUBERNETES_GPUS';
  readonly title = 'Kubernetes';
  readonly #options: KubernetesEngineOptions;
  readonly #api: KubernetesApi;
  readonly #podOptions: PodOptions;
  readonly #attempts = new Attempts();
  /** Names of pods that were removed and may still exist. */
  readonly #removed = new Set<string>();
  /** Pods that are being ended or explained, with the timer of the next step. */
  readonly #steps = new Map<string, NodeJS.Timeout>();
  readonly #watch: PodWatch;
  /** Settles after the first answer, or failure. */
  readonly #opened = Promise.withResolvers<void>();
  /** Undefined until the server has answered once. */
  #largest: NodeSize | undefined;
  #failure: string | undefined = NO_ANSWER;
  #isPrepared = false;
  #permissionsTimer: NodeJS.Timeout | undefined;

  constructor(options: KubernetesEngineOptions, api: KubernetesApi) {
    const { config, worker } = options;
    this.#options = options;
    this.#api = api;
    this.#podOptions = { ...config, workerLabel: workerLabel(worker) };
    this.#watch = new PodWatch({
      api,
      workerLabel: this.#podOptions.workerLabel,
      events: {
        onPod: (pod) => this.#onPod(pod),
        onDeleted: (pod, last) => this.#onDeleted(pod, last),
        onConnected: () => void this.#onConnected(),
        onError: (error) => void this.#onError(error),
      },
    });
  }

  /** @throws ConfigError */
  async start(): Promise<void> {
    this.#opened.promise.catch(() => {});
    this.#watch.start();
    await Promise.race([
      this.#opened.promise,
      delay(OPEN_TIMEOUT_MS, undefined, { ref: false }),
    ]).catch(async (error) => {
      await this[Symbol.asyncDispose]();
      throw error;
    });
  }

  get capacity() {
    const { maxCpus, maxMemoryGb, gpus } = this.#options.config;
    const memoryBytes = maxMemoryGb === undefined ? undefined : maxMemoryGb * 2 ** 30;
    return {
      cpus: maxCpus ?? this.#largest?.cpus ?? 0,
      memoryBytes: memoryBytes ?? this.#largest?.memoryBytes ?? 0,
      gpus: Object.fromEntries(Object.entries(gpus).map(([model, { max }]) => [model, max])),
      withImage: true,
      withoutImage: true,
      volumes: (this.#options.volumes?.current ?? []).flatMap(({ name, claim }) =>
        claim ? [name] : [],
      ),
    };
  }

  get unavailableReason(): string | undefined {
    return this.#failure;
  }

  async submit(submission: Submission): Promise<void> {
    const { attempt } = submission;
    const { namespace } = this.#api;
    const sent = buildPod(submission, this.#podOptions, this.#findClaims(submission));
    const pod = await this.#createPod(sent, attempt);
    const dropped = findDroppedField(sent, pod);
    if (dropped !== undefined) {
      await this.#deletePod(podName(attempt), KILL_GRACE_S);
      throw new Unstartable(
        `Kubernetes ignores ${dropped} of the pod, so the job cannot run as it is configured. The cluster needs a newer version, or its admission webhooks keep the field out.`,
      );
    }
    try {
      await this.#api.core((core) =>
        core.createNamespacedSecret({ namespace, body: buildSecret(submission, pod) }),
      );
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // It is the Secret of an earlier call for the same pod.
      if (error.reason !== 'AlreadyExists') {
        await this.#deletePod(podName(attempt), KILL_GRACE_S);
        throw await this.#toSubmitError(error);
      }
    }
    this.#removed.delete(podName(attempt));
    // Unless the watch knows the pod already. It may be behind, at an earlier pod of the attempt.
    if (this.#attempts.pod(attempt)?.metadata?.uid !== pod.metadata?.uid) {
      this.#attempts.forget(attempt);
      this.#onPod(trimPod(pod));
    }
  }

  /** The pod mounts all volumes; the agent links those in the folders of the job. */
  placeVolumes(mounts: readonly VolumeMount[]): AgentVolume[] {
    return mounts.flatMap(({ volume, to, readOnly }, index) =>
      findOwnFolder(to)
        ? [{ volume, from: mountPathOf(to, index), to, readOnly, folder: null }]
        : [],
    );
  }

  /** @throws Unstartable */
  #findClaims({ mounts = [] }: Submission): ClaimMount[] {
    return mounts.map(({ volume, to, readOnly, folder }) => {
      const claim = this.#options.volumes?.find(volume)?.claim;
      if (!claim) throw new Unstartable(`Kubernetes does not have the volume ${volume} here.`);
      return { claim, to, readOnly, folder };
    });
  }

  /** The pod of the attempt: a new one, or that of an earlier call. */
  async #createPod(body: V1Pod, attempt: string): Promise<V1Pod> {
    const { namespace } = this.#api;
    try {
      return await this.#api.core((core) => core.createNamespacedPod({ namespace, body }));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.reason !== 'AlreadyExists') throw await this.#toSubmitError(error);
    }
    const name = podName(attempt);
    const existing = await this.#api
      .core((core) => core.readNamespacedPod({ namespace, name }))
      .catch(async (error) => {
        if (!(error instanceof ApiError)) throw error;
        throw (await this.#noteRefusal(error)) ?? new RunnerUnavailable(error.message);
      });
    if (attemptOf(existing) !== attempt)
      throw new Unstartable(
        `The namespace ${namespace} of the cluster has a pod ${name} that is not Loam's. Delete it.`,
      );
    if (existing.metadata?.deletionTimestamp)
      throw new RunnerUnavailable(`the earlier pod ${name} has not ended yet`);
    return existing;
  }

  state(attempt: string): EngineState {
    return this.#attempts.state(attempt);
  }

  nextChange(attempt: string, signal: AbortSignal): Promise<void> {
    return this.#attempts.nextChange(attempt, signal);
  }

  describe(attempt: string): { node: string; inspect: string } | undefined {
    const node = this.#attempts.pod(attempt)?.spec?.nodeName;
    const inspect = `kubectl -n ${this.#api.namespace} describe pod ${podName(attempt)}`;
    return node ? { node, inspect } : undefined;
  }

  async remove(attempt: string, { hasEnded = false } = {}): Promise<void> {
    const name = podName(attempt);
    const existed = await this.#deletePod(name, hasEnded ? undefined : KILL_GRACE_S);
    if (existed) this.#removed.add(name);
    this.#cancelStep(name);
    this.#attempts.forget(attempt);
  }

  /** Pods that are being deleted are left out: Kubernetes has accepted their end. */
  async list(): Promise<string[]> {
    const attempts: string[] = [];
    const options = { api: this.#api, workerLabel: this.#podOptions.workerLabel };
    await listPods(options, (pod) => {
      const attempt = attemptOf(pod);
      if (attempt !== undefined && !pod.metadata?.deletionTimestamp) attempts.push(attempt);
    });
    return attempts;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#permissionsTimer);
    for (const name of [...this.#steps.keys()]) this.#cancelStep(name);
    await Promise.all([this.#watch[Symbol.asyncDispose](), this.#api[Symbol.asyncDispose]()]);
    this.#attempts[Symbol.dispose]();
  }

  /* The connection */

  /** Never rejects. */
  async #onConnected(): Promise<void> {
    try {
      this.#isPrepared ||= await this.#prepare();
      this.#opened.resolve();
      if (!this.#isPrepared) return;
      if (this.#failure !== undefined && this.#failure !== NO_ANSWER)
        this.#options.log.info('Kubernetes takes jobs again');
      this.#failure = undefined;
    } catch (error) {
      await this.#onError(error as Error);
    }
  }

  /** Never rejects. */
  async #onError(error: Error): Promise<void> {
    const refusal = error instanceof ApiError ? await this.#noteRefusal(error) : undefined;
    // Before the first answer the operator is at hand, who can mend the configuration.
    if (error instanceof ApiError && !refusal)
      this.#opened.reject(
        new ConfigError(`Kubernetes refuses a request of Loam: ${error.message}`),
      );
    if (!refusal) this.#fail(error.message);
    this.#opened.resolve();
  }

  #fail(reason: string): void {
    if (this.#failure !== reason) this.#options.log.warn(`Kubernetes takes no jobs: ${reason}`);
    this.#failure = reason;
  }

  /**
   * If a permission is missing, the cluster takes no jobs until the operator has granted it.
   * @returns undefined if the refusal has another reason. Never rejects
   */
  async #noteRefusal(error: ApiError): Promise<RunnerUnavailable | undefined> {
    if (error.status !== 403) return undefined;
    // Without an answer, the text of the refusal decides.
    const missing = await this.#findMissing().catch(() => undefined);
    if (missing?.required.length) this.#noteMissing(describeMissing(missing.required, this.#api));
    else if (isPermissionRefusal(error)) this.#noteMissing(error.message);
    else return undefined;
    return new RunnerUnavailable(this.#failure);
  }

  #noteMissing(reason: string): void {
    this.#isPrepared = false;
    this.#fail(reason);
    clearTimeout(this.#permissionsTimer);
    this.#permissionsTimer = setTimeout(() => void this.#onConnected(), PERMISSIONS_MS).unref();
  }

  #findMissing() {
    const { config, network } = this.#options;
    return findMissingPermissions(this.#api, { config, hasNetworkPolicy: network !== 'host' });
  }

  /**
   * Checks the permissions, reads what does not change, and creates the policy for the network.
   * @returns false if a permission is missing
   */
  async #prepare(): Promise<boolean> {
    const { config, agentUrl, network = 'internet', allow = [], log } = this.#options;
    const { required, optional } = await this.#findMissing();
    if (required.length > 0) {
      this.#noteMissing(describeMissing(required, this.#api));
      return false;
    }
    for (const permission of optional)
      log.warn(`Kubernetes: ${describeMissing([permission], this.#api)}: ${permission.without}`);
    this.#largest ??= await this.#readLargestNode(config);
    const mayCreatePolicy = !optional.some(({ resource }) => resource === 'networkpolicies');
    if (network === 'host' || !mayCreatePolicy) return true;
    try {
      const { workerLabel } = this.#podOptions;
      await ensureNetworkPolicy(this.#api, { workerLabel, agentUrl, network, allow });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      log.warn(
        `Jobs in Kubernetes may reach private networks: Loam cannot create a NetworkPolicy (${error.message})`,
      );
    }
    return true;
  }

  async #readLargestNode({
    nodeSelector,
    maxCpus,
    maxMemoryGb,
  }: KubernetesConfig): Promise<NodeSize | undefined> {
    if (maxCpus !== undefined && maxMemoryGb !== undefined) return undefined;
    const largest = await readLargestNode(this.#api, nodeSelector);
    if (largest) return largest;
    throw new ApiError(
      403,
      'Forbidden',
      'Loam may not list the nodes. Allow it, or set LOAM_KUBERNETES_MAX_CPUS and LOAM_KUBERNETES_MAX_MEMORY_GB',
    );
  }

  /* The pods */

  #onPod(pod: PodView): void {
    const attempt = attemptOf(pod);
    const { name, uid } = referenceTo(pod);
    if (attempt === undefined || this.#removed.has(name)) return;
    const known = this.#attempts.pod(attempt)?.metadata?.uid;
    if (known !== undefined && known !== uid) return;
    this.#attempts.update(attempt, pod, false);
    const isEnding = pod.metadata?.deletionTimestamp !== undefined;
    if (isUnsupervised(pod)) {
      if (!isEnding) this.#setStep(name, 0, () => this.#endUnsupervised(name));
    } else if (isBeingCreated(pod) && !isEnding) {
      if (!this.#steps.has(name))
        this.#setStep(name, CREATION_MS, () => this.#explain(attempt, name));
    } else this.#cancelStep(name);
  }

  #onDeleted({ name, uid }: PodReference, last: PodView | undefined): void {
    this.#removed.delete(name);
    const attempt = this.#attempts.find(uid);
    if (attempt === undefined) return;
    this.#cancelStep(name);
    const pod = last ?? this.#attempts.pod(attempt);
    if (pod) this.#attempts.update(attempt, pod, true);
  }

  /** Its agent has ended without its job. The end of the attempt is certain when the pod has ended. */
  async #endUnsupervised(name: string): Promise<void> {
    try {
      await this.#deletePod(name, KILL_GRACE_S);
    } catch (error) {
      this.#options.log.debug(`pod ${name} cannot be deleted: ${(error as Error).message}`);
      this.#setStep(name, RETRY_MS, () => this.#endUnsupervised(name));
    }
  }

  /**
   * Finds out why a pod does not get its containers: a warning, for example about a volume, or a node that does not answer.
   * Such an attempt has not begun, so the runner can give it up.
   */
  async #explain(attempt: string, name: string): Promise<void> {
    const { namespace } = this.#api;
    const node = this.#attempts.pod(attempt)?.spec?.nodeName ?? '';
    const fieldSelector = `involvedObject.kind=Pod,involvedObject.name=${name},type=Warning`;
    try {
      const isNodeSilent = !(await isNodeReady(this.#api, node));
      const { items } = await this.#api.core((core) =>
        core.listNamespacedEvent({ namespace, fieldSelector, limit: 100 }),
      );
      const last = items.at(-1);
      const event = last && `${last.reason}: ${last.message}`;
      if (this.#steps.has(name)) this.#attempts.explain(attempt, { event, isNodeSilent });
    } catch (error) {
      this.#options.log.debug(`pod ${name} cannot be explained: ${(error as Error).message}`);
    }
    if (this.#steps.has(name)) this.#setStep(name, CREATION_MS, () => this.#explain(attempt, name));
  }

  /** Replaces the step of the pod that was planned before. */
  #setStep(name: string, ms: number, step: () => Promise<void>): void {
    clearTimeout(this.#steps.get(name));
    this.#steps.set(name, setTimeout(() => void step(), ms).unref());
  }

  #cancelStep(name: string): void {
    clearTimeout(this.#steps.get(name));
    this.#steps.delete(name);
  }

  /**
   * @param graceS default: the grace period of the pod
   * @returns false when there is no such pod
   */
  async #deletePod(name: string, graceS?: number): Promise<boolean> {
    const { namespace } = this.#api;
    try {
      await this.#api.core((core) =>
        core.deleteNamespacedPod({
          name,
          namespace,
          ...(graceS !== undefined && { gracePeriodSeconds: graceS }),
        }),
      );
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 404) return false;
      const refusal = await this.#noteRefusal(error);
      throw refusal ?? new RunnerUnavailable(`Kubernetes: ${error.message}`, { cause: error });
    }
  }

  /**
   * A missing permission is the operator's to grant, and an exhausted quota frees itself when other jobs end. Every other refusal
   * depends on the job or the configuration.
   */
  async #toSubmitError(error: ApiError): Promise<Unstartable | RunnerUnavailable> {
    const refusal = await this.#noteRefusal(error);
    if (refusal) return refusal;
    const isTemporary =
      error.status === 409 || /exceeded quota|namespaces? .* not found/.test(error.message);
    return isTemporary
      ? new RunnerUnavailable(error.message)
      : new Unstartable(`Kubernetes refused the job: ${error.message}`);
  }
}
