/** Opens a shell, or runs a command, in a running job: in this process, or through a tunnel in the one that has the job. */
import type { Duplex } from 'node:stream';
import { type AppError, busy } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { openTunnel, relaySockets } from '../../cluster/tunnels.ts';
import { copyActor } from '../../identity/audit.ts';
import type { Account } from '../../identity/permissions.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import { encodeJsonFrame } from '../../platform/frames.ts';
import type { ExecSpec } from '../../runners/runner.ts';
import type { ShellTarget } from './access.ts';
import type { ShellHead, Shells } from './run.ts';

export type Deps = {
  cluster: Cluster;
  rechecks: Rechecks;
  log: Logger;
  /** Of the attempts of this process; null: it runs no jobs. */
  shells: Shells | null;
};

type ShellRequest = {
  viewer: Account;
  /** The result of `authorizeShell` for this viewer. */
  target: ShellTarget;
  spec: ExecSpec;
  /** Set when the command connects to a port of the job. */
  port?: number | undefined;
  /** At the first byte of the input (`platform/frames.ts`). */
  connection: Duplex;
  /** Closes the connection, because the viewer has lost the right. */
  cutOff(reason: AppError): void;
};

/** @returns when the connection is closed @throws AppError 503 if the process that has the job does not answer */
export async function openShell(
  { cluster, rechecks, log, shells }: Deps,
  { viewer, target, spec, port, connection, cutOff }: ShellRequest,
): Promise<void> {
  const { attemptId, workerId, rule } = target;
  using right = rechecks.watch(viewer, rule);
  right.refused.addEventListener('abort', () => cutOff(right.refused.reason));
  const head: ShellHead = { attemptId, port: port ?? null, by: copyActor(viewer) };
  const { members } = cluster;
  // Awaited, because `right` ends with this function.
  if (workerId === members.id && shells) return await shells.run(head, spec, connection);
  const member = members.find(workerId);
  if (!member) throw busy('The server that has the job does not answer');
  const closed = new AbortController();
  connection.once('close', () => closed.abort());
  const about = { target: attemptId, head, signal: closed.signal };
  const other = await openTunnel({ cluster }, member, about);
  // Not in the head, which is a header: a command may be longer.
  other.write(encodeJsonFrame('exec', spec));
  const isWhole = await relaySockets(connection, other);
  if (!isWhole)
    log.info({ attempt: attemptId, server: workerId }, 'a tunnel of a shell closed early');
}
