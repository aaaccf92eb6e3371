/** What the engine knows about the attempts of this worker. */
import { EventEmitter, once } from 'node:events';
import type { EngineState } from '../agent/engine.ts';
import { findPatience, findTrouble, type PodView, type Trouble, toState } from './pod-state.ts';

type Attempt = {
  pod: PodView;
  isDeleted: boolean;
  state: EngineState;
  /** `performance.now()` when the condition was first seen that may only last for a while. */
  since: number | undefined;
  /** Looks at the state again when that condition has lasted too long. */
  timer: NodeJS.Timeout | undefined;
  trouble: Trouble | undefined;
  explanation: Explanation;
};

/** Facts about a pod that gets no containers, which are not in its status. */
export type Explanation = {
  /** What a warning of Kubernetes says. */
  event?: string | undefined;
  /** Its node does not answer, so nobody creates the containers. */
  isNodeSilent?: boolean;
};

const UNKNOWN: EngineState = { kind: 'unknown' };

export class Attempts implements Disposable {
  readonly #attempts = new Map<string, Attempt>();
  /** Emits the id of an attempt when its state changes. */
  readonly #changes = new EventEmitter().setMaxListeners(0);

  state(id: string): EngineState {
    return this.#attempts.get(id)?.state ?? UNKNOWN;
  }

  pod(id: string): PodView | undefined {
    return this.#attempts.get(id)?.pod;
  }

  /** The attempt of the pod with this uid. */
  find(uid: string): string | undefined {
    for (const [id, { pod }] of this.#attempts) if (pod.metadata?.uid === uid) return id;
    return undefined;
  }

  /** @param isDeleted the pod does not exist any more; `pod` is the last that was seen of it */
  update(id: string, pod: PodView, isDeleted: boolean): void {
    const known = this.#attempts.get(id);
    const attempt: Attempt = known ?? {
      pod,
      isDeleted,
      state: UNKNOWN,
      since: undefined,
      timer: undefined,
      trouble: undefined,
      explanation: {},
    };
    this.#attempts.set(id, attempt);
    attempt.pod = pod;
    attempt.isDeleted = isDeleted;
    // The node has answered, if that was in doubt.
    attempt.explanation = { event: attempt.explanation.event };
    this.#review(id, attempt);
  }

  /** Holds until the next status of the pod. */
  explain(id: string, explanation: Explanation): void {
    const attempt = this.#attempts.get(id);
    if (!attempt) return;
    attempt.explanation = explanation;
    this.#review(id, attempt);
  }

  forget(id: string): void {
    clearTimeout(this.#attempts.get(id)?.timer);
    if (this.#attempts.delete(id)) this.#changes.emit(id);
  }

  async nextChange(id: string, signal: AbortSignal): Promise<void> {
    await once(this.#changes, id, { signal }).catch(() => {});
  }

  [Symbol.dispose](): void {
    for (const { timer } of this.#attempts.values()) clearTimeout(timer);
  }

  #review(id: string, attempt: Attempt): void {
    clearTimeout(attempt.timer);
    if (isFinal(attempt.state)) return;
    const { pod, isDeleted, explanation } = attempt;
    const trouble = findTrouble(pod);
    if (!trouble?.isVague || !attempt.trouble) attempt.trouble = trouble;
    const patience = findPatience(pod);
    if (patience === undefined) attempt.since = undefined;
    else attempt.since ??= performance.now();
    const leftMs =
      patience === undefined || attempt.since === undefined
        ? Number.POSITIVE_INFINITY
        : attempt.since + patience - performance.now();
    const isOverdue = leftMs <= 0;
    if (leftMs > 0 && leftMs < Number.POSITIVE_INFINITY)
      attempt.timer = setTimeout(() => this.#review(id, attempt), leftMs + 1).unref();
    const state = toState(pod, {
      isOverdue,
      isDeleted,
      trouble: attempt.trouble,
      ...explanation,
    });
    if (JSON.stringify(state) === JSON.stringify(attempt.state)) return;
    attempt.state = state;
    this.#changes.emit(id);
  }
}

function isFinal({ kind }: EngineState): boolean {
  return kind === 'ended' || kind === 'refused';
}
