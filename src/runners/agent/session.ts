/**
 * The worker's side of one agent: stores what the agent sends in the folder of the attempt, and sends the agent the commands of
 * the worker. All that a restarted worker needs is in the folder:
 *
 *   agent.json  the digest of the token, and the boot in which the attempt was prepared, because its files are not synced
 *   spec.json   the command with its environment; removed when the command begins, because it contains secrets
 *   checkout    the working directory, until the command has ended
 *   home        the home folder, likewise; only if it is not empty
 *   claim       the agent that has the attempt; created once
 *   begun       the command may have begun, and when ({@link BegunRecord})
 *   contact     when the last request was, and when the command was seen running, a few seconds old at most
 *               ({@link ContactRecord})
 *   log, started, usage, exit   as the supervisor wrote them on the node (`../supervisor/supervise.ts`)
 */
import { createHash, randomUUID, timingSafeEqual } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import {
  closeSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { AppError } from '../../base/errors.ts';
import {
  ArtifactsNotKept,
  MAX_LINE_BYTES,
  type MayBegin,
  type ReadOptions,
  RunnerUnavailable,
  UnchangedFiles,
} from '../runner.ts';
import { syncLog, writeJsonAtomically } from '../supervisor/claim.ts';
import { readJsonFile } from '../supervisor/folder.ts';
import type { LogLimits } from '../supervisor/lines.ts';
import { readBootId } from '../supervisor/proc.ts';
import {
  type AgentBegin,
  type AgentClaim,
  type AgentControl,
  type AgentPermission,
  type AgentReport,
  type AgentSpec,
  CONTROL_MS,
  type LogPosition,
  type OutputFailure,
} from './protocol.ts';
import { RemoteExecs } from './remote-exec.ts';

/** The file `agent.json`. */
export type AgentRecord = { tokenHash: string; bootId: string; log: LogLimits; leaseMs: number };

/** The file `begun`. Times that the agent reports are not before `at`, in epoch milliseconds. */
export type BegunRecord = { at: number };

/**
 * The file `contact`: seconds of the clock that runs while the machine is suspended, and the boot that they count from.
 * `running`: unset until the command was seen running.
 */
type ContactRecord = { bootId: string; uptime: number; running?: RunningSpan | undefined };

/** When the engine reported the command as running, first and last, in epoch milliseconds of the worker. */
export type RunningSpan = { from: number; until: number };

/** The agent may need this long after the end of its lease to notice it and to kill the command. */
const LEASE_MARGIN_MS = 60_000;
/** How often the file `contact` is written. */
const CONTACT_S = 5;
/** Longer than an agent waits before it repeats a request. */
const REFUSED_LOG_S = 10;
/** Bytes before the text of a frame, and the line end after it. */
const FRAME_BYTES = 17;
/** Lines of the supervisor itself, beyond the limits of the log. */
const NOTES_BYTES = 64 * 1024;
const FRAME = /^\d{13} [oeOE] /;

export function hashToken(token: string): string {
  return createHash('sha256').update(token).digest('base64url');
}

/** The answer for the agent when it asks whether the command may begin. */
type Permission = {
  mayBegin: MayBegin;
  /** Set when the agent has asked. It may repeat the request while the first one is being answered. */
  answer?: Promise<boolean>;
  settled: PromiseWithResolvers<boolean>;
};
type WantedOutput = {
  request: string;
  received: PromiseWithResolvers<Readable | null>;
};

export type SessionOptions = {
  /** Adds where the attempt runs to what `mayBegin` stores. */
  locate(claim: AgentClaim & AgentBegin): Parameters<MayBegin>[0];
  /** Whether nothing that the agent sends counts any more. */
  isRevoked(): boolean;
};

export class AgentSession {
  readonly #folder: string;
  readonly #record: AgentRecord;
  readonly #options: SessionOptions;
  /** Distinguishes the versions and requests of this process from those of the previous one. */
  readonly #epoch = randomUUID();
  /** The commands beside that of the job. */
  readonly execs = new RemoteExecs((execs) => this.#setControl({ execs }));
  #version = 0;
  #control: Omit<AgentControl, 'version'> = {};
  readonly #changes = new EventEmitter().setMaxListeners(0);
  #permission: Permission | undefined;
  #output: WantedOutput | undefined;
  #lastRequest = 0;
  /** Seconds of the clock that runs while the machine is suspended. */
  #contactAt: number;
  #running: RunningSpan | undefined;
  /** When a part of the log was refused because of the disk, in the same seconds. */
  #logRefusedAt = Number.NEGATIVE_INFINITY;
  #contactStoredAt = Number.NEGATIVE_INFINITY;
  #isClosed = false;
  /** Serializes the requests that write the log. */
  #writing: Promise<unknown> = Promise.resolve();

  constructor(folder: string, record: AgentRecord, options: SessionOptions) {
    this.#folder = folder;
    this.#record = record;
    this.#options = options;
    const contact = this.#readContact();
    this.#running = contact?.running;
    // Unknown after a restart of the machine, or on another machine: the lease is then counted anew, because the wall
    // clock may have jumped.
    this.#contactAt = contact?.bootId === readBootId() ? contact.uptime : uptime();
  }

  /** What the previous process has stored. */
  #readContact(): ContactRecord | undefined {
    try {
      return JSON.parse(readFileSync(this.#file('contact'), 'utf8'));
    } catch {
      // There was no request yet, or the file was being written when the process was killed.
      return undefined;
    }
  }

  get hasBegun(): boolean {
    return existsSync(this.#file('begun'));
  }

  /** Milliseconds since the last request of the agent. */
  get silentMs(): number {
    return (uptime() - this.#contactAt) * 1_000;
  }

  /** Whether the agent has been silent for so long that it has certainly killed the command. */
  get isLeaseOver(): boolean {
    return this.silentMs > this.#record.leaseMs + LEASE_MARGIN_MS;
  }

  /** When the worker has seen the command running, whatever its agent reports; undefined: never. */
  get running(): RunningSpan | undefined {
    return this.#running;
  }

  /**
   * Records that the engine reports the command as running, and that its end was not received. The command may have ended all
   * the same while this server refuses the rest of its log, so that time is not recorded.
   */
  noteRunning(): void {
    if (uptime() - this.#logRefusedAt < REFUSED_LOG_S) return;
    const now = Date.now();
    this.#running = { from: this.#running?.from ?? now, until: now };
    this.#storeContact();
  }

  /** Records that the disk has no room for a part of the log. The agent sends it again. */
  noteRefusedLog(): void {
    this.#logRefusedAt = uptime();
  }

  /** The agent that has claimed the attempt. */
  readClaim(): Promise<AgentClaim | undefined> {
    return readJsonFile<AgentClaim>(this.#file('claim'));
  }

  /* Calls of the worker */

  /** Settles when something has changed that the worker or the agent may wait for, or when `signal` aborts. */
  async nextChange(signal: AbortSignal): Promise<void> {
    await once(this.#changes, 'change', { signal }).catch(() => {});
  }

  /**
   * Lets the agent begin when it asks.
   * @returns settles with the answer of `mayBegin`
   */
  permit(mayBegin: MayBegin): Promise<boolean> {
    this.#permission?.settled.resolve(false);
    const settled = Promise.withResolvers<boolean>();
    this.#permission = { mayBegin, settled };
    return settled.promise;
  }

  /**
   * Withdraws the permission to begin.
   * @returns whether the attempt has begun; if not, it cannot begin until `permit` is called again
   */
  async withdraw(): Promise<boolean> {
    const permission = this.#permission;
    if (permission?.answer) return await permission.settled.promise;
    this.#permission = undefined;
    return this.hasBegun;
  }

  signal(name: 'TERM' | 'KILL'): void {
    const { signal } = this.#control;
    if (signal !== name && signal !== 'KILL') this.#setControl({ signal: name });
  }

  replaceFiles(files: Record<string, string>): void {
    this.#setControl({ files });
  }

  endCommand(): void {
    if (!this.#control.isCommandOver) this.#setControl({ isCommandOver: true });
  }

  /** @returns a tar of the path; null: nothing exists there. @throws ArtifactsNotKept, UnchangedFiles */
  async requestOutput(
    wanted: { path: string } & ReadOptions,
    signal: AbortSignal,
  ): Promise<Readable | null> {
    const received = Promise.withResolvers<Readable | null>();
    const request = `${this.#epoch}.${++this.#lastRequest}`;
    this.#output?.received.reject(new RunnerUnavailable('the output is requested again'));
    this.#output = { request, received };
    this.#setControl({ output: { request, ...wanted } });
    const onAbort = () => received.reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      return await received.promise;
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  /** Lets the agent exit. Its later requests are refused. */
  close(): void {
    this.#isClosed = true;
    this.#permission?.settled.resolve(false);
    this.#permission = undefined;
    this.#output?.received.reject(new RunnerUnavailable('the attempt is removed'));
    this.execs.close();
    this.dismiss();
  }

  /** Lets the agent exit when it has reported the end. */
  dismiss(): void {
    this.#setControl({ isDismissed: true });
  }

  #setControl(change: Partial<AgentControl>): void {
    this.#control = { ...this.#control, ...change };
    this.#version++;
    this.#changes.emit('change');
  }

  /* Requests of the agent */

  /** @throws AppError 409 for a request of an agent that has not claimed the attempt */
  async checkClaim(nonce: string): Promise<void> {
    const claim = await this.readClaim();
    if (claim?.nonce !== nonce) throw refuse(409, 'Another agent has claimed this attempt');
    this.#touch();
  }

  /** @throws AppError 401 for another token, 410 if it was revoked */
  checkToken(token: string): void {
    const given = Buffer.from(hashToken(token));
    if (!timingSafeEqual(given, Buffer.from(this.#record.tokenHash)))
      throw refuse(401, 'The token is not that of the attempt');
    if (this.#options.isRevoked()) throw attemptOver();
  }

  /** Checked again when the body of a request has arrived, because the attempt may have been revoked meanwhile. */
  get #isOver(): boolean {
    return this.#isClosed || this.#options.isRevoked();
  }

  #touch(): void {
    if (this.#isOver) return;
    this.#contactAt = uptime();
    this.#storeContact();
  }

  #storeContact(): void {
    if (uptime() - this.#contactStoredAt < CONTACT_S) return;
    this.#contactStoredAt = uptime();
    const contact: ContactRecord = {
      bootId: readBootId(),
      uptime: this.#contactAt,
      running: this.#running,
    };
    try {
      writeFileSync(this.#file('contact'), JSON.stringify(contact));
    } catch {
      // The disk is full. The lease of the agent must not end because of that.
    }
  }

  async claim(claim: AgentClaim): Promise<AgentSpec> {
    if (this.#isOver) throw attemptOver();
    const existing = await this.readClaim();
    if (existing && existing.nonce !== claim.nonce)
      throw refuse(409, 'Another agent has claimed this attempt');
    const spec = await readJsonFile<AgentSpec>(this.#file('spec.json'));
    if (!spec) throw attemptOver();
    if (!existing) writeJsonAtomically(this.#file('claim'), claim, this.#folder);
    this.#touch();
    this.#changes.emit('change');
    return spec;
  }

  /** Where the contents of the job's folder are; null if it is empty. */
  findFolder(name: 'checkout' | 'home'): string | null {
    const dir = this.#file(name);
    return existsSync(dir) ? dir : null;
  }

  /** @throws AppError 503 while no worker supervises the attempt, or it may not begin */
  async begin(given: AgentBegin): Promise<AgentPermission> {
    if (this.#isOver) throw attemptOver();
    if (this.hasBegun) return this.#permitted;
    const claim = await this.readClaim();
    const permission = this.#permission;
    if (!permission || !claim) throw refuse(503, 'The worker is not ready yet');
    permission.answer ??= this.#askPermission(permission, { ...claim, ...given });
    const may = await permission.answer;
    if (this.#isOver) throw attemptOver();
    // The agent asks again, until the worker removes the attempt or permits it after all.
    if (!may) throw refuse(503, 'The attempt may not begin');
    return this.#permitted;
  }

  get #permitted(): AgentPermission {
    const { files } = this.#control;
    return files ? { files } : {};
  }

  async #askPermission(permission: Permission, claim: AgentClaim & AgentBegin): Promise<boolean> {
    try {
      const may = await permission.mayBegin(this.#options.locate(claim));
      if (may) {
        const begun: BegunRecord = { at: Date.now() };
        writeJsonAtomically(this.#file('begun'), begun, this.#folder);
        rmSync(this.#file('spec.json'), { force: true });
      }
      permission.settled.resolve(may);
      return may;
    } catch (error) {
      permission.settled.reject(error);
      throw error;
    } finally {
      if (this.#permission === permission) this.#permission = undefined;
      this.#changes.emit('change');
    }
  }

  /** Appends whole frames at `offset`, of which the worker may have a part already. */
  async appendLog(offset: number, frames: Buffer): Promise<LogPosition> {
    const append = this.#writing.then(() => this.#appendLog(offset, frames));
    this.#writing = append.catch(() => {});
    return append;
  }

  #appendLog(offset: number, frames: Buffer): LogPosition {
    this.#requireBegun();
    const fd = openSync(this.#file('log'), 'a+', 0o600);
    using _ = { [Symbol.dispose]: () => closeSync(fd) };
    const { size } = fstatSync(fd);
    const isExited = existsSync(this.#file('exit'));
    // After a loss of power this file may be shorter than what the agent has sent: it continues at `size`.
    if (isExited || offset > size || offset + frames.length <= size) return { size };
    const { bytes, lines } = this.#record.log;
    if (offset + frames.length > bytes + lines * FRAME_BYTES + NOTES_BYTES)
      throw refuse(413, 'The log is larger than the limit of the job');
    const rest = frames.subarray(size - offset);
    checkFrames(rest);
    try {
      for (let done = 0; done < rest.length; ) done += writeSync(fd, rest, done);
    } catch (error) {
      // A partial frame would be read as a line.
      ftruncateSync(fd, size);
      throw error;
    }
    return { size: size + rest.length };
  }

  /** The agent continues its log at the returned size, unless the worker has all of it. */
  report({ started, usage, exit }: AgentReport): LogPosition {
    this.#requireBegun();
    if (started) writeJsonAtomically(this.#file('started'), started);
    if (usage) writeJsonAtomically(this.#file('usage'), usage);
    const { size } = statSync(this.#file('log'));
    if (!exit) return { size };
    const { logBytes, ...end } = exit;
    if (existsSync(this.#file('exit'))) return { size: logBytes };
    if (size !== logBytes) return { size };
    syncLog(this.#file('log'));
    writeJsonAtomically(this.#file('exit'), end, this.#folder);
    for (const name of ['checkout', 'home'])
      rmSync(this.#file(name), { recursive: true, force: true });
    this.#changes.emit('change');
    return { size };
  }

  /**
   * An agent whose attempt has not begun here reports to a folder that was restored from an older copy. The worker
   * cannot keep the results of its command, so the agent must end.
   */
  #requireBegun(): void {
    if (this.#isOver || !this.hasBegun) throw attemptOver();
  }

  /**
   * Answers when something has changed since `seen`, or after a while.
   * @param agent.canExec whether it opens sessions for commands beside that of the job
   */
  async control(
    seen: string,
    agent: { canExec: boolean },
    signal: AbortSignal,
  ): Promise<AgentControl> {
    if (!this.#isOver) this.execs.noteAgent(agent);
    const timeout = AbortSignal.any([signal, AbortSignal.timeout(CONTROL_MS)]);
    while (seen === this.#versionText && !timeout.aborted) await this.nextChange(timeout);
    this.#touch();
    return { ...this.#control, version: this.#versionText };
  }

  get #versionText(): string {
    return `${this.#epoch}.${this.#version}`;
  }

  /** Passes the tar that the worker has requested on to it. @throws AppError 503 when the worker could not read all of it */
  async receiveOutput(request: string, tar: Readable): Promise<void> {
    const output = this.#takeOutput(request);
    const received = Readable.from(readTransfer(tar), { objectMode: false });
    output.received.resolve(received);
    await finished(received).catch(() => {
      throw refuse(503, 'The output was not stored; the worker asks for it again');
    });
  }

  failOutput(request: string, { reason, isUnchanged }: OutputFailure): void {
    const { received } = this.#takeOutput(request);
    if (isUnchanged) received.reject(new UnchangedFiles());
    else if (reason === null) received.resolve(null);
    else received.reject(new ArtifactsNotKept(reason));
  }

  /** @throws AppError 404 for an earlier request, whose answer nobody needs any more */
  #takeOutput(request: string): WantedOutput {
    const output = this.#output;
    if (output?.request !== request) throw refuse(404, 'This output is not requested');
    this.#output = undefined;
    return output;
  }

  #file(name: string): string {
    return join(this.#folder, name);
  }
}

/** @throws AppError 422, which ends the agent, unless the bytes are whole frames of a log */
function checkFrames(frames: Buffer): void {
  const text = frames.toString('latin1');
  if (!text.endsWith('\n')) throw invalidFrames('The last frame of the log is not complete');
  for (let at = 0; at < text.length; ) {
    const end = text.indexOf('\n', at);
    const isFrame = FRAME.test(text.slice(at, at + FRAME_BYTES - 1));
    if (!isFrame || end - at > MAX_LINE_BYTES + FRAME_BYTES)
      throw invalidFrames(`The frame at byte ${at} of the new part of the log is not valid`);
    at = end + 1;
  }
}

/** @throws RunnerUnavailable when the connection breaks: then the worker repeats its request */
async function* readTransfer(tar: Readable): AsyncGenerator<Buffer> {
  try {
    yield* tar;
  } catch {
    throw new RunnerUnavailable('the node disconnected while it sent the artifacts');
  }
}

function invalidFrames(message: string): AppError {
  return new AppError('invalid_request', message, { status: 422 });
}

function refuse(status: number, message: string): AppError {
  return new AppError('conflict', message, { status });
}

function attemptOver(): AppError {
  return refuse(410, 'The attempt is over');
}
