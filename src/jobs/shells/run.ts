/** Runs a shell or command in an attempt of this process, and records its begin and its end in the audit log. */
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import type { Config } from '../../base/config/config.ts';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { type Actor, recordAudit } from '../../identity/audit.ts';
import type { Db } from '../../platform/database/client.ts';
import { encodeJsonFrame, writeFrame } from '../../platform/frames.ts';
import { type ExecTraffic, serveExec } from '../../runners/exec-stream.ts';
import {
  type ExecSpec,
  type Handle,
  NotExecutable,
  type Runner,
  RunnerUnavailable,
} from '../../runners/runner.ts';
import { demandShellsOn } from './access.ts';

/** JSON, because servers send it to each other. The sender has checked that `by` may open the shell. */
export type ShellOpening = { attemptId: string; spec: ExecSpec; by: Actor };

type Deps = { db: Db; log: Logger; runner: Runner; config: Pick<Config, 'jobShell'> };

/** Of the command in the audit log. */
const MAX_COMMAND_LENGTH = 1_000;
const REFUSED_EXIT = 1;
/** Open shells in one job. */
const MAX_SHELLS = 100;
/** How long a stopping server waits for the ends of shells to be recorded. */
const STOP_MS = 5_000;

/** The shells in the attempts of this process. Disposing of it ends them. */
export type Shells = AsyncDisposable & {
  /** @param connection at the first byte of the input (`platform/frames.ts`). Never rejects. */
  run(opening: ShellOpening, connection: Duplex): Promise<void>;
};

export function openShells(deps: Deps): Shells {
  const running = new Map<Duplex, { attemptId: string; ended: Promise<void> }>();
  const count = (attemptId: string) =>
    running.values().reduce((sum, one) => sum + (one.attemptId === attemptId ? 1 : 0), 0);
  return {
    async run(opening, connection) {
      const { attemptId } = opening;
      const isFull = count(attemptId) >= MAX_SHELLS;
      const ended = runShell(deps, opening, connection, isFull).finally(() =>
        running.delete(connection),
      );
      running.set(connection, { attemptId, ended });
      await ended;
    },
    async [Symbol.asyncDispose]() {
      for (const connection of running.keys()) connection.destroy();
      const ended = Promise.all(running.values().map((one) => one.ended));
      await Promise.race([ended, delay(STOP_MS, undefined, { ref: false })]);
    },
  };
}

async function runShell(
  { db, log, runner, config }: Deps,
  { attemptId, spec, by }: ShellOpening,
  connection: Duplex,
  isFull: boolean,
): Promise<void> {
  connection.on('error', () => {});
  try {
    demandShellsOn(config);
    const attempt = await db.jobAttempt.findFirst({
      where: { id: attemptId, endedAt: null },
      select: { handle: true, job: { select: { id: true, name: true, namespaceId: true } } },
    });
    if (!attempt?.handle) throw new AppError('conflict', 'The job does not run');
    if (!runner.exec) throw new NotExecutable('Jobs of this server have no shell.');
    if (isFull)
      throw new AppError('conflict', `The job has ${MAX_SHELLS} open shells, which is the maximum`);
    const { id, name, namespaceId } = attempt.job;
    const about = { namespaceIds: [namespaceId], subject: id, name };
    const command = spec.command?.slice(0, MAX_COMMAND_LENGTH).toWellFormed() ?? null;
    await recordAudit(db, by, { ...about, action: 'job.shell', details: { command } });
    const begun = performance.now();
    let traffic: ExecTraffic = { exitCode: null, bytesIn: 0, bytesOut: 0 };
    try {
      traffic = await serveExec(await runner.exec(attempt.handle as Handle, spec), connection);
    } finally {
      const seconds = Math.round((performance.now() - begun) / 1_000);
      const details = { command, seconds, ...traffic };
      await recordAudit(db, by, { ...about, action: 'job.shell_end', details });
    }
  } catch (error) {
    const isRefusal = [AppError, NotExecutable, RunnerUnavailable].some((e) => error instanceof e);
    if (!isRefusal) log.error({ err: error, attempt: attemptId }, 'a shell in a job failed');
    const message = isRefusal
      ? (error as Error).message
      : 'The shell failed; the server has logged why';
    if (connection.destroyed) return;
    connection.resume();
    writeFrame(connection, 'stderr', Buffer.from(`loam: ${message}\n`));
    connection.end(encodeJsonFrame('exit', { code: REFUSED_EXIT }));
  }
}
