/**
 * The worker's side of commands beside that of a job on a node (`Runner.exec`). The agent is told of each by the answer to its
 * `control` request, starts the command, and opens an outgoing connection for it, over which its streams pass as frames
 * (`../exec-stream.ts`). So nothing connects to a node.
 */
import { randomUUID } from 'node:crypto';
import { type Duplex, PassThrough, Writable } from 'node:stream';
import {
  encodeFrame,
  encodeJsonFrame,
  FrameReader,
  type TerminalSize,
  waitForDrain,
  writeFrame,
} from '../../platform/frames.ts';
import { type ExecSession, type ExecSpec, NotExecutable } from '../runner.ts';
import { keepAlive } from './exec-client.ts';
import type { WantedExec } from './protocol.ts';

/** Time for the agent to start the command and to connect. */
const OPEN_TIMEOUT_MS = 15_000;
const MAX_EXIT_CODE = 255;

type Waiting = { spec: ExecSpec; opened: PromiseWithResolvers<ExecSession> };

/** The commands of one attempt, by the unguessable ids of their sessions. */
export class RemoteExecs {
  readonly #waiting = new Map<string, Waiting>();
  readonly #connections = new Set<Duplex>();
  readonly #onChange: (wanted: WantedExec[]) => void;
  /** Why no command can run; unset: the agent opens sessions, or has not said yet whether it does. */
  #refusal: string | undefined;

  /** @param onChange receives the sessions that the agent shall open */
  constructor(onChange: (wanted: WantedExec[]) => void) {
    this.#onChange = onChange;
  }

  /**
   * Waits until the agent has opened the session.
   * @param node for people
   * @throws NotExecutable
   */
  async open(spec: ExecSpec, node: string): Promise<ExecSession> {
    if (this.#refusal !== undefined) throw new NotExecutable(this.#refusal);
    const id = randomUUID();
    const opened = Promise.withResolvers<ExecSession>();
    this.#waiting.set(id, { spec, opened });
    this.#announce();
    const late = `${node} did not open the session within ${OPEN_TIMEOUT_MS / 1_000} seconds.`;
    const timer = setTimeout(() => this.refuse(id, late), OPEN_TIMEOUT_MS);
    return opened.promise.finally(() => clearTimeout(timer));
  }

  #announce(): void {
    this.#onChange(Array.from(this.#waiting, ([session, { spec }]) => ({ session, spec })));
  }

  /** Ends the wait for a session. @returns undefined: nobody waits for it (any more) */
  #take(id: string): Waiting | undefined {
    const waiting = this.#waiting.get(id);
    if (this.#waiting.delete(id)) this.#announce();
    return waiting;
  }

  /** @returns what takes the connection of the agent; undefined: nobody waits for this session (any more) */
  take(id: string): ((connection: Duplex) => void) | undefined {
    const waiting = this.#take(id);
    return (
      waiting &&
      ((connection) => {
        this.#connections.add(connection);
        connection.once('close', () => this.#connections.delete(connection));
        waiting.opened.resolve(openRemoteExec(connection, waiting.spec));
      })
    );
  }

  /** The agent could not start the command. @returns false: nobody waits for this session (any more) */
  refuse(id: string, reason: string): boolean {
    const waiting = this.#take(id);
    waiting?.opened.reject(new NotExecutable(reason));
    return waiting !== undefined;
  }

  /** Called with each `control` request. */
  noteAgent({ canExec }: { canExec: boolean }): void {
    this.#refusal = canExec
      ? undefined
      : 'The program on the node is of an earlier version of Loam, which opens no sessions.';
    if (this.#refusal !== undefined) this.#refuseAll(this.#refusal);
  }

  #refuseAll(reason: string): void {
    for (const id of [...this.#waiting.keys()]) this.refuse(id, reason);
  }

  /** Ends all sessions. */
  close(): void {
    this.#refusal = 'The job does not run.';
    this.#refuseAll(this.#refusal);
    for (const connection of this.#connections) connection.destroy();
  }
}

/**
 * The session at the other end of a connection that `serveExec` serves. A stream that nobody reads holds up both, so that memory is
 * bounded.
 * @param connection at the first byte. The other end may be hostile
 */
function openRemoteExec(connection: Duplex, { terminal }: Pick<ExecSpec, 'terminal'>): ExecSession {
  const stdout = new PassThrough();
  const stderr = terminal ? null : new PassThrough();
  const exited = Promise.withResolvers<number | null>();
  let exitCode: number | null = null;
  const reader = new FrameReader({
    bytes(kind, piece) {
      const target = (kind === 'stderr' && stderr) || stdout;
      if (!target.destroyed) target.write(piece);
    },
    json(kind, value) {
      if (kind !== 'exit') throw new Error(`A frame of the kind ${kind} was not expected`);
      exitCode = readExitCode(value);
      connection.destroy();
    },
  });
  const outputs = stderr ? [stdout, stderr] : [stdout];
  connection.on('error', () => {});
  connection.on('data', (chunk: Buffer) => {
    try {
      reader.push(chunk);
    } catch {
      connection.destroy();
    }
    const full = outputs.filter((output) => output.writableNeedDrain && !output.destroyed);
    if (full.length === 0) return;
    connection.pause();
    void Promise.all(full.map(waitForDrain)).then(() => connection.resume());
  });
  connection.once('end', () => connection.destroy());
  const stdin = openInput(connection);
  const alive = keepAlive(connection);
  const onClose = () => {
    alive[Symbol.dispose]();
    stdin.destroy();
    for (const output of outputs) output.end();
    exited.resolve(exitCode);
  };
  connection.once('close', onClose);
  if (connection.destroyed) onClose();
  // It was paused at the first byte.
  connection.resume();
  return {
    stdin,
    stdout,
    stderr,
    exited: exited.promise,
    async resize(size: TerminalSize) {
      if (connection.destroyed) return;
      const isWritable = connection.write(encodeJsonFrame('resize', size));
      if (!isWritable) await waitForDrain(connection);
    },
    close: () => void connection.destroy(),
  };
}

function openInput(connection: Duplex): Writable {
  const send = async (write: () => boolean) => {
    if (!connection.destroyed && !write()) await waitForDrain(connection);
  };
  const stdin = new Writable({
    write: (chunk, _, done) =>
      void send(() => writeFrame(connection, 'data', chunk)).then(() => done()),
    final: (done) =>
      void send(() => connection.write(Buffer.concat(encodeFrame('end', Buffer.alloc(0))))).then(
        () => done(),
      ),
  });
  // The command has ended before it read its input.
  stdin.on('error', () => {});
  return stdin;
}

/** Null: the other end knows none. */
function readExitCode(value: unknown): number | null {
  const code = (value as { code?: unknown } | null)?.code;
  const isCode = Number.isInteger(code) && Number(code) >= 0 && Number(code) <= MAX_EXIT_CODE;
  return isCode ? Number(code) : null;
}
