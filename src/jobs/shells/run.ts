/** Runs a shell or command in an attempt of this process, and records its begin and its end in the audit log. */
import type { Duplex } from 'node:stream';
import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { type Actor, recordAudit } from '../../identity/audit.ts';
import type { Db } from '../../platform/database/client.ts';
import { encodeJsonFrame, writeFrame } from '../../platform/frames.ts';
import { serveExec } from '../../runners/exec-stream.ts';
import {
  type ExecSpec,
  type Handle,
  NotExecutable,
  type Runner,
  RunnerUnavailable,
} from '../../runners/runner.ts';

/** JSON, because servers send it to each other. The sender has checked that `by` may open the shell. */
export type ShellOpening = { attemptId: string; spec: ExecSpec; by: Actor };

type Deps = { db: Db; log: Logger; runner: Runner };

/** Of the command in the audit log. */
const MAX_COMMAND_LENGTH = 1_000;
const REFUSED_EXIT = 1;

/** The shells in the attempts of this process. Disposing of it ends them. */
export type Shells = AsyncDisposable & {
  /** @param connection at the first byte of the input (`platform/frames.ts`). Never rejects. */
  run(opening: ShellOpening, connection: Duplex): Promise<void>;
};

export function openShells(deps: Deps): Shells {
  const running = new Map<Duplex, Promise<void>>();
  return {
    async run(opening, connection) {
      const ended = runShell(deps, opening, connection).finally(() => running.delete(connection));
      running.set(connection, ended);
      await ended;
    },
    async [Symbol.asyncDispose]() {
      for (const connection of running.keys()) connection.destroy();
      await Promise.all(running.values());
    },
  };
}

async function runShell(
  { db, log, runner }: Deps,
  { attemptId, spec, by }: ShellOpening,
  connection: Duplex,
): Promise<void> {
  connection.on('error', () => {});
  try {
    const attempt = await db.jobAttempt.findFirst({
      where: { id: attemptId, endedAt: null },
      select: { handle: true, job: { select: { id: true, name: true, namespaceId: true } } },
    });
    if (!attempt?.handle) throw new AppError('conflict', 'The job does not run');
    if (!runner.exec) throw new NotExecutable('Jobs of this server have no shell.');
    const session = await runner.exec(attempt.handle as Handle, spec);
    const { id, name, namespaceId } = attempt.job;
    const about = { namespaceIds: [namespaceId], subject: id, name };
    const command = spec.command?.slice(0, MAX_COMMAND_LENGTH) ?? null;
    const begun = performance.now();
    try {
      await recordAudit(db, by, { ...about, action: 'job.shell', details: { command } });
    } catch (error) {
      session.close();
      throw error;
    }
    const traffic = await serveExec(session, connection);
    const seconds = Math.round((performance.now() - begun) / 1_000);
    const details = { command, seconds, ...traffic };
    await recordAudit(db, by, { ...about, action: 'job.shell_end', details });
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
