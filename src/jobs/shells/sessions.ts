/**
 * The open shells of jobs: one row for each, from its begin to its end, which are recorded in the audit log, too. Whoever may open
 * a shell in the job may end them: the process that runs a shell checks at least every five seconds whether it shall end.
 *
 * Processes that are killed leave rows behind. A row counts only while its process lives, and the next process of the same data
 * folder removes it.
 */
import { type AppError, forbidden, notFound } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { type Actor, type AuditedChange, recordAudit } from '../../identity/audit.ts';
import { can, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Recheck, Rechecks } from '../../identity/rechecks.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';

/** Of all audit entries about a job. */
export type AboutJob = Pick<AuditedChange, 'namespaceIds' | 'subject' | 'name'>;

type NewShell = {
  attemptId: string;
  workerId: string;
  command: string | null;
  terminal: boolean;
};

/** @returns the id of the shell */
export function recordBegin(db: Db, by: Actor, about: AboutJob, shell: NewShell): Promise<string> {
  return inTransaction(db, async (tx) => {
    const id = newId('shl');
    const { credential, username, from } = by;
    await tx.jobShell.create({
      data: {
        ...shell,
        id,
        username,
        credentialKind: credential?.kind ?? null,
        credentialId: credential?.id ?? null,
        credentialName: credential?.name ?? null,
        address: from?.address ?? null,
      },
      select: { id: true },
    });
    // Its caches are not saved: someone may have changed their files.
    await tx.jobAttempt.updateMany({
      where: { id: shell.attemptId },
      data: { shellOpened: true },
    });
    const details = { command: shell.command };
    await recordAudit(tx, by, { ...about, action: 'job.shell', details });
    return id;
  });
}

export async function recordEnd(
  db: Db,
  by: Actor,
  about: AboutJob,
  { id, details }: { id: string; details: NonNullable<AuditedChange['details']> },
): Promise<void> {
  await inTransaction(db, async (tx) => {
    await tx.jobShell.deleteMany({ where: { id } });
    await recordAudit(tx, by, { ...about, action: 'job.shell_end', details });
  });
}

/** `refused` aborts when a user has asked for the end of the shell. */
export function watchEnd({ db, rechecks }: { db: Db; rechecks: Rechecks }, id: string): Recheck {
  const demandNotEnded = async () => {
    const shell = await db.jobShell.findUnique({ where: { id }, select: { endedBy: true } });
    if (shell?.endedBy) throw shellEnded(shell.endedBy);
  };
  return rechecks.watch({ kind: 'anonymous' }, { key: `end of ${id}`, demand: demandNotEnded });
}

function shellEnded(by: string): AppError {
  return forbidden(`The shell was ended by ${by}`);
}

type Job = {
  namespaceId: string;
  repositoryId: string | null;
  createdById: string | null;
  attemptId: string | null;
};

/**
 * The action for shells in the viewer's own job, or in a job of another user. To list or end shells needs no right to the job's
 * secrets, because neither reads anything of the job.
 */
function actionOn(viewer: Viewer, { createdById }: Pick<Job, 'createdById'>) {
  const isOwn = viewer.kind === 'account' && createdById === viewer.userId;
  return isOwn ? 'job.shellOwn' : 'job.shellAny';
}

/** The open shells of a job, oldest first; null if the viewer may not see them. */
export async function listShells(
  { db, cluster: { members } }: { db: Db; cluster: Cluster },
  viewer: Viewer,
  job: Job,
) {
  const { attemptId } = job;
  if (!can(viewer, actionOn(viewer, job), job)) return null;
  if (attemptId === null) return [];
  const where = { attemptId, endedBy: null };
  const shells = await db.jobShell.findMany({ where, orderBy: { id: 'asc' } });
  return shells.filter(({ workerId }) => workerId === members.id || members.find(workerId));
}

/** Asks the process that runs the shell to end it. @throws AppError 401, 403, 404 if it has ended */
export async function endShell({ db }: { db: Db }, viewer: Viewer, id: string): Promise<string> {
  const author = demandAccount(viewer);
  const shell = isId('shl', id)
    ? await db.jobShell.findUnique({
        where: { id },
        select: {
          username: true,
          attempt: {
            select: {
              job: {
                select: {
                  id: true,
                  name: true,
                  namespaceId: true,
                  repositoryId: true,
                  createdById: true,
                },
              },
            },
          },
        },
      })
    : null;
  if (!shell || !can(viewer, 'job.read', shell.attempt.job)) throw notFound('Shell');
  const { job } = shell.attempt;
  demand(viewer, actionOn(viewer, job), job);
  await inTransaction(db, async (tx) => {
    const { count } = await tx.jobShell.updateMany({
      where: { id, endedBy: null },
      data: { endedBy: author.username },
    });
    if (count === 0) throw notFound('Shell');
    await recordAudit(tx, author, {
      action: 'job.shell_close',
      namespaceIds: [job.namespaceId],
      subject: job.id,
      name: job.name,
      details: { user: shell.username },
    });
  });
  return id;
}

/** Called before this process serves shells. */
export async function removeShellsOfPreviousProcess({
  db,
  cluster,
}: {
  db: Db;
  cluster: Cluster;
}): Promise<void> {
  await db.jobShell.deleteMany({ where: { workerId: cluster.members.id } });
}
