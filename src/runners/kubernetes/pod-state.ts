/** What the status of a pod says about its attempt. */
import type { V1ContainerStatus, V1Pod, V1PodCondition } from '@kubernetes/client-node';
import type { EngineEnd, EngineState } from '../agent/engine.ts';
import { AGENT_CONTAINER, JOB_CONTAINER, POD_GRACE_S } from './pod.ts';

/**
 * What prevents a container from starting. `reason` is a sentence for the job's user or the operator. `isFinal`: time does not
 * help. `isVague`: an earlier reason of the same container says more.
 */
export type Trouble = { isFinal: boolean; isVague: boolean; reason: string };

/** The part of a pod that `toState` needs. Times are dates in lists, and texts in watches. */
export type PodView = Pick<V1Pod, 'metadata' | 'spec' | 'status'>;

/** Registries fail for a while, but a job must not wait for ever for an image that does not exist. */
const PULL_PATIENCE_MS = 120_000;
/** The kubelet kills the containers of a failed pod after its grace period. */
const END_PATIENCE_MS = (POD_GRACE_S + 10) * 1000;

export type StateOptions = {
  /** The condition of `findPatience` has lasted for that time. */
  isOverdue: boolean;
  /** The pod has been deleted from the API server; this was its last status. */
  isDeleted: boolean;
  /** What prevents a container from starting, from this status or an earlier one. */
  trouble: Trouble | undefined;
  /** What events say about a pod that does not get its containers. */
  event?: string | undefined;
  /** The node of such a pod does not answer. */
  isNodeSilent?: boolean;
};

export function toState(
  pod: PodView,
  { isOverdue, isDeleted, trouble, event, isNodeSilent = false }: StateOptions,
): EngineState {
  const shellFailure = findShellFailure(pod);
  if (shellFailure) return { kind: 'refused', reason: shellFailure };
  if (hasEnded(pod) || (isEnding(pod) && isOverdue)) return { kind: 'ended', end: findEnd(pod) };
  if (isEnding(pod)) return { kind: 'running' };
  if (isDeleted)
    // A pod without a node has never had a process. Otherwise the deletion may have been forced.
    return isScheduled(pod) ? { kind: 'unknown' } : { kind: 'ended', end: DELETED_EARLY };
  if (isNodeSilent || hasSilentNode(pod)) return { kind: 'unknown' };
  if (isUnsupervised(pod)) {
    const reason = describeAgentEnd(pod) ?? 'The agent has ended.';
    const commandEnd = { exitCode: null, outOfMemory: false, isLoss: true, reason };
    return { kind: 'running', commandEnd };
  }
  if (trouble && (trouble.isFinal || isOverdue)) return { kind: 'refused', reason: trouble.reason };
  const commandEnd = findCommandEnd(pod);
  if (commandEnd) return { kind: 'running', commandEnd };
  if (isRunning(pod)) return { kind: 'running' };
  return { kind: 'waiting', reason: trouble?.reason ?? event ?? describeWait(pod) };
}

/** How long the present condition may last before it is the end, in milliseconds; undefined: for ever. */
export function findPatience(pod: PodView): number | undefined {
  if (isEnding(pod)) return END_PATIENCE_MS;
  return findTrouble(pod) ? PULL_PATIENCE_MS : undefined;
}

/** The agent has ended, and the job has not, so nobody supervises it any more. */
export function isUnsupervised(pod: PodView): boolean {
  const [agent, job] = [statusOf(pod, AGENT_CONTAINER), statusOf(pod, JOB_CONTAINER)];
  return Boolean(agent?.state?.terminated) && !job?.state?.terminated && !isOver(pod);
}

/** The kubelet is creating the containers, and says in events what prevents it. */
export function isBeingCreated(pod: PodView): boolean {
  const isCommandOver = Boolean(statusOf(pod, JOB_CONTAINER)?.state?.terminated);
  return isScheduled(pod) && !isCommandOver && !isOver(pod) && !isRunning(pod) && !findTrouble(pod);
}

const DELETED_EARLY: EngineEnd = {
  exitCode: null,
  outOfMemory: false,
  isLoss: true,
  reason: 'The pod was deleted before it had a node.',
};

/* The end */

/** No process of the pod runs any more. */
function hasEnded(pod: PodView): boolean {
  const statuses = [JOB_CONTAINER, AGENT_CONTAINER].map((name) => statusOf(pod, name)?.state);
  if (statuses.every((state) => state?.terminated)) return true;
  return isOver(pod) && !isEnding(pod);
}

/**
 * The kubelet writes that it ends a pod (eviction, deadline) before its containers have ended. Statuses that are missing are
 * those of an evicted pod, or of a pod that the kubelet has not accepted.
 */
function isEnding(pod: PodView): boolean {
  const statuses = pod.status?.containerStatuses ?? [];
  const isEvicted = statuses.length === 0 && pod.status?.reason === 'Evicted';
  return isOver(pod) && (isEvicted || statuses.some(({ state }) => state?.running));
}

/** For a pod that has ended. */
function findEnd(pod: PodView): EngineEnd {
  const { reason, message } = pod.status ?? {};
  const end = findCommandEnd(pod);
  if (end) return end;
  const isOwnFault = isOwnDiskUse(message) || reason === DEADLINE;
  return {
    exitCode: isOwnFault ? KILLED : null,
    outOfMemory: false,
    isLoss: !isOwnFault,
    reason:
      describeReason(pod.status) || describeAgentEnd(pod) || 'The pod failed without a reason.',
  };
}

/** An agent that failed, with its last output; undefined if it did not fail. */
function describeAgentEnd(pod: PodView): string | undefined {
  const ended = statusOf(pod, AGENT_CONTAINER)?.state?.terminated;
  if (!ended || ended.exitCode === 0) return undefined;
  const where = pod.spec?.nodeName ? ` on ${pod.spec.nodeName}` : '';
  const output = ended.message?.trim().slice(-MAX_OUTPUT);
  const details = output || (ended.reason !== 'Error' && ended.reason);
  return `the agent ended with exit code ${ended.exitCode}${where}${details ? `: ${details}` : ''}`;
}

/** Characters of the last output of an agent. */
const MAX_OUTPUT = 400;

function describeReason({ reason, message }: { reason?: string; message?: string } = {}): string {
  return [reason, message?.trim()].filter(Boolean).join(': ');
}

const KILLED = 137;
/** The reason of a pod that exceeded its `activeDeadlineSeconds`. */
const DEADLINE = 'DeadlineExceeded';

/** How the container of the job ended. */
function findCommandEnd(pod: PodView): EngineEnd | undefined {
  const { status, metadata } = pod;
  const ended = statusOf(pod, JOB_CONTAINER)?.state?.terminated;
  if (!ended) return undefined;
  const details = describeReason(status);
  const exitCode = ended.exitCode;
  const isUnknown = isMadeUp(ended.reason) || isStartFailure(ended.reason);
  const deletedAt = deletionOf(metadata);
  const wasDeleted =
    deletedAt !== undefined && (toTime(ended.finishedAt) ?? deletedAt) >= floorToSecond(deletedAt);
  const isLoss =
    isUnknown ||
    (status?.reason === 'Evicted' ? !isOwnDiskUse(status.message) : isLostReason(status?.reason)) ||
    isDisrupted(status?.conditions) ||
    wasDeleted;
  const reason =
    details ||
    (wasDeleted
      ? (describeAgentEnd(pod) ?? 'The pod was deleted.')
      : `The container ended with exit code ${exitCode} (${[ended.reason, ended.message].filter(Boolean).join(': ')}).`);
  return {
    exitCode: isUnknown ? null : exitCode,
    outOfMemory: ended.reason === 'OOMKilled',
    isLoss,
    reason,
  };
}

/**
 * Whether the kubelet does not know the exit code, and has made one up: the node was restarted with its disk, or, without a
 * reason, the pod was deleted while the kubelet knew no container of it. Runtimes give each end a reason.
 */
function isMadeUp(reason: string | undefined): boolean {
  return !reason || reason === 'Unknown' || reason === 'ContainerStatusUnknown';
}

/** Reasons of a pod that Kubernetes or its node ended. The deadline is Loam's own limit. */
function isLostReason(reason: string | undefined): boolean {
  return reason !== undefined && reason !== DEADLINE;
}

/** Newer servers mark pods that they preempt, evict or delete with their node. */
function isDisrupted(conditions: readonly V1PodCondition[] | undefined): boolean {
  return Boolean(
    conditions?.some(({ type, status }) => type === 'DisruptionTarget' && status === 'True'),
  );
}

/** The kubelet evicts a pod for its own use of the disk with such messages, and for the node's lack of space with others. */
function isOwnDiskUse(message: string | undefined): boolean {
  return /exceeds the (?:total )?limit|Usage of EmptyDir volume|exceeded its local ephemeral storage limit/i.test(
    message ?? '',
  );
}

/** When the deletion of the pod was requested, in epoch milliseconds. */
function deletionOf(metadata: V1Pod['metadata']): number | undefined {
  const dueAt = toTime(metadata?.deletionTimestamp);
  return dueAt === undefined
    ? undefined
    : dueAt - (metadata?.deletionGracePeriodSeconds ?? 0) * 1000;
}

/** @param time null in an end that the kubelet has made up */
function toTime(time: Date | string | null | undefined): number | undefined {
  return time ? new Date(time).getTime() : undefined;
}

/** Times in a status have whole seconds. */
function floorToSecond(ms: number): number {
  return Math.floor(ms / 1000) * 1000;
}

/* Before the end */

function statusOf({ status }: PodView, container: string): V1ContainerStatus | undefined {
  return status?.containerStatuses?.find(({ name }) => name === container);
}

function isOver({ status }: PodView): boolean {
  return status?.phase === 'Failed' || status?.phase === 'Succeeded';
}

function isScheduled({ spec }: PodView): boolean {
  return Boolean(spec?.nodeName);
}

/** Both containers have started. */
function isRunning(pod: PodView): boolean {
  const [agent, job] = [statusOf(pod, AGENT_CONTAINER), statusOf(pod, JOB_CONTAINER)];
  return Boolean(job?.state?.running && (agent?.state?.running || agent?.state?.terminated));
}

/** The control plane marks the pods of a silent node as not ready, and leaves the statuses of their containers. */
function hasSilentNode(pod: PodView): boolean {
  const statuses = pod.status?.containerStatuses ?? [];
  const ready = pod.status?.conditions?.find(({ type }) => type === 'Ready');
  return (
    pod.status?.phase === 'Running' &&
    ready?.status === 'False' &&
    statuses.length > 0 &&
    statuses.every((status) => status.ready)
  );
}

const PULL_REASONS = ['ErrImagePull', 'ImagePullBackOff', 'RegistryUnavailable'];
/** Answers of a registry or a nameserver, in messages of containerd and Docker. */
const FINAL_PULL_ERROR =
  /denied|unauthorized|authorization failed|: not found|manifest unknown|no match(?:ing)? (?:manifest|for platform)|no such host/i;
/** Its message only says that the kubelet waits. */
const VAGUE_REASON = 'ImagePullBackOff';
const FINAL_REASONS = ['InvalidImageName', 'ErrImageNeverPull', 'CreateContainerConfigError'];
/** In messages of runc, crun and gVisor about a program that cannot be run: `exec: "/bin/sh": …`, `executable … not found`. */
const SHELL_ERROR = /\bexec(?:utable)?\b/;
const CREATE_REASONS = ['CreateContainerError', 'RunContainerError'];

/** What prevents a container from starting. */
export function findTrouble(pod: PodView): Trouble | undefined {
  for (const name of [JOB_CONTAINER, AGENT_CONTAINER]) {
    const status = statusOf(pod, name);
    const image = pod.spec?.containers.find((container) => container.name === name)?.image ?? '';
    const { reason = '', message = '' } = status?.state?.waiting ?? {};
    const ofOperator = name === AGENT_CONTAINER ? ' (LOAM_KUBERNETES_AGENT_IMAGE)' : '';
    const details = message ? `: ${message}` : '';
    if (PULL_REASONS.includes(reason))
      return {
        isFinal: FINAL_PULL_ERROR.test(message),
        isVague: reason === VAGUE_REASON,
        reason: `The image "${image}"${ofOperator} cannot be pulled${details}`,
      };
    if (FINAL_REASONS.includes(reason))
      return {
        isFinal: true,
        isVague: false,
        reason: `The image "${image}"${ofOperator} cannot be used: ${reason}${details}`,
      };
    if (CREATE_REASONS.includes(reason))
      return {
        isFinal: false,
        isVague: false,
        reason: `The container of the image "${image}"${ofOperator} cannot be created${details}`,
      };
  }
  return undefined;
}

/**
 * The image has no shell, or none that the node can run. Other failures to start, such as that of a runtime that ended meanwhile,
 * are the node's own, and the attempt is lost with them.
 */
function findShellFailure(pod: PodView): string | undefined {
  const { reason, message = '' } = statusOf(pod, JOB_CONTAINER)?.state?.terminated ?? {};
  return isStartFailure(reason) && SHELL_ERROR.test(message)
    ? `The image cannot be started with /bin/sh, which Loam needs: ${message}`
    : undefined;
}

function isStartFailure(reason: string | undefined): boolean {
  return reason === 'StartError' || reason === 'ContainerCannotRun';
}

function describeWait(pod: PodView): string {
  const scheduled = pod.status?.conditions?.find(({ type }) => type === 'PodScheduled');
  if (!isScheduled(pod)) {
    if (scheduled?.reason === 'SchedulingGated') return 'its queue has not admitted the job yet';
    return scheduled?.message
      ? translateSchedulerMessage(scheduled.message, requestsOf(pod))
      : 'the job is being placed on a node';
  }
  return `${pod.spec?.nodeName} is pulling the image and creating the containers`;
}

/* The messages of the scheduler */

type Requests = Readonly<Record<string, string>>;

function requestsOf(pod: PodView): Requests {
  return pod.spec?.containers.find(({ name }) => name === JOB_CONTAINER)?.resources?.requests ?? {};
}

/** Clause of the scheduler → what it means. `count`: the number of nodes. */
const CLAUSES: readonly (readonly [RegExp, (count: number) => string])[] = [
  [
    /node\(s\) (?:didn't match (?:node selector|Pod's node affinity.*)|didn't satisfy plugin.*)$/,
    (count) => `${nodes(count)} without the labels that the job needs`,
  ],
  [/node\(s\) (?:were|was) unschedulable$/, (count) => `${nodes(count)} closed for new jobs`],
  [
    /node\(s\) had (?:untolerated )?taint.*(?:unreachable|not-ready)/,
    (count) => `${nodes(count)} not answering`,
  ],
  [
    /node\(s\) had (?:untolerated )?taint/,
    (count) => `${nodes(count)} reserved by taints that the job does not tolerate`,
  ],
  [/Too many pods$/, (count) => `${nodes(count)} with as many pods as allowed`],
];

function nodes(count: number): string {
  return count === 1 ? '1 node' : `${count} nodes`;
}

/**
 * `0/2 nodes are available: 2 Insufficient nvidia.com/gpu.` becomes "no node has 2 free nvidia.com/gpu". Messages with unknown
 * clauses stay as they are.
 */
export function translateSchedulerMessage(message: string, requests: Requests): string {
  const [, list] =
    /^0\/\d+ nodes are available: (.*?)\.?(?:\s+(?:preemption|no new claims).*)?$/s.exec(message) ??
    [];
  if (list === undefined) return message;
  const lacking: string[] = [];
  const others: string[] = [];
  // Clauses begin with a number of nodes; a taint in a clause may contain commas.
  for (const clause of list.split(/, (?=\d+ )/)) {
    const [, count = '', text = ''] = /^(\d+) (.*)$/s.exec(clause) ?? [];
    const [, resource] = /^Insufficient (\S+)$/.exec(text) ?? [];
    const [, describe] = CLAUSES.find(([pattern]) => pattern.test(text)) ?? [];
    if (resource) lacking.push(describeResource(resource, requests[resource]));
    else if (describe) others.push(describe(Number(count)));
    else return message;
  }
  const parts = lacking.length > 0 ? [`no node has ${lacking.join(' and ')}`] : ['no node fits'];
  return [...parts, ...others].join('; ');
}

function describeResource(resource: string, requested: string | undefined): string {
  if (requested === undefined) return `enough free ${resource}`;
  if (resource === 'cpu') {
    const cpus = requested.endsWith('m') ? Number.parseInt(requested, 10) / 1000 : requested;
    return `${cpus} free ${Number(cpus) === 1 ? 'vCPU' : 'vCPUs'}`;
  }
  if (resource === 'memory' && /^\d+$/.test(requested))
    return `${Math.round((Number(requested) / 2 ** 30) * 10) / 10} GB of free memory`;
  return `${requested} free ${resource}`;
}
