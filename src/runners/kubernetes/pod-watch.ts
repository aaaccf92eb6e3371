/**
 * Follows the pods of this worker: lists them once, and then watches from the version of the list on. The watch resumes at its
 * last version when it ends, and the pods are listed again when the server does not know that version any more (410).
 *
 * The informer of the client is not used: it keeps whole pods, and an error of the credentials between two watches would be an
 * unhandled rejection.
 */
import type { V1Pod } from '@kubernetes/client-node';
import { Backoff } from '../../base/backoff.ts';
import { RunnerUnavailable } from '../runner.ts';
import { ApiError, type KubernetesApi, translateError } from './api.ts';
import { LABEL_WORKER } from './pod.ts';
import type { PodView } from './pod-state.ts';

const PAGE_SIZE = 100;
const PAUSES = { firstMs: 250, longestMs: 5_000 };

/** Two pods of an attempt have the same name, one after the other. */
export type PodReference = { name: string; uid: string };

type PodEvents = {
  /** A pod was added, or has changed. */
  onPod(pod: PodView): void;
  /** `last`: the last status of the pod; undefined when its end was not seen. */
  onDeleted(pod: PodReference, last: PodView | undefined): void;
  /** The pods are up to date, and changes arrive. */
  onConnected(): void;
  onError(error: ApiError | RunnerUnavailable): void;
};

type Options = { api: KubernetesApi; workerLabel: string; events: PodEvents };

export class PodWatch {
  readonly #options: Options;
  readonly #closing = new AbortController();
  /** Name → uid of the pods that exist. */
  readonly #existing = new Map<string, string>();
  #running: Promise<void> | undefined;

  constructor(options: Options) {
    this.#options = options;
  }

  start(): void {
    this.#running = this.#run();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    let version = '';
    const backoff = new Backoff(PAUSES);
    while (!signal.aborted) {
      const begunAt = performance.now();
      try {
        if (version === '') version = await this.#list();
        version = await this.#watch(version, () => {
          backoff.reset();
          this.#options.events.onConnected();
        });
      } catch (error) {
        if (signal.aborted) return;
        const known = error instanceof ApiError || error instanceof RunnerUnavailable;
        const translated = known ? error : translateError(error);
        if (translated instanceof ApiError && translated.status === 410) version = '';
        else this.#options.events.onError(translated);
      }
      if (signal.aborted || performance.now() - begunAt > PAUSES.longestMs) continue;
      await backoff.pause(signal);
    }
  }

  /** @returns the version of the list */
  async #list(): Promise<string> {
    const { events } = this.#options;
    const gone = new Map(this.#existing);
    const version = await listPods(this.#options, (pod) => {
      const { name, uid } = referenceTo(pod);
      if (gone.get(name) === uid) gone.delete(name);
      this.#existing.set(name, uid);
      events.onPod(pod);
    });
    for (const [name, uid] of gone) {
      if (this.#existing.get(name) === uid) this.#existing.delete(name);
      events.onDeleted({ name, uid }, undefined);
    }
    return version;
  }

  /**
   * Watches until the connection ends.
   * @returns the version to resume at; empty: the pods must be listed again
   */
  async #watch(from: string, onConnected: () => void): Promise<string> {
    const { api, workerLabel, events } = this.#options;
    const { signal } = this.#closing;
    const ended = Promise.withResolvers<void>();
    let version = from;
    const query = {
      labelSelector: `${LABEL_WORKER}=${workerLabel}`,
      resourceVersion: from,
      allowWatchBookmarks: true,
    };
    const onEvent = (type: string, pod: V1Pod & { code?: number }) => {
      if (type === 'ERROR') {
        if (pod.code === 410) version = '';
        return;
      }
      version = pod.metadata?.resourceVersion ?? version;
      if (type === 'BOOKMARK') return;
      const reference = referenceTo(pod);
      if (type === 'DELETED') {
        this.#existing.delete(reference.name);
        events.onDeleted(reference, trimPod(pod));
      } else {
        this.#existing.set(reference.name, reference.uid);
        events.onPod(trimPod(pod));
      }
    };
    let isConnected = false;
    let isOver = false;
    const onEnd = (error: (Error & { statusCode?: number }) | null) => {
      isOver = true;
      // The client ends a watch that was silent for 30 seconds.
      const isIdle = error?.name === 'TimeoutError' && isConnected;
      if (!error || isIdle || signal.aborted) ended.resolve();
      else if (error.statusCode === 410) ended.reject(new ApiError(410, 'Expired', error.message));
      else if (error.statusCode === 403)
        ended.reject(new ApiError(403, 'Forbidden', error.message));
      else ended.reject(error);
    };
    const path = `/api/v1/namespaces/${api.namespace}/pods`;
    const request = await api.watch.watch(path, query, onEvent, onEnd);
    if (!isOver) {
      isConnected = true;
      onConnected();
    }
    const abort = () => request.abort();
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
    try {
      await ended.promise;
    } finally {
      signal.removeEventListener('abort', abort);
    }
    return version;
  }
}

/**
 * Calls `onPod` for each pod of the worker, page by page, because 500 whole pods take 50 MB while they are read.
 * @returns the version of the list
 */
export async function listPods(
  { api, workerLabel }: Pick<Options, 'api' | 'workerLabel'>,
  onPod: (pod: PodView) => void,
): Promise<string> {
  const { namespace } = api;
  const labelSelector = `${LABEL_WORKER}=${workerLabel}`;
  for (let next: string | undefined; ; ) {
    const page = await api.core((core) =>
      core.listNamespacedPod({
        namespace,
        labelSelector,
        limit: PAGE_SIZE,
        ...(next !== undefined && { _continue: next }),
      }),
    );
    for (const pod of page.items) onPod(trimPod(pod));
    next = page.metadata?._continue || undefined;
    if (next === undefined) return page.metadata?.resourceVersion ?? '';
  }
}

export function referenceTo({ metadata }: PodView): PodReference {
  return { name: metadata?.name ?? '', uid: metadata?.uid ?? '' };
}

/** Keeps what the state depends on: a whole pod is ten times as large, and there may be thousands. */
export function trimPod({ metadata, spec, status }: V1Pod): PodView {
  const { name, uid, annotations, deletionTimestamp, deletionGracePeriodSeconds } = metadata ?? {};
  return {
    metadata: {
      name,
      uid,
      annotations,
      ...(deletionTimestamp !== undefined && { deletionTimestamp, deletionGracePeriodSeconds }),
    },
    spec: {
      nodeName: spec?.nodeName,
      containers: (spec?.containers ?? []).map((container) => ({
        name: container.name,
        image: container.image,
        resources: { requests: container.resources?.requests },
      })),
    },
    status: {
      phase: status?.phase,
      reason: status?.reason,
      message: status?.message,
      conditions: status?.conditions?.filter(({ type }) =>
        ['PodScheduled', 'Ready', 'DisruptionTarget'].includes(type),
      ),
      containerStatuses: status?.containerStatuses?.map((container) => ({
        name: container.name,
        ready: container.ready,
        state: container.state,
        image: '',
        imageID: '',
        restartCount: 0,
      })),
    },
  } as PodView;
}
