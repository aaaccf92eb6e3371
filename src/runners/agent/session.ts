/**
 * The worker's side of one agent: stores what the agent sends in the folder of the attempt, and passes on what the worker wants.
 * All that a restarted worker needs is in the folder:
 *
 *   agent.json  the digest of the token, and the boot in which the attempt was prepared, because its files are not synced
 *   spec.json   the command with its environment; removed when the command begins, because it contains secrets
 *   checkout    the working directory, until the command begins
 *   claim       the agent that has the attempt; created once
 *   begun       the command may have begun
 *   contact     its time is that of the last request, a few seconds old at most
 *   log, started, usage, exit   as the supervisor wrote them on the node (`../supervisor/supervise.ts`)
 */
import { createHash, randomUUID, timingSafeEqual } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  openSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { AppError, invalid } from '../../base/errors.ts';
import { ArtifactsNotKept, MAX_LINE_BYTES, type MayBegin } from '../runner.ts';
import { syncLog, writeJsonAtomically } from '../supervisor/claim.ts';
import { readJsonFile } from '../supervisor/folder.ts';
import type { LogLimits } from '../supervisor/lines.ts';
import {
  type AgentClaim,
  type AgentControl,
  type AgentReport,
  type AgentSpec,
  CONTROL_MS,
  type LogPosition,
  type OutputFailure,
} from './protocol.ts';

/** The file `agent.json`. */
export type AgentRecord = { tokenHash: string; bootId: string; log: LogLimits; leaseMs: number };

/** The agent may need this long after the end of its lease to notice it and to kill the command. */
const LEASE_MARGIN_MS = 60_000;
/** How often the time of the last request is stored. */
const CONTACT_S = 5;
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
  /** The agent has asked. */
  isAsked: boolean;
  settled: PromiseWithResolvers<boolean>;
};
type WantedOutput = {
  request: string;
  path: string;
  received: PromiseWithResolvers<Readable | null>;
};

export class AgentSession {
  readonly #folder: string;
  readonly #record: AgentRecord;
  /** Adds where the attempt runs to what `mayBegin` stores. */
  readonly #locate: (claim: AgentClaim) => Parameters<MayBegin>[0];
  /** Distinguishes the versions and requests of this process from those of the previous one. */
  readonly #epoch = randomUUID();
  #version = 0;
  #control: Omit<AgentControl, 'version'> = {};
  #changed = Promise.withResolvers<void>();
  #permission: Permission | undefined;
  #output: WantedOutput | undefined;
  #lastRequest = 0;
  /** Seconds of the clock that runs while the machine is suspended. */
  #contactAt: number;
  #contactStoredAt = Number.NEGATIVE_INFINITY;
  #isClosed = false;
  /** Serializes the requests that write the log. */
  #writing: Promise<unknown> = Promise.resolve();

  constructor(
    folder: string,
    record: AgentRecord,
    locate: (claim: AgentClaim) => Parameters<MayBegin>[0],
  ) {
    this.#folder = folder;
    this.#record = record;
    this.#locate = locate;
    // Of a request to the previous process only the wall clock is known.
    const stored =
      statSync(this.#file('contact'), { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
    this.#contactAt = uptime() - Math.max(0, Date.now() - stored) / 1_000;
  }

  get hasBegun(): boolean {
    return existsSync(this.#file('begun'));
  }

  /** Whether the agent has been silent for so long that it has certainly killed the command. */
  get isLeaseOver(): boolean {
    return (uptime() - this.#contactAt) * 1_000 > this.#record.leaseMs + LEASE_MARGIN_MS;
  }

  /** The agent that has claimed the attempt. */
  readClaim(): Promise<AgentClaim | undefined> {
    return readJsonFile<AgentClaim>(this.#file('claim'));
  }

  /* What the worker wants */

  /** Settles when something has changed that the worker may wait for. */
  get changed(): Promise<void> {
    return this.#changed.promise;
  }

  /**
   * Lets the agent begin when it asks.
   * @returns settles with the answer of `mayBegin`
   */
  permit(mayBegin: MayBegin): Promise<boolean> {
    this.#permission?.settled.resolve(false);
    const settled = Promise.withResolvers<boolean>();
    this.#permission = { mayBegin, isAsked: false, settled };
    return settled.promise;
  }

  /** Withdraws the permission. When this settles with false, the attempt cannot begin without another one. */
  async withdraw(): Promise<boolean> {
    const permission = this.#permission;
    if (permission?.isAsked) return await permission.settled.promise;
    this.#permission = undefined;
    return this.hasBegun;
  }

  signal(name: 'TERM' | 'KILL'): void {
    if (this.#control.signal !== 'KILL') this.#setControl({ signal: name });
  }

  endCommand(): void {
    if (!this.#control.isCommandOver) this.#setControl({ isCommandOver: true });
  }

  /** @returns a tar of the path; null: nothing exists there. @throws ArtifactsNotKept */
  async requestOutput(path: string, signal: AbortSignal): Promise<Readable | null> {
    const received = Promise.withResolvers<Readable | null>();
    const request = `${this.#epoch}.${++this.#lastRequest}`;
    this.#output = { request, path, received };
    this.#setControl({ output: { request, path } });
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
    this.#setControl({ isDismissed: true });
  }

  #setControl(change: Partial<AgentControl>): void {
    this.#control = { ...this.#control, ...change };
    this.#version++;
    this.#notify();
  }

  #notify(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }

  /* Requests of the agent */

  /** @throws AppError 401 for another token, 409 for a second agent, 410 when the attempt is over */
  async authenticate(token: string, nonce: string): Promise<void> {
    this.checkToken(token);
    const claim = await this.readClaim();
    if (claim?.nonce !== nonce) throw refuse(409, 'Another agent has claimed this attempt');
    this.#touch();
  }

  checkToken(token: string): void {
    const given = Buffer.from(hashToken(token));
    if (!timingSafeEqual(given, Buffer.from(this.#record.tokenHash)))
      throw refuse(401, 'The token is not that of the attempt');
  }

  #touch(): void {
    this.#contactAt = uptime();
    if (this.#contactAt - this.#contactStoredAt < CONTACT_S) return;
    this.#contactStoredAt = this.#contactAt;
    writeFileSync(this.#file('contact'), '');
    const now = Date.now() / 1_000;
    utimesSync(this.#file('contact'), now, now);
  }

  async claim(claim: AgentClaim): Promise<AgentSpec> {
    if (this.#isClosed) throw over();
    const existing = await this.readClaim();
    if (existing && existing.nonce !== claim.nonce)
      throw refuse(409, 'Another agent has claimed this attempt');
    const spec = await readJsonFile<AgentSpec>(this.#file('spec.json'));
    if (!spec) throw over();
    if (!existing) writeJsonAtomically(this.#file('claim'), claim, this.#folder);
    this.#touch();
    this.#notify();
    return spec;
  }

  /** The folder of the working directory; null if the job has none. */
  get checkoutDir(): string | null {
    const dir = this.#file('checkout');
    return existsSync(dir) ? dir : null;
  }

  /** @throws AppError 503 while no worker supervises the attempt, or it may not begin */
  async begin(): Promise<void> {
    if (this.hasBegun) return;
    if (this.#isClosed) throw over();
    const permission = this.#permission;
    const claim = await this.readClaim();
    if (!permission || !claim) throw refuse(503, 'The worker is not ready yet');
    permission.isAsked = true;
    try {
      const may = await permission.mayBegin(this.#locate(claim));
      if (may) {
        writeJsonAtomically(this.#file('begun'), {}, this.#folder);
        rmSync(this.#file('spec.json'), { force: true });
      }
      permission.settled.resolve(may);
      // The agent asks again, until the worker removes the attempt or permits it after all.
      if (!may) throw refuse(503, 'The attempt may not begin');
    } catch (error) {
      permission.settled.reject(error);
      throw error;
    } finally {
      if (this.#permission === permission) this.#permission = undefined;
      this.#notify();
    }
  }

  /** Appends whole frames at `offset`, of which the worker may have a part already. */
  async appendLog(offset: number, frames: Buffer): Promise<LogPosition> {
    const append = this.#writing.then(() => this.#appendLog(offset, frames));
    this.#writing = append.catch(() => {});
    return append;
  }

  #appendLog(offset: number, frames: Buffer): LogPosition {
    if (this.#isClosed) throw over();
    checkFrames(frames);
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
    try {
      for (let done = 0; done < rest.length; ) done += writeSync(fd, rest, done);
    } catch (error) {
      // A partial frame would be read as a line.
      ftruncateSync(fd, size);
      throw error;
    }
    return { size: size + rest.length };
  }

  report({ started, usage, exit }: AgentReport): void {
    if (this.#isClosed) throw over();
    if (started) writeJsonAtomically(this.#file('started'), started);
    if (usage) writeJsonAtomically(this.#file('usage'), usage);
    if (!exit || existsSync(this.#file('exit'))) return;
    const { logBytes, ...end } = exit;
    const size = statSync(this.#file('log')).size;
    if (size !== logBytes)
      throw refuse(503, `The worker has ${size} of the ${logBytes} bytes of the log`);
    syncLog(this.#file('log'));
    writeJsonAtomically(this.#file('exit'), end, this.#folder);
    rmSync(this.#file('checkout'), { recursive: true, force: true });
    this.#notify();
  }

  /** Answers when something has changed since `seen`, or after a while. */
  async control(seen: string, signal: AbortSignal): Promise<AgentControl> {
    const timeout = AbortSignal.any([signal, AbortSignal.timeout(CONTROL_MS)]);
    while (seen === this.#versionText && !timeout.aborted)
      await Promise.race([
        this.#changed.promise,
        delay(CONTROL_MS, undefined, { signal: timeout, ref: false }).catch(() => {}),
      ]);
    this.#touch();
    return { ...this.#control, version: this.#versionText };
  }

  get #versionText(): string {
    return `${this.#epoch}.${this.#version}`;
  }

  /**
   * Receives the tar that the worker has requested.
   * @returns the stream to write it into
   */
  receiveOutput(request: string): PassThrough {
    const output = this.#takeOutput(request);
    const stream = new PassThrough();
    output.received.resolve(stream);
    return stream;
  }

  failOutput(request: string, { reason }: OutputFailure): void {
    const { received } = this.#takeOutput(request);
    if (reason === null) received.resolve(null);
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

/** @throws AppError 400 unless the bytes are whole frames of a log */
function checkFrames(frames: Buffer): void {
  const text = frames.toString('latin1');
  if (!text.endsWith('\n')) throw invalid(null, 'The last frame of the log is not complete');
  for (let at = 0; at < text.length; ) {
    const end = text.indexOf('\n', at);
    const isFrame = FRAME.test(text.slice(at, at + FRAME_BYTES - 1));
    if (!isFrame || end - at > MAX_LINE_BYTES + FRAME_BYTES)
      throw invalid(null, `The frame at byte ${at} of the request is not one of a log`);
    at = end + 1;
  }
}

function refuse(status: number, message: string): AppError {
  return new AppError('conflict', message, { status });
}

function over(): AppError {
  return refuse(410, 'The attempt is over');
}
