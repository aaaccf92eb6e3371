/** Opens the sessions for commands beside that of the job that the worker wants (`remote-exec.ts`), and serves them to it. */
import type { Duplex } from 'node:stream';
import { writeFrame } from '../../platform/frames.ts';
import { serveExec } from '../exec-stream.ts';
import { type ExecSession, type ExecSpec, NotExecutable } from '../runner.ts';
import type { AgentClient } from './client.ts';
import {
  EXEC_KEEPALIVE_MS,
  type ExecRefusal,
  MAX_REASON_LENGTH,
  type WantedExec,
} from './protocol.ts';

type Options = {
  client: AgentClient;
  /** Starts a command beside that of the job. @throws NotExecutable */
  exec(spec: ExecSpec): Promise<ExecSession>;
};

/** Disposing of it ends the sessions. */
export class ExecClient implements Disposable {
  readonly #options: Options;
  /** The ids of the wanted sessions that were begun with. */
  #known = new Set<string>();
  readonly #over = new AbortController();

  constructor(options: Options) {
    this.#options = options;
  }

  /** @param wanted all sessions that the worker waits for */
  update(wanted: readonly WantedExec[]): void {
    const added = wanted.filter(({ session }) => !this.#known.has(session));
    this.#known = new Set(wanted.map(({ session }) => session));
    // Its errors are those of a connection that was lost.
    for (const one of added) void this.#open(one).catch(() => {});
  }

  async #open({ session, spec }: WantedExec): Promise<void> {
    const { client, exec } = this.#options;
    const { signal } = this.#over;
    const path = `exec?session=${session}`;
    const refuse = async (reason: string) => {
      const json: ExecRefusal = { reason: reason.slice(0, MAX_REASON_LENGTH).toWellFormed() };
      await client.requestOnce(path, { method: 'POST', json, signal });
    };
    let opened: ExecSession;
    try {
      opened = await exec(spec);
    } catch (error) {
      const { message } = error as Error;
      const isRefusal = error instanceof NotExecutable;
      return refuse(isRefusal ? message : `The node could not start the command: ${message}.`);
    }
    let connection: Duplex;
    try {
      connection = await client.upgrade(path, signal);
    } catch (error) {
      opened.close();
      return refuse(
        `The node could not open a connection for the session (${(error as Error).message}). A proxy in front of the server must pass HTTP upgrades on.`,
      );
    }
    await this.#serve(opened, connection);
  }

  async #serve(opened: ExecSession, connection: Duplex): Promise<void> {
    const { signal } = this.#over;
    const end = () => connection.destroy();
    signal.addEventListener('abort', end);
    if (signal.aborted) end();
    using _ = keepAlive(connection);
    await serveExec(opened, connection);
    signal.removeEventListener('abort', end);
  }

  [Symbol.dispose](): void {
    this.#over.abort();
  }
}

/** Proxies close connections without traffic. */
export function keepAlive(connection: Duplex): Disposable {
  const timer = setInterval(() => {
    if (!connection.writableNeedDrain && connection.writable)
      writeFrame(connection, 'data', Buffer.alloc(0));
  }, EXEC_KEEPALIVE_MS);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
