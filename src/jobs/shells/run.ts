/** Runs a shell or command in an attempt of this process, and records its begin and its end in the audit log. */
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import type { Config } from '../../base/config/config.ts';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { type Actor, recordAudit } from '../../identity/audit.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { type ExecTraffic, refuseSession, serveExec } from '../../runners/exec-stream.ts';
import {
  type ExecSpec,
  type Handle,
  NotExecutable,
  type Runner,
  RunnerUnavailable,
} from '../../runners/runner.ts';
import { retry } from '../attempts/retry.ts';
import { demandShellsOn } from './access.ts';
import { type AboutJob, recordBegin, recordEnd, watchEnd } from './sessions.ts';

/** JSON, because servers send it to each other. The sender has checked that `by` may open the shell. */
export type ShellHead = {
  attemptId: string;
  /** The port of the job to which the command connects; null: any other command. */
  port: number | null;
  by: Actor;
};

type Deps = {
  db: Db;
  bus: Bus;
  log: Logger;
  runner: Runner;
  cluster: Cluster;
  rechecks: Rechecks;
  config: Pick<Config, 'jobShell'>;
};

/** Of the command in the audit log. */
const MAX_COMMAND_LENGTH = 1_000;
/** Open shells in one job. */
const MAX_SHELLS = 100;
/** A browser opens many connections, so those of one user to one port are recorded once in this time. */
const RECORD_PORT_MS = 3_600_000;
/** How long a stopping server waits for the ends of shells to be recorded. */
const STOP_MS = 5_000;

/** The shells in the attempts of this process. Disposing of it ends them. */
export type Shells = AsyncDisposable & {
  /** @param connection at the first byte of the input (`platform/frames.ts`). Never rejects. */
  run(head: ShellHead, spec: ExecSpec, connection: Duplex): Promise<void>;
};

export function openShells(deps: Deps): Shells {
  return new OpenShells(deps);
}

class OpenShells implements Shells {
  readonly #deps: Deps;
  readonly #running = new Map<Duplex, { attemptId: string; ended: Promise<void> }>();
  /** Key of a user's connections to a port → when they were recorded, oldest first. */
  readonly #recordedPorts = new Map<string, number>();
  readonly #closed = new AbortController();

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  async run(head: ShellHead, spec: ExecSpec, connection: Duplex): Promise<void> {
    const { attemptId } = head;
    if (this.#closed.signal.aborted) return void connection.destroy();
    const sameJob = this.#running.values().filter((one) => one.attemptId === attemptId);
    const isFull = sameJob.toArray().length >= MAX_SHELLS;
    const ended = this.#serve(head, spec, connection, isFull).finally(() =>
      this.#running.delete(connection),
    );
    this.#running.set(connection, { attemptId, ended });
    await ended;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort();
    for (const connection of this.#running.keys()) connection.destroy();
    const ended = Promise.all(this.#running.values().map((one) => one.ended));
    await Promise.race([ended, delay(STOP_MS, undefined, { ref: false })]);
  }

  async #serve(
    head: ShellHead,
    spec: ExecSpec,
    connection: Duplex,
    isFull: boolean,
  ): Promise<void> {
    const { log, runner } = this.#deps;
    connection.on('error', () => {});
    try {
      const attempt = await this.#readAttempt(head);
      if (isFull)
        throw new AppError('conflict', `The job has ${MAX_SHELLS} open shells, the maximum`);
      if (!runner.exec) throw new NotExecutable('Jobs of this server have no shell.');
      const { handle, about } = attempt;
      const { exec } = runner;
      const serve = async (signal?: AbortSignal) =>
        serveExec(await exec.call(runner, handle, spec), connection, signal);
      if (head.port === null) await this.#recordAround(head, spec, about, serve);
      else {
        await this.#recordPort(head, head.port, about);
        await serve();
      }
    } catch (error) {
      refuse(error, connection, (unexpected) =>
        log.error({ err: unexpected, attempt: head.attemptId }, 'a shell in a job failed'),
      );
    }
  }

  /** @throws AppError 403, 409 */
  async #readAttempt({ attemptId }: ShellHead): Promise<{ handle: Handle; about: AboutJob }> {
    const { db, config } = this.#deps;
    demandShellsOn(config);
    const attempt = await db.jobAttempt.findFirst({
      where: { id: attemptId, endedAt: null },
      select: { handle: true, job: { select: { id: true, name: true, namespaceId: true } } },
    });
    if (!attempt?.handle) throw new AppError('conflict', 'The job does not run');
    const { id, name, namespaceId } = attempt.job;
    const about = { namespaceIds: [namespaceId], subject: id, name };
    return { handle: attempt.handle as Handle, about };
  }

  async #recordAround(
    { attemptId, by }: ShellHead,
    { command, terminal }: ExecSpec,
    about: AboutJob,
    serve: (signal: AbortSignal) => Promise<ExecTraffic>,
  ): Promise<void> {
    const { db, cluster, rechecks } = this.#deps;
    const shown = command?.slice(0, MAX_COMMAND_LENGTH).toWellFormed() ?? null;
    const id = await recordBegin(db, by, about, {
      attemptId,
      workerId: cluster.members.id,
      command: shown,
      terminal: terminal !== null,
    });
    const begun = performance.now();
    let traffic: ExecTraffic = { exitCode: null, bytesIn: 0, bytesOut: 0 };
    using end = watchEnd({ db, rechecks }, id);
    try {
      traffic = await serve(end.refused);
    } finally {
      const seconds = Math.round((performance.now() - begun) / 1_000);
      const details = { command: shown, seconds, ...traffic };
      await this.#retryInOutage(() => recordEnd(db, by, about, { id, details }));
    }
  }

  /** A shell whose end is not recorded would be listed as long as its job runs. */
  async #retryInOutage(record: () => Promise<void>): Promise<void> {
    const { bus, log } = this.#deps;
    try {
      await record();
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      const { signal } = this.#closed;
      await retry('Recording the end of a shell', record, { bus, log, signal });
    }
  }

  async #recordPort({ attemptId, by }: ShellHead, port: number, about: AboutJob): Promise<void> {
    const recorded = this.#recordedPorts;
    const now = Date.now();
    for (const [key, at] of recorded) {
      if (now - at < RECORD_PORT_MS) break;
      recorded.delete(key);
    }
    const key = `${attemptId} ${port} ${by.userId} ${by.credential?.id} ${by.from?.address}`;
    if (recorded.has(key)) return;
    // Before it is recorded, because a browser opens several connections at once.
    recorded.set(key, now);
    const change = { ...about, action: 'job.port' as const, details: { port } };
    await recordAudit(this.#deps.db, by, change).catch((error) => {
      recorded.delete(key);
      throw error;
    });
  }
}

function refuse(error: unknown, connection: Duplex, report: (unexpected: unknown) => void): void {
  const isRefusal = [AppError, NotExecutable, RunnerUnavailable].some((e) => error instanceof e);
  if (!isRefusal) report(error);
  const message = isRefusal
    ? (error as Error).message
    : 'The shell failed; the server has logged why';
  refuseSession(connection, message);
}
