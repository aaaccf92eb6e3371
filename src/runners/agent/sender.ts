/** Sends the files that the supervisor writes on the node to the worker, and receives what the worker wants. */
import { closeSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { sleep } from '../../base/backoff.ts';
import {
  ArtifactsNotKept,
  type ExecSession,
  type ExecSpec,
  type ReadOptions,
  UnchangedFiles,
} from '../runner.ts';
import { watchChanges } from '../supervisor/folder.ts';
import type { AttemptExit, AttemptStart } from '../supervisor/supervise.ts';
import { type AgentClient, leaseIsOver, Refused } from './client.ts';
import { ExecClient } from './exec-client.ts';
import {
  type AgentControl,
  type AgentExit,
  type AgentReport,
  type AgentUsage,
  CONTROL_MS,
  LOG_REQUEST_BYTES,
  type LogPosition,
  MAX_REASON_LENGTH,
  type OutputFailure,
} from './protocol.ts';

const NEWLINE = 0x0a;
/** Interval of checks of the lease: a request that gets no answer would notice its end a minute late. */
const LEASE_CHECK_MS = 1_000;
/** Interval of measurements of the usage. */
const USAGE_MS = 2_000;
/** Engines kill what has not ended 30 to 40 seconds after their signal. */
const LAST_FILES_MS = 30_000;

type SenderOptions = {
  client: AgentClient;
  /** Contains the log. */
  dir: string;
  /** Null while the usage is unknown. */
  measureUsage(): Promise<AgentUsage | null>;
  /**
   * A tar of the path, as the job sees it; null: nothing exists there. It may fail with ArtifactsNotKept.
   * @throws UnchangedFiles
   */
  openOutput(path: string, options: ReadOptions): Promise<Readable | null>;
  /** Ends the command. */
  stop(how: 'TERM' | 'KILL'): void;
  /** The engine reports that the command has ended. */
  endCommand(): void;
  /** Writes the provided files. */
  writeFiles(files: Record<string, string>): void;
  /** Starts a command beside that of the job. @throws NotExecutable */
  exec(spec: ExecSpec): Promise<ExecSession>;
  /** When the engine signalled this program, in milliseconds since the epoch. */
  interruptedAt(): number | undefined;
};

export class Sender {
  readonly #options: SenderOptions;
  /** Aborts when the worker has everything, or refuses the agent. */
  readonly #over = new AbortController();
  #started: AttemptStart | undefined;
  #exit: AttemptExit | undefined;

  constructor(options: SenderOptions) {
    this.#options = options;
  }

  /**
   * Runs until the worker has everything and dismisses the agent.
   * @param signal ends it early
   * @returns the exit code of the command
   * @throws Refused when the worker refuses the agent, or the lease is over: the command was killed
   */
  async run(signal?: AbortSignal): Promise<number | null> {
    const { client, stop } = this.#options;
    const abort = () => this.#over.abort(signal?.reason);
    signal?.addEventListener('abort', abort, { once: true });
    if (signal?.aborted) abort();
    const lease = setInterval(() => {
      if (client.isLeaseOver) this.#over.abort(leaseIsOver());
    }, LEASE_CHECK_MS);
    const controlling = this.#receiveControl();
    const measuring = this.#reportUsage();
    try {
      const { exitCode, isInterrupted } = await this.#sendLogAndExit();
      // The engine waits for its end. Meanwhile the worker may take the files that the next attempt needs.
      if (isInterrupted) await Promise.race([controlling, sleep(LAST_FILES_MS, this.#over.signal)]);
      else await controlling;
      return exitCode;
    } catch (error) {
      if (error instanceof Refused) stop('KILL');
      throw error;
    } finally {
      clearInterval(lease);
      signal?.removeEventListener('abort', abort);
      this.#over.abort();
      await Promise.allSettled([controlling, measuring]);
    }
  }

  /* Not read from the supervisor's files, which the job may be able to write or delete. */

  setStarted(started: AttemptStart): void {
    this.#started = started;
  }

  setExit({ reason, ...exit }: AttemptExit): void {
    // A message of Node may contain the whole program.
    const short = reason?.slice(0, MAX_REASON_LENGTH);
    this.#exit = { ...exit, ...(short !== undefined && { reason: short }) };
  }

  /** Sends the log while it grows, and then how the attempt ended. */
  async #sendLogAndExit(): Promise<AgentExit> {
    const { client, dir, interruptedAt } = this.#options;
    const { signal } = this.#over;
    using changes = watchChanges(dir, signal, ['log', 'exit', 'started']);
    const file = openSync(join(dir, 'log'), 'r');
    using _ = { [Symbol.dispose]: () => closeSync(file) };
    const buffer = Buffer.allocUnsafe(LOG_REQUEST_BYTES);
    let sent = 0;
    let hasReportedStart = false;
    for (;;) {
      signal.throwIfAborted();
      // Read before the log, so that the log is complete when there is an exit.
      const exit = this.#exit;
      const length = readSync(file, buffer, 0, buffer.length, sent);
      const frames = buffer.subarray(0, buffer.subarray(0, length).lastIndexOf(NEWLINE) + 1);
      if (frames.length > 0) {
        const path = `log?offset=${sent}`;
        const response = await client.request(path, { method: 'PUT', body: frames, signal });
        sent = ((await response.json()) as LogPosition).size;
      } else if (exit) {
        const isInterrupted = (interruptedAt() ?? Number.POSITIVE_INFINITY) <= exit.endedAt;
        const end: AgentExit = { ...exit, ...(isInterrupted && { isInterrupted }) };
        const response = await this.#report({ exit: { ...end, logBytes: sent } });
        const { size } = (await response.json()) as LogPosition;
        if (size === sent) return end;
        sent = size;
      } else {
        const started = hasReportedStart ? undefined : this.#started;
        if (started) {
          await this.#report({ started });
          hasReportedStart = true;
        } else await changes.next();
      }
    }
  }

  async #reportUsage(): Promise<void> {
    const { signal } = this.#over;
    while (!signal.aborted) {
      const usage = await this.#options.measureUsage().catch(() => null);
      // Not repeated: a later measurement replaces it.
      if (usage)
        await this.#options.client
          .requestOnce('report', { method: 'POST', json: { usage }, signal })
          .catch(() => {});
      await sleep(USAGE_MS, signal);
    }
  }

  #report(report: AgentReport): Promise<Response> {
    const { signal } = this.#over;
    return this.#options.client.request('report', { method: 'POST', json: report, signal });
  }

  /** Settles when the worker dismisses the agent. */
  async #receiveControl(): Promise<void> {
    const { client, exec, stop, endCommand, writeFiles } = this.#options;
    const { signal } = this.#over;
    using execs = new ExecClient({ client, exec });
    let seen = '';
    let sentOutput = '';
    let outdated = new AbortController();
    const sending = new Set<Promise<void>>();
    try {
      for (;;) {
        const path = `control?can=exec&seen=${encodeURIComponent(seen)}`;
        const response = await client.request(path, { signal, timeoutMs: 2 * CONTROL_MS });
        const control = (await response.json()) as AgentControl;
        seen = control.version;
        if (control.isDismissed && this.#exit) return;
        if (control.isDismissed) throw new Refused('the worker has removed the attempt');
        if (control.signal) stop(control.signal);
        if (control.files) writeFiles(control.files);
        execs.update(control.execs ?? []);
        if (control.isCommandOver) endCommand();
        if (control.output && control.output.request !== sentOutput) {
          sentOutput = control.output.request;
          outdated.abort();
          outdated = new AbortController();
          const latest = AbortSignal.any([signal, outdated.signal]);
          // Not awaited: a signal for the running command must not wait for it.
          const sent = this.#sendOutput(control.output, latest).catch((error) => {
            if (!latest.aborted) this.#over.abort(error);
          });
          sending.add(sent);
          void sent.finally(() => sending.delete(sent));
        }
      }
    } catch (error) {
      // Ends `run`, also while it waits for lines.
      this.#over.abort(error);
      throw error;
    } finally {
      await Promise.all(sending);
    }
  }

  /**
   * Not repeated: the worker repeats its request when the transfer breaks.
   * @param signal aborts when the worker has another request
   */
  async #sendOutput(
    { request, path, ...options }: NonNullable<AgentControl['output']>,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, openOutput } = this.#options;
    const target = `output?request=${encodeURIComponent(request)}`;
    const fail = async (failure: OutputFailure) =>
      void (await client.request(target, { method: 'POST', json: failure, signal }));
    let tar: Readable | null;
    try {
      tar = await openOutput(path, options);
    } catch (error) {
      if (error instanceof UnchangedFiles) return fail({ reason: null, isUnchanged: true });
      if (error instanceof ArtifactsNotKept) return fail({ reason: error.message });
      // The command runs on without it.
      if (options.snapshot) return fail({ reason: 'the machine could not read them' });
      throw error;
    }
    if (!tar) return fail({ reason: null });
    let reason: string | undefined;
    tar.once('error', (error) => {
      if (error instanceof ArtifactsNotKept) reason = error.message;
    });
    try {
      const body = Readable.toWeb(tar) as ReadableStream;
      await client.requestOnce(target, { method: 'PUT', body, signal, timeoutMs: null });
    } catch (error) {
      if (error instanceof Refused) throw error;
      if (reason !== undefined) await fail({ reason });
    }
  }
}
