/**
 * Runs attempts on a cluster. The engine places an agent for each attempt on a node (`engine.ts`); the agent supervises the
 * command there and sends everything to this worker (`session.ts`). An attempt begins only when its agent has claimed it and
 * asks whether it may begin, so whatever the engine does, the command runs at most once. An attempt is lost only when the engine
 * knows that nothing of it runs any more, or when its agent has been silent for longer than its lease, after which the agent
 * has killed the command.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { mkdir, readdir, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { sleep } from '../../base/backoff.ts';
import { createLog, type Logger } from '../../base/log.ts';
import { CpuShares } from '../cpu-share.ts';
import {
  ArtifactsLost,
  ArtifactsNotKept,
  AttemptLost,
  type AttemptSpec,
  type ClusterState,
  type ExecSession,
  type ExecSpec,
  GRACE_MS,
  type Handle,
  type LogBatch,
  type LogCursor,
  type Machine,
  type MayBegin,
  NotExecutable,
  type Outcome,
  type ReadOptions,
  type Runner,
  RunnerUnavailable,
  type StartOptions,
  Unstartable,
  type Usage,
} from '../runner.ts';
import { buildOutcome, type EndWatcher, followLog } from '../supervisor/attempt-folder.ts';
import { writeJsonAtomically } from '../supervisor/claim.ts';
import { readJsonFile, watchChanges } from '../supervisor/folder.ts';
import { computeLimits } from '../supervisor/limits.ts';
import { readBootId } from '../supervisor/proc.ts';
import { openRemoval, type Removal } from '../supervisor/removal.ts';
import type { AttemptStart } from '../supervisor/supervise.ts';
import type { ClusterEngine, EngineEnd, EngineState, Placement, Submission } from './engine.ts';
import { AGENTS_PATH, type AgentExit, type AgentSpec, type AgentUsage } from './protocol.ts';
import { type AgentRecord, AgentSession, type BegunRecord, hashToken } from './session.ts';

const TRASH_DIR = '.trash';
/** The last requests of an agent may still be on their way when the engine reports its end. */
const LAST_REQUESTS_MS = 5_000;
/** An attempt that has not begun and that the engine does not know for this long is lost. */
const UNKNOWN_MS = 60_000;
/** Longest wait for a change of the engine or the agent, and for one of an attempt that waits in the engine. */
const POLL_MS = 1_000;
const WAITING_POLL_MS = 10_000;
const OVER = new Error('the wait for a change is over');
/** The file that `submit` needs again after a restart, beside the spec. */
const SUBMISSION = 'submission.json';

export type AgentRunnerOptions = {
  engine: ClusterEngine;
  /** The name of the runner, which is stored with attempts. */
  name: string;
  /** Contains the folders of attempts. */
  dir: string;
  placement: Placement;
  /** Base URL at which nodes reach this worker, without a trailing slash. */
  agentUrl: string;
  /** How long a job continues while its agent reaches no server. */
  leaseMs: number;
  graceMs?: number;
  log?: Logger;
};

/** Disposing of it leaves attempts in the engine; the next start finds them. */
export type AgentRunner = Runner &
  AsyncDisposable & {
    /** The session of an attempt; undefined when it is over or belongs to another runner. */
    findSession(attempt: string): Promise<AgentSession | undefined>;
  };

export async function openAgentRunner(options: AgentRunnerOptions): Promise<AgentRunner> {
  const log = options.log ?? createLog('silent');
  await mkdir(options.dir, { recursive: true, mode: 0o700 });
  const removal = await openRemoval(join(options.dir, TRASH_DIR), (error, message) =>
    log.error({ err: error }, message),
  );
  return new ClusterRunner(options, removal);
}

/** The submissions of the attempts in a folder of `openAgentRunner`. */
export async function readSubmissions(dir: string): Promise<Submission[]> {
  const names = await readdir(dir).catch(() => []);
  const found = await Promise.all(
    names.map((name) =>
      readJsonFile<Submission>(join(dir, name, SUBMISSION)).catch(() => undefined),
    ),
  );
  return found.filter((submission) => submission !== undefined);
}

class ClusterRunner implements AgentRunner {
  readonly name: string;
  readonly #options: AgentRunnerOptions;
  readonly #engine: ClusterEngine;
  readonly #removal: Removal;
  readonly #cpuShares = new CpuShares();
  readonly #sessions = new Map<string, AgentSession>();

  constructor(options: AgentRunnerOptions, removal: Removal) {
    this.name = options.name;
    this.#options = options;
    this.#engine = options.engine;
    this.#removal = removal;
  }

  get machines(): readonly Machine[] {
    return this.#options.placement.machines;
  }

  get clusters(): readonly ClusterState[] {
    return this.#options.placement.clusters;
  }

  get hasUnavailableEngine(): boolean {
    const { placement } = this.#options;
    return placement.clusters.some(
      ({ id, unavailableReason }) =>
        unavailableReason !== undefined && placement.capacityOf(id)?.withImage !== false,
    );
  }

  async prepare(spec: AttemptSpec, abort: AbortSignal): Promise<Handle> {
    const { agentUrl, leaseMs, graceMs = GRACE_MS, placement } = this.#options;
    const { id, machine, image, timeoutMs } = spec;
    // The spec may have the whole job here.
    const { gpu, gpuCount, cpu, memoryGb, diskGb, region } = spec.hardware;
    const hardware = { gpu, gpuCount, cpu, memoryGb, diskGb, region };
    const found = placement.capacityOf(machine);
    if (!found) throw new RunnerUnavailable(`the machine ${machine} does not answer`);
    const machineId = placement.idOf?.(machine);
    const { withImage = true, withoutImage = true, volumes = [], ...capacity } = found;
    const { title, gpuSetting } = this.#engine;
    if (gpu !== 'none' && !(gpu in capacity.gpus))
      throw new Unstartable(
        `${title} has no ${gpu} here.${gpuSetting ? ` The operator names its GPUs in ${gpuSetting}.` : ''}`,
      );
    if (image !== null && !withImage)
      throw new Unstartable(
        `The container image "${image}" cannot be run: ${title} is not configured to run images here`,
      );
    if (image === null && !withoutImage)
      throw new Unstartable(`Jobs on ${title} need a container image, and this job names none`);
    const lacking = spec.mounts.find(({ volume }) => !volumes.includes(volume));
    if (lacking) throw new Unstartable(`${title} does not have the volume ${lacking.volume} here.`);
    const placed = this.#engine.placeVolumes?.(spec.mounts, image);
    const limits = computeLimits(hardware, capacity);
    const gpus = gpu === 'none' ? 0 : gpuCount;
    const handle = { attempt: id, cpus: limits.cpus, gpus };
    // After a restart of the worker the attempt may wait in the queue of the engine, where it keeps its place.
    if ((await this.attach(handle)) === 'prepared') return handle;
    await this.remove(handle);
    await mkdir(this.#folder(id), { mode: 0o700 });
    const hasHome = spec.checkout && (await this.#checkOut(id, spec.checkout, abort));
    abort.throwIfAborted();
    const agentSpec: AgentSpec = {
      work: {
        timeoutMs,
        graceMs,
        log: spec.log,
        memoryBytes: limits.memoryBytes,
        diskBytes: limits.diskBytes,
        files: limits.files,
      },
      command: spec.command,
      env: spec.env,
      files: spec.files,
      ...(hasHome && { hasHome }),
      ...(placed ? { volumes: placed } : { mounts: spec.mounts }),
      image,
      job: spec.job,
      hardware,
      leaseMs,
    };
    writeFileSync(this.#file(id, 'log'), '', { mode: 0o600 });
    writeFileSync(this.#file(id, 'spec.json'), JSON.stringify(agentSpec), { mode: 0o600 });
    const token = randomBytes(32).toString('base64url');
    const { cpus, memoryBytes } = limits;
    const submission: Submission = {
      attempt: id,
      machine,
      machineId,
      job: spec.job,
      agent: { url: `${agentUrl}${AGENTS_PATH}`, token },
      image,
      mounts: spec.mounts,
      hardware,
      cpus,
      memoryBytes,
      timeoutMs,
    };
    writeFileSync(this.#file(id, SUBMISSION), JSON.stringify(submission), { mode: 0o600 });
    const record: AgentRecord = {
      tokenHash: hashToken(token),
      bootId: readBootId(),
      log: spec.log,
      leaseMs,
    };
    // Written last: with it the attempt is prepared.
    writeJsonAtomically(this.#file(id, 'agent.json'), record);
    return handle;
  }

  /** @returns whether the checkout has added files to the home folder */
  async #checkOut(
    id: string,
    checkout: NonNullable<AttemptSpec['checkout']>,
    abort: AbortSignal,
  ): Promise<true | undefined> {
    const home = this.#file(id, 'home');
    await mkdir(home);
    await checkout(this.#file(id, 'checkout'), abort, home);
    // Only an empty folder can be removed.
    return rmdir(home).then(
      () => undefined,
      () => true,
    );
  }

  async start(
    handle: Handle,
    mayBegin: MayBegin = async () => true,
    { report = () => {}, signal = new AbortController().signal }: StartOptions = {},
  ): Promise<boolean> {
    const id = String(handle.attempt);
    const session = await this.#session(id);
    if (session.hasBegun) return true;
    const submission = await readJsonFile<Submission>(this.#file(id, SUBMISSION));
    if (!submission) return false;
    const permitted = session.permit((located) => mayBegin({ ...handle, ...located }));
    // Its error is thrown below.
    permitted.catch(() => {});
    await this.#engine.submit(submission);
    let unknownSince = Number.POSITIVE_INFINITY;
    let answer: { may: boolean } | { error: unknown } | undefined;
    void permitted.then(
      (may) => {
        answer = { may };
      },
      (error) => {
        answer = { error };
      },
    );
    while (!signal.aborted) {
      if (answer && 'error' in answer) throw answer.error;
      if (answer) return answer.may;
      const state = this.#engine.state(id);
      const isUnknown = state.kind === 'unknown' && this.#engine.unavailableReason === undefined;
      unknownSince = isUnknown ? Math.min(unknownSince, Date.now()) : Number.POSITIVE_INFINITY;
      const end = findEngineEnd(state);
      if (end || state.kind === 'refused' || Date.now() - unknownSince > UNKNOWN_MS) {
        if (await session.withdraw()) return true;
        if (state.kind === 'refused') throw new Unstartable(state.reason);
        if (end && !end.isLoss && !end.mayBeStartFailure)
          throw new Unstartable(
            `${this.#engine.title} ended the attempt before the command began: ${end.reason}`,
          );
        if (end) throw new AttemptLost(`${this.#engine.title}: ${end.reason}`);
        return false;
      }
      if (state.kind === 'running' && state.leaving) {
        if (await session.withdraw()) return true;
        throw new AttemptLost(`${this.#engine.title}: ${state.leaving.reason}`);
      }
      if (state.kind === 'waiting') report(`waiting for ${this.#engine.title}: ${state.reason}`);
      else if (state.kind === 'running') {
        const node = this.#engine.describe(id)?.node;
        report(state.progress ?? `starting on ${node ?? this.#engine.title}`);
      }
      const pollMs = state.kind === 'waiting' ? WAITING_POLL_MS : POLL_MS;
      await this.#nextChange(id, session, signal, pollMs);
    }
    return await session.withdraw();
  }

  async attach(handle: Handle): Promise<'prepared' | 'started' | 'unprepared' | 'gone'> {
    const id = String(handle.attempt);
    const record = await this.#readRecord(id);
    if (!record) return 'gone';
    if (existsSync(this.#file(id, 'begun'))) return 'started';
    // Prepared files are not synced to the disk, so they cannot be used after a restart of the machine.
    return record.bootId === readBootId() ? 'prepared' : 'unprepared';
  }

  async *logs(
    handle: Handle,
    cursor: LogCursor | null,
    abort: AbortSignal,
  ): AsyncGenerator<LogBatch> {
    const id = String(handle.attempt);
    using watcher = this.#watchForEnd(id, abort);
    const correct = await this.#timeCorrection(id);
    for await (const batch of followLog(this.#file(id, 'log'), cursor, abort, watcher)) {
      const lines = batch.lines.map((line) => ({
        ...line,
        timestamp: new Date(correct(line.timestamp.getTime())),
      }));
      yield { ...batch, lines };
    }
  }

  async signal(handle: Handle, name: 'TERM' | 'KILL'): Promise<void> {
    const session = await this.findSession(String(handle.attempt));
    session?.signal(name);
  }

  async wait(
    handle: Handle,
    abort: AbortSignal,
    onInterrupted: () => Promise<unknown> = async () => {},
  ): Promise<Outcome> {
    const id = String(handle.attempt);
    using watcher = this.#watchForEnd(id, abort);
    let isReleased = false;
    for (;;) {
      const end = await watcher.findEnd();
      if (end) return end;
      const exit = isReleased ? null : await readJsonFile<AgentExit>(this.#file(id, 'exit'));
      if (exit?.isInterrupted) {
        isReleased = true;
        await onInterrupted();
        (await this.findSession(id))?.dismiss();
        continue;
      }
      await watcher.next();
      abort.throwIfAborted();
    }
  }

  #watchForEnd(
    id: string,
    abort: AbortSignal,
  ): Disposable & Omit<EndWatcher, 'findEnd'> & { findEnd(): Promise<Outcome | undefined> } {
    const changes = watchChanges(this.#folder(id), abort, ['log', 'exit']);
    let goneSince = Number.POSITIVE_INFINITY;
    return {
      findEnd: async () => {
        const session = await this.findSession(id);
        if (!session) return { kind: 'lost' };
        const state = this.#engine.state(id);
        const isGone = state.kind === 'ended' || state.kind === 'refused';
        goneSince = isGone ? Math.min(goneSince, Date.now()) : Number.POSITIVE_INFINITY;
        const engineEnd = findEngineEnd(state);
        // Read after the state, so that an exit that was stored before the engine's end is seen.
        const exit = await readJsonFile<AgentExit>(this.#file(id, 'exit'));
        if (exit) return this.#mergeEnd(id, exit, engineEnd, session);
        if (state.kind === 'running' && state.leaving) session.signal('TERM');
        if (engineEnd && state.kind === 'running') session.endCommand();
        if (Date.now() - goneSince > LAST_REQUESTS_MS)
          return await this.#buildUnreportedEnd(id, engineEnd, session);
        if (session.isLeaseOver) return { kind: 'lost' };
        if (state.kind === 'running' && !engineEnd) session.noteRunning();
        return undefined;
      },
      next: async () => void (await changes.next()),
      [Symbol.dispose]: () => changes[Symbol.dispose](),
    };
  }

  /** Corrects times of the agent, because the clock of its node may be wrong. */
  async #timeCorrection(id: string): Promise<(time: number) => number> {
    const begun = await readJsonFile<BegunRecord>(this.#file(id, 'begun'));
    return (time) => Math.min(Math.max(time, begun?.at ?? 0), Date.now());
  }

  /**
   * The time to bill. A job with the account of its agent can report any times, so they count only for the time in which this
   * worker has not seen the command running, for example while it was restarted.
   */
  async #billedTimes(
    id: string,
    reported: { startedAt: number; endedAt: number },
    { running }: AgentSession,
  ): Promise<{ startedAt: number; endedAt: number }> {
    const correct = await this.#timeCorrection(id);
    const startedAt = Math.min(correct(reported.startedAt), correct(running?.from ?? Infinity));
    const endedAt = Math.max(correct(reported.endedAt), correct(running?.until ?? 0), startedAt);
    return { startedAt, endedAt };
  }

  /** The agent's report is complete, unless the parent of the command was killed or the engine ended the agent. */
  async #mergeEnd(
    id: string,
    { isInterrupted, ...reported }: AgentExit,
    engineEnd: EngineEnd | undefined,
    session: AgentSession,
  ): Promise<Outcome | undefined> {
    const exit = { ...reported, ...(await this.#billedTimes(id, reported, session)) };
    const state = this.#engine.state(id);
    const leaving = state.kind === 'running' ? state.leaving : undefined;
    if (leaving && exit.endedAt >= leaving.since.getTime())
      return { kind: 'lost', isMove: true, reason: leaving.reason };
    const outOfMemory = exit.outOfMemory ?? (engineEnd?.outOfMemory || undefined);
    if (exit.exitCode !== null && !isInterrupted)
      return buildOutcome({ ...exit, exitCode: exit.exitCode, outOfMemory });
    if (engineEnd?.isLoss) return toLoss(engineEnd);
    const exitCode = exit.exitCode ?? engineEnd?.exitCode ?? null;
    if (engineEnd && exitCode !== null) {
      const reason = isInterrupted
        ? `${this.#engine.title} ended the job: ${engineEnd.reason}.`
        : exit.reason;
      return buildOutcome({ ...exit, exitCode, outOfMemory, ...(reason && { reason }) });
    }
    const isUnknown = engineEnd !== undefined || session.isLeaseOver;
    return isUnknown || state.kind === 'unknown' ? { kind: 'lost' } : undefined;
  }

  /** The agent was killed together with the command, or before it could report the end. */
  async #buildUnreportedEnd(
    id: string,
    end: EngineEnd | undefined,
    session: AgentSession,
  ): Promise<Outcome> {
    const started = await readJsonFile<AttemptStart>(this.#file(id, 'started'));
    if (!end?.outOfMemory) return toLoss(end);
    const reported = { startedAt: started?.startedAt ?? Date.now(), endedAt: Date.now() };
    const { startedAt, endedAt } = await this.#billedTimes(id, reported, session);
    const exitCode = 137;
    const note = `${this.#engine.title} ended the job: it used more memory than it requested.`;
    const times = { startedAt: new Date(startedAt), endedAt: new Date(endedAt) };
    return { kind: 'exited', exitCode, timedOut: false, outOfMemory: true, note, ...times };
  }

  async exec(handle: Handle, spec: ExecSpec): Promise<ExecSession> {
    const id = String(handle.attempt);
    const session = await this.findSession(id);
    if (!session?.hasBegun || existsSync(this.#file(id, 'exit')))
      throw new NotExecutable('The job does not run.');
    return session.execs.open(spec, this.#engine.describe(id)?.node ?? this.#engine.title);
  }

  async replaceFiles(handle: Handle, files: AttemptSpec['files']): Promise<void> {
    const session = await this.findSession(String(handle.attempt));
    session?.replaceFiles(files);
  }

  async stats(handle: Handle): Promise<Usage | null> {
    const id = String(handle.attempt);
    if (existsSync(this.#file(id, 'exit'))) return null;
    const usage = await readJsonFile<AgentUsage>(this.#file(id, 'usage'));
    if (!usage) return null;
    const started = await readJsonFile<AttemptStart>(this.#file(id, 'started'));
    const startedAt = started?.startedAt ?? usage.at;
    return {
      cpuPercent:
        'cpuPercent' in usage
          ? usage.cpuPercent
          : this.#cpuShares.percentOf(id, usage, startedAt, Number(handle.cpus ?? 1)),
      // An agent in a pod does not know whether the job has GPUs.
      gpuPercent: handle.gpus === 0 ? 0 : usage.gpuPercent,
      memoryBytes: usage.memoryBytes,
      diskBytes: usage.diskBytes,
    };
  }

  async artifacts(handle: Handle, path: string, options?: ReadOptions): Promise<Readable | null> {
    const id = String(handle.attempt);
    const session = await this.findSession(id);
    const lost = () => new ArtifactsLost('the node was lost before it could send them');
    if (!session) throw lost();
    const giveUp = new AbortController();
    const watch = async () => {
      while (!giveUp.signal.aborted) {
        const state = this.#engine.state(id);
        if (state.kind === 'ended' || session.isLeaseOver) {
          // The last requests may be on their way.
          await sleep(LAST_REQUESTS_MS, giveUp.signal);
          giveUp.abort(this.#findOwnFault(state) ?? lost());
        } else await this.#nextChange(id, session, giveUp.signal);
      }
    };
    void watch();
    try {
      const tar = await session.requestOutput({ path, ...options }, giveUp.signal);
      // Destroyed already: a later reader would not see why.
      if (tar?.errored) throw tar.errored;
      return tar;
    } finally {
      giveUp.abort(lost());
    }
  }

  /** An end that another attempt would have too, such as a time limit of the engine. With exit code 0 only the node has failed. */
  #findOwnFault(state: EngineState): ArtifactsNotKept | undefined {
    if (state.kind !== 'ended' || state.end.isLoss || state.end.exitCode === 0) return undefined;
    const { title } = this.#engine;
    return new ArtifactsNotKept(
      `${title} ended the job before its node had sent them: ${state.end.reason}`,
    );
  }

  async remove(handle: Handle): Promise<void> {
    const id = String(handle.attempt);
    // Otherwise it belongs to another runner, or is removed: the folder goes last.
    if (existsSync(this.#folder(id))) await this.#remove(id);
  }

  async #remove(id: string): Promise<void> {
    const session = await this.findSession(id);
    const hasEnded = existsSync(this.#file(id, 'exit'));
    session?.close();
    await this.#engine.remove(id, { hasEnded });
    this.#cpuShares.forget(id);
    await this.#removal.discard(this.#folder(id));
    // Last, because a request of the agent would open the session again while the folder exists.
    this.#sessions.delete(id);
  }

  async sweep(keep: ReadonlySet<string>): Promise<void> {
    const folders = (await readdir(this.#options.dir)).filter((name) => !name.startsWith('.'));
    const known = new Set([...folders, ...(await this.#engine.list())]);
    const orphans = [...known].filter((id) => !keep.has(id));
    const results = await Promise.allSettled(orphans.map((id) => this.#remove(id)));
    const errors = results.flatMap((end) => (end.status === 'rejected' ? [end.reason] : []));
    if (errors.length > 0)
      throw new AggregateError(errors, `${errors.length} attempts cannot be removed`);
  }

  async findSession(id: string): Promise<AgentSession | undefined> {
    const known = this.#sessions.get(id);
    if (known) return known;
    const record = await this.#readRecord(id);
    // Another call may have created it meanwhile.
    if (!record || this.#sessions.has(id)) return this.#sessions.get(id);
    const session = new AgentSession(this.#folder(id), record, {
      isRevoked: () => this.#engine.isRevoked?.(id) ?? false,
      locate: ({ node, gpus }) => {
        const { inspect } = this.#engine.describe(id) ?? {};
        return {
          cluster: this.name,
          node,
          ...(inspect !== undefined && { inspect }),
          ...(gpus && { gpuIndices: gpus.join(',') }),
        };
      },
    });
    this.#sessions.set(id, session);
    return session;
  }

  /** Undefined also if a loss of power has emptied the file, which is not synced: then the attempt has not begun. */
  #readRecord(id: string): Promise<AgentRecord | undefined> {
    return readJsonFile<AgentRecord>(this.#file(id, 'agent.json')).catch((error) => {
      if (error instanceof SyntaxError) return undefined;
      throw error;
    });
  }

  async #session(id: string): Promise<AgentSession> {
    const session = await this.findSession(id);
    if (!session) throw new RunnerUnavailable('the prepared attempt does not exist any more');
    return session;
  }

  /** Settles at the next change of the engine or the agent, or after a while. */
  async #nextChange(
    id: string,
    session: AgentSession,
    signal: AbortSignal,
    pollMs = POLL_MS,
  ): Promise<void> {
    // Thousands of attempts may wait here. `AbortSignal.any` and the default reason of `abort` would take most of the CPU.
    const over = new AbortController();
    const end = () => over.abort(OVER);
    const timer = setTimeout(end, pollMs);
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) end();
    try {
      await Promise.race([
        this.#engine.nextChange(id, over.signal),
        session.nextChange(over.signal),
      ]);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      end();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.#removal[Symbol.asyncDispose](), this.#engine[Symbol.asyncDispose]()]);
  }

  #folder(id: string): string {
    return join(this.#options.dir, id);
  }

  #file(id: string, name: string): string {
    return join(this.#folder(id), name);
  }
}

function toLoss(end: EngineEnd | undefined): Outcome {
  return end?.isMove ? { kind: 'lost', isMove: true, reason: end.reason } : { kind: 'lost' };
}

/** How the engine saw the end of the command, even if the agent still runs. */
function findEngineEnd(state: EngineState): EngineEnd | undefined {
  if (state.kind === 'ended') return state.end;
  return state.kind === 'running' ? state.commandEnd : undefined;
}
