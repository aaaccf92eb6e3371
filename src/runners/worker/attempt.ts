/**
 * An attempt on a joined machine: runs it with the runner of the machine, and speaks the protocol of agents for it
 * (`../agent/protocol.ts`). The runner's shim outlives this program. What a restarted program needs is in the attempt's folder. The
 * files are not synced, because a stop of the machine ends the work:
 *
 *   attempt.json  the credentials of the agent ({@link AttemptFile}); written first
 *   handle.json   the handle of the runner; written before the work may begin
 *   log           the log as the server gets it, and `cursor.json` up to where the runner's lines are in it
 *   exit          how the work ended
 *   lease         when the server last answered (`../supervisor/lease.ts`)
 */
import { randomUUID } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeSync,
} from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Backoff } from '../../base/backoff.ts';
import type { Logger } from '../../base/log.ts';
import { AgentClient, Refused } from '../agent/client.ts';
import {
  AGENTS_PATH,
  type AgentBegin,
  type AgentClaim,
  type AgentPermission,
  type AgentSpec,
  LEASE_MS,
  MAX_REASON_LENGTH,
} from '../agent/protocol.ts';
import { Sender } from '../agent/sender.ts';
import type { MachineReport } from '../machines/protocol.ts';
import {
  CUT_MARK,
  type Handle,
  LOCAL_MACHINE,
  type LogCursor,
  NotExecutable,
  type Outcome,
  type Runner,
  type RunnerLine,
  RunnerUnavailable,
  Unstartable,
} from '../runner.ts';
import { writeJsonAtomically } from '../supervisor/claim.ts';
import { readJsonFile } from '../supervisor/folder.ts';
import { readLease, renewLease } from '../supervisor/lease.ts';
import type { AttemptExit } from '../supervisor/supervise.ts';

type AttemptFile = { token: string; nonce: string; leaseMs: number };
type CursorFile = { cursor: LogCursor; size: number };

const PAUSES = { firstMs: 200, longestMs: 10_000, stableMs: 60_000 };
/** Tries to prepare an attempt, about a minute, before it is given up. */
const MAX_TRIES = 10;
/** How often the lease is written. */
const LEASE_STEP_S = 5;
/** Exit code of work that could not be started, as of `recordFailedStart`. */
const UNSTARTABLE_EXIT = 125;

export type AttemptDeps = {
  runner: Runner;
  /** Base URL of the server, without a trailing slash. */
  server: string;
  /** Contains the folders of attempts. */
  dir: string;
  /** Name of the machine. */
  machine: string;
  log: Logger;
  /** Called when what the machine reports of the attempt has changed. */
  onChanged(): void;
};

export class MachineAttempt {
  readonly id: string;
  readonly #deps: AttemptDeps;
  readonly #file: AttemptFile;
  readonly #dir: string;
  readonly #client: AgentClient;
  /** Aborts when nothing of the attempt shall be left. */
  readonly #over = new AbortController();
  readonly #done: Promise<void>;
  #handle: Handle | undefined;
  #progress: string | undefined;
  /** Why it does not run here, or not any more. */
  #failure: { lost: string } | { refused: string } | undefined;
  #leaseWrittenAt = Number.NEGATIVE_INFINITY;

  /** @param token undefined: as stored by an earlier process */
  constructor(deps: AttemptDeps, id: string, token?: string) {
    this.id = id;
    this.#deps = deps;
    this.#dir = join(deps.dir, id);
    this.#file = this.#readFile(token);
    const { nonce, leaseMs } = this.#file;
    this.#client = new AgentClient({
      url: `${deps.server}${AGENTS_PATH}/${id}`,
      token: this.#file.token,
      nonce,
      leaseMs,
      answeredAt: readLease(this.#dir),
      onAnswered: (at) => this.#renewLease(at),
    });
    this.#done = this.#run();
  }

  #readFile(token: string | undefined): AttemptFile {
    const path = join(this.#dir, 'attempt.json');
    if (token === undefined) return JSON.parse(readFileSync(path, 'utf8'));
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
    const file: AttemptFile = { token, nonce: randomUUID(), leaseMs: LEASE_MS };
    writeJsonAtomically(path, file);
    return file;
  }

  /** Whether something of it may still run here. */
  get mayRun(): boolean {
    return this.#failure === undefined;
  }

  get report(): MachineReport['attempts'][number] {
    return {
      id: this.id,
      ...(this.#progress !== undefined && { progress: toLine(this.#progress, 300) }),
      ...this.#failure,
      ...(this.#handle?.gpus && { gpus: String(this.#handle.gpus).split(',').map(Number) }),
    };
  }

  /** Ends the attempt. Resolves when nothing of it is left on the machine. */
  async end(): Promise<void> {
    this.#over.abort(new Refused('the server has removed the attempt'));
    await this.#done;
  }

  /** Resolves when nothing of the attempt is left. */
  get done(): Promise<void> {
    return this.#done;
  }

  async #run(): Promise<void> {
    const { log } = this.#deps;
    const { signal } = this.#over;
    const backoff = new Backoff(PAUSES);
    for (let tries = 1; !signal.aborted; tries++) {
      const startedAt = Date.now();
      try {
        await this.#supervise(signal);
        break;
      } catch (error) {
        if (signal.aborted) break;
        // The attempt waits for a container engine that does not answer, as on the server's own machine.
        const isWaiting = error instanceof RunnerUnavailable;
        if (isWaiting || Date.now() - startedAt > PAUSES.stableMs) tries = 1;
        const reason = toLine((error as Error).message, MAX_REASON_LENGTH);
        if (error instanceof Unstartable) await this.#giveUp({ refused: reason });
        if (signal.aborted) break;
        const isOver = error instanceof Refused || tries === MAX_TRIES;
        log[isOver ? 'warn' : 'info'](
          { err: error, attempt: this.id },
          'the attempt has failed here',
        );
        if (isOver) await this.#giveUp({ lost: reason });
        else await backoff.pause(signal);
      }
    }
    await this.#remove();
  }

  /** Settles when the server has everything of the attempt. @throws Refused if it does not want it any more */
  async #supervise(signal: AbortSignal): Promise<void> {
    const { runner } = this.#deps;
    this.#handle ??= await readJsonFile<Handle>(this.#path('handle.json'));
    const state = this.#handle ? await runner.attach(this.#handle) : 'gone';
    if (state === 'prepared' || state === 'started') return this.#start(signal);
    this.#handle = await this.#prepare(await this.#claim(signal), signal);
    writeJsonAtomically(this.#path('handle.json'), this.#handle);
    // The supervisor counts the lease from the answer that lets the work begin, even if it starts much later.
    this.#leaseWrittenAt = Number.NEGATIVE_INFINITY;
    this.#deps.onChanged();
    return this.#start(signal);
  }

  async #claim(signal: AbortSignal): Promise<AgentSpec> {
    const claim: AgentClaim = { nonce: this.#file.nonce, node: this.#deps.machine };
    const response = await this.#client.request('claim', { method: 'POST', json: claim, signal });
    const spec = (await response.json()) as AgentSpec;
    const { leaseMs } = spec;
    this.#client.leaseMs = leaseMs;
    writeJsonAtomically(this.#path('attempt.json'), { ...this.#file, leaseMs });
    return spec;
  }

  async #prepare(spec: AgentSpec, signal: AbortSignal): Promise<Handle> {
    const { runner } = this.#deps;
    const { command, env, files = {}, mounts = [], image, job, hardware, leaseMs } = spec;
    return runner.prepare(
      {
        id: this.id,
        machine: LOCAL_MACHINE,
        command,
        image,
        env,
        files,
        mounts,
        job,
        hardware,
        leaseMs,
        timeoutMs: spec.work.timeoutMs,
        log: spec.work.log,
        checkout: async (work, abort, home) => {
          await mkdir(work);
          await this.#client.checkOut({ work, home }, spec, abort);
        },
        report: (progress) => {
          this.#progress = progress;
          this.#deps.onChanged();
        },
      },
      signal,
    );
  }

  async #start(signal: AbortSignal): Promise<void> {
    const { runner } = this.#deps;
    const handle = this.#handle as Handle;
    await runner.start(handle, async () => {
      const { gpus } = this.report;
      const given: AgentBegin = gpus ? { gpus } : {};
      const begun = await this.#client.request('begin', { method: 'POST', json: given, signal });
      const { files } = (await begun.json()) as AgentPermission;
      if (files) await runner.replaceFiles(handle, files);
      return true;
    });
    this.#progress = undefined;
    await this.#send((following) => this.#follow(handle, following), signal);
  }

  /**
   * Sends the log and the end to the server, until it dismisses the agent.
   * @param follow resolves with the end when the log is complete; null: the work was lost
   */
  async #send(
    follow: (signal: AbortSignal) => Promise<AttemptExit | null>,
    signal: AbortSignal,
  ): Promise<void> {
    const { runner } = this.#deps;
    const sending = new AbortController();
    const over = AbortSignal.any([signal, sending.signal]);
    if (!existsSync(this.#path('log'))) closeSync(openSync(this.#path('log'), 'a', 0o600));
    const handle = this.#handle;
    const sender = new Sender({
      client: this.#client,
      dir: this.#dir,
      async measureUsage() {
        const usage = handle ? await runner.stats(handle) : null;
        return usage && { at: Date.now(), ...usage };
      },
      openOutput: async (path, options) =>
        handle ? runner.artifacts(handle, path, options) : null,
      stop: (how) => void (handle && runner.signal(handle, how).catch(() => {})),
      endCommand: () => {},
      async exec(spec) {
        if (!handle || !runner.exec) throw new NotExecutable('The job does not run.');
        return runner.exec(handle, spec);
      },
      writeFiles: (files) => void (handle && runner.replaceFiles(handle, files).catch(() => {})),
      interruptedAt: () => undefined,
    });
    sender.setStarted({ pid: 0, startedAt: Date.now() });
    const followed = follow(over).then((exit) => {
      if (exit === null) return this.#giveUp({ lost: 'its process was lost' });
      sender.setExit(exit);
      // The change also wakes the sender.
      writeJsonAtomically(this.#path('exit'), exit);
    });
    const sent = sender.run(over);
    try {
      await Promise.race([sent, followed.then(() => sent)]);
    } finally {
      sending.abort();
      await Promise.allSettled([sent, followed]);
    }
  }

  /** Copies the log until its end. @returns how the work ended; null: it was lost */
  async #follow(handle: Handle, signal: AbortSignal): Promise<AttemptExit | null> {
    const stored = await readJsonFile<AttemptExit>(this.#path('exit'));
    if (stored) return stored;
    const unreachable = new AbortController();
    const waiting = this.#deps.runner.wait(handle, signal).then((outcome) => {
      // The log of an engine that does not answer may not end.
      if (outcome.kind === 'lost' && outcome.unreachable) unreachable.abort();
      return outcome;
    });
    const copying = this.#copyLog(handle, AbortSignal.any([signal, unreachable.signal]));
    const [outcome] = await Promise.all([waiting, copying]);
    signal.throwIfAborted();
    return toExit(outcome);
  }

  async #copyLog(handle: Handle, signal: AbortSignal): Promise<void> {
    const log = openSync(this.#path('log'), 'a+', 0o600);
    using _ = { [Symbol.dispose]: () => closeSync(log) };
    const stored = await readJsonFile<CursorFile>(this.#path('cursor.json'));
    // Lines after the stored cursor are copied again.
    ftruncateSync(log, stored?.size ?? 0);
    for await (const { lines, cursor } of this.#deps.runner.logs(
      handle,
      stored?.cursor ?? null,
      signal,
    )) {
      const frames = Buffer.from(lines.map(toFrame).join(''));
      for (let done = 0; done < frames.length; ) done += writeSync(log, frames, done);
      const position: CursorFile = { cursor, size: fstatSync(log).size };
      writeJsonAtomically(this.#path('cursor.json'), position);
    }
  }

  /** Reports the attempt as lost until the server removes it. */
  async #giveUp(failure: { lost: string } | { refused: string }): Promise<void> {
    // Before that nothing of it may run any more.
    if (this.#handle) await this.#removeFromRunner();
    this.#failure = failure;
    this.#deps.onChanged();
    const { signal } = this.#over;
    const { promise, resolve } = Promise.withResolvers<void>();
    signal.addEventListener('abort', () => resolve(), { once: true });
    if (!signal.aborted) await promise;
  }

  async #remove(): Promise<void> {
    await this.#removeFromRunner();
    await rm(this.#dir, { recursive: true, force: true });
    this.#deps.onChanged();
  }

  async #removeFromRunner(): Promise<void> {
    const { runner, log } = this.#deps;
    const backoff = new Backoff(PAUSES);
    for (;;) {
      try {
        return await runner.remove(this.#handle ?? { attempt: this.id });
      } catch (error) {
        log.warn({ err: error, attempt: this.id }, 'the attempt cannot be removed yet');
        await backoff.pause();
      }
    }
  }

  #renewLease(at: number | undefined): void {
    if (at === undefined || at - this.#leaseWrittenAt < LEASE_STEP_S) return;
    try {
      renewLease(this.#dir, at);
      if (this.#handle) this.#deps.runner.renewLease?.(this.#handle, at);
      this.#leaseWrittenAt = at;
    } catch {
      // The disk is full, or the attempt is being removed.
    }
  }

  #path(name: string): string {
    return join(this.#dir, name);
  }
}

function toExit(outcome: Outcome): AttemptExit | null {
  if (outcome.kind === 'lost') return null;
  if (outcome.kind === 'unstartable') {
    const now = Date.now();
    const { reason } = outcome;
    const times = { startedAt: now, endedAt: now };
    return { exitCode: UNSTARTABLE_EXIT, timedOut: false, ...times, unstartable: true, reason };
  }
  const { exitCode, timedOut, startedAt, endedAt, note, outOfMemory, hasResults } = outcome;
  return {
    exitCode,
    timedOut,
    startedAt: startedAt.getTime(),
    endedAt: endedAt.getTime(),
    unstartable: false,
    ...(note !== undefined && { reason: note }),
    outOfMemory,
    hasResults,
  };
}

/** Short enough for a report, without half of a character at its end. */
function toLine(text: string, maxLength: number): string {
  return text.slice(0, maxLength).toWellFormed();
}

/** The form of `../supervisor/lines.ts`. */
function toFrame({ timestamp, stream, message }: RunnerLine): string {
  const isCut = message.endsWith(CUT_MARK);
  const letter = stream === 'stdout' ? 'o' : 'e';
  const text = isCut ? message.slice(0, -CUT_MARK.length) : message;
  return `${timestamp.getTime()} ${isCut ? letter.toUpperCase() : letter} ${text}\n`;
}
