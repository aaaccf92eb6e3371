/**
 * What the engine knows about the attempts of this worker, from the lines of `squeue`. A job is identified by its id and its
 * name, because a controller that was killed may give the id of a lost job to the next one. An attempt may have several jobs:
 * the agent of only one of them can claim it.
 */
import { EventEmitter, once } from 'node:events';
import type { EngineState } from '../agent/engine.ts';
import { attemptOf, isDecidedByController, type Job, toState } from './jobs.ts';

type TrackedJob = {
  /** The latest line of `squeue`. */
  line: Job;
  state: EngineState;
  /** Value of the clock when the job was found. */
  since: number;
  /** Its node did not answer when the job ended. */
  wasSilent: boolean;
  /** Since when its node has answered again, in milliseconds. */
  answeringSince?: number;
};

type Attempt = { jobs: Map<string, TrackedJob>; state: EngineState; where?: Location };

/** `node`: empty before a node was chosen. */
export type Location = { node: string; job: string };

const UNKNOWN: EngineState = { kind: 'unknown' };

export class Attempts {
  readonly #attempts = new Map<string, Attempt>();
  /** Emits the id of an attempt when its state changes. */
  readonly #changes = new EventEmitter().setMaxListeners(0);
  readonly #returnMs: () => number;
  #clock = 0;

  /** @param returnMs how long a node that was silent must answer before its jobs have certainly ended */
  constructor(returnMs: () => number) {
    this.#returnMs = returnMs;
  }

  state(attempt: string): EngineState {
    return this.#attempts.get(attempt)?.state ?? UNKNOWN;
  }

  where(attempt: string): Location | undefined {
    return this.#attempts.get(attempt)?.where;
  }

  /** Whether a change is to be expected. */
  get isAnyOpen(): boolean {
    for (const { state } of this.#attempts.values()) if (!isFinal(state)) return true;
    return false;
  }

  /** A moment to which `update` compares: jobs added after it may be missing in the list. */
  now(): number {
    return this.#clock;
  }

  /** Adds jobs of an attempt of this worker, which Slurm has accepted. */
  add(lines: readonly Job[]): void {
    this.#clock++;
    for (const line of lines) {
      const attempt = attemptOf(line);
      if (attempt === undefined) continue;
      const found = this.#attempts.get(attempt) ?? { jobs: new Map(), state: UNKNOWN };
      this.#attempts.set(attempt, found);
      if (found.jobs.has(line.id)) continue;
      const state = isDecidedByController(line) ? UNKNOWN : toState(line);
      found.jobs.set(line.id, { line, state, since: this.#clock, wasSilent: false });
      this.#settle(attempt, found);
    }
  }

  forget(attempt: string): void {
    this.#attempts.delete(attempt);
    this.#changes.emit(attempt);
  }

  /** Nodes of jobs whose end is certain only while the node answers. */
  nodesInDoubt(lines: readonly Job[]): string[] {
    const byKey = new Map(lines.map((line) => [keyOf(line), line]));
    const nodes = new Set<string>();
    for (const { jobs } of this.#attempts.values())
      for (const { line, state } of jobs.values()) {
        const latest = byKey.get(keyOf(line)) ?? line;
        if (!isFinal(state) && isDecidedByController(latest)) nodes.add(latest.node);
      }
    return [...nodes];
  }

  /**
   * @param lines all jobs of this worker that Slurm lists
   * @param listedAt value of `now` before they were listed
   * @param answering nodes in doubt that answer
   */
  update(lines: readonly Job[], listedAt: number, answering: ReadonlySet<string>): void {
    const byKey = new Map(lines.map((line) => [keyOf(line), line]));
    for (const [attempt, found] of this.#attempts) {
      for (const job of found.jobs.values()) {
        if (isFinal(job.state)) continue;
        const latest = byKey.get(keyOf(job.line));
        if (latest) job.line = latest;
        if (isDecidedByController(job.line))
          job.state = this.#stateOnNode(job, answering.has(job.line.node));
        else if (latest) job.state = toState(latest);
        // The controller has forgotten the job, which may run all the same.
        else if (job.since <= listedAt) job.state = UNKNOWN;
      }
      this.#settle(attempt, found);
    }
  }

  /**
   * The jobs on a silent node go on after the controller has given them up. When the node answers again, the controller
   * tells it to kill them.
   */
  #stateOnNode(job: TrackedJob, answers: boolean): EngineState {
    job.wasSilent ||= !answers || job.line.state === 'NODE_FAIL';
    if (!answers) delete job.answeringSince;
    else job.answeringSince ??= performance.now();
    const { wasSilent, answeringSince } = job;
    if (answeringSince === undefined) return UNKNOWN;
    const hasReturned = performance.now() - answeringSince >= this.#returnMs();
    return wasSilent && !hasReturned ? UNKNOWN : toState(job.line);
  }

  /** Settles when the state of the attempt changes, or when the signal aborts. */
  async nextChange(attempt: string, signal: AbortSignal): Promise<void> {
    await once(this.#changes, attempt, { signal }).catch(() => {});
  }

  #settle(attempt: string, found: Attempt): void {
    const jobs = [...found.jobs.values()];
    const where = locate(jobs);
    const state = combine(jobs.map((job) => job.state));
    const isSame =
      JSON.stringify(state) === JSON.stringify(found.state) && where?.job === found.where?.job;
    if (where) found.where = where;
    if (isSame || isFinal(found.state)) return;
    found.state = state;
    this.#changes.emit(attempt);
  }
}

/** The end of a job says nothing while another job of the attempt may have its claim. */
const ORDER = ['running', 'waiting', 'unknown', 'ended', 'refused'] as const;

function combine(states: readonly EngineState[]): EngineState {
  const rank = ({ kind }: EngineState) => ORDER.indexOf(kind);
  return [...states].sort((a, b) => rank(a) - rank(b))[0] ?? UNKNOWN;
}

function locate(jobs: readonly TrackedJob[]): Location | undefined {
  const placed = jobs.filter(({ line }) => line.node !== '');
  const job = placed.find(({ state }) => state.kind === 'running') ?? placed.at(-1) ?? jobs.at(-1);
  return job && { node: job.line.node, job: job.line.id };
}

function isFinal({ kind }: EngineState): boolean {
  return kind === 'ended' || kind === 'refused';
}

function keyOf({ id, name }: Pick<Job, 'id' | 'name'>): string {
  return `${id} ${name}`;
}
