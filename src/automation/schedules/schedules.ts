/** Schedules of repositories: those in the file on the default branch, and those that users create with a file of their own. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, forbidden, invalid, notFound } from '../../base/errors.ts';
import type { Catalogue } from '../../base/hardware.ts';
import { isId, newId } from '../../base/ids.ts';
import { recordAudit } from '../../identity/audit.ts';
import { type Account, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import { type OfferDeps, readLastingOffer } from '../../jobs/queue/offer.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction, violatesUnique } from '../../platform/database/client.ts';
import {
  type AccessRow,
  accessTarget,
  demandRepository,
  lockRepository,
  type RepositoryId,
} from '../../repositories/repositories.ts';
import { type CronTime, cronProblem, DEFAULT_TIMEZONE, nextTime, nextTimes } from '../cron.ts';
import { type JobFile, readJobFile } from '../file.ts';
import { JOB_KEY } from '../file-schema.ts';
import type { RunRepository } from '../runs/create.ts';

type Deps = OfferDeps & { db: Db };
export type ScheduleRow = Prisma.ScheduleGetPayload<object>;

const MAX_SCHEDULES = 50;
const SHOWN_TIMES = 5;

/** Lists the schedules by their next time. @throws AppError 401, 403 */
export async function listSchedules(
  { db }: { db: Db },
  viewer: Viewer,
  repository: AccessRow,
): Promise<ScheduleRow[]> {
  demand(viewer, 'repository.read', accessTarget(repository));
  return db.schedule.findMany({
    where: { repositoryId: repository.id },
    orderBy: [{ nextAt: 'asc' }, { id: 'asc' }],
  });
}

export function nextTimesOf(schedule: CronTime): Date[] {
  return nextTimes(schedule, SHOWN_TIMES, new Date());
}

type ScheduleInput = RepositoryId & {
  name: string;
  cron: string;
  timezone?: string | null;
  file: string;
};

/**
 * Creates a schedule that starts the jobs of its own file at the tip of the default branch.
 * @throws AppError 400, 401, 403, 404 for the repository, 409 if the name is taken or there are too many
 */
export async function createSchedule(
  { db, ...services }: Deps,
  viewer: Viewer,
  { name, cron, timezone, file: text, ...key }: ScheduleInput,
): Promise<ScheduleRow> {
  const account = demandAccount(viewer);
  const { id } = await demandRepository(db, viewer, key, 'job.create', {});
  // The jobs may ask for a token with which they push.
  await demandRepository(db, viewer, key, 'repository.push', {});
  if (account.credential.kind === 'job') throw forbidden('A job cannot create schedules');
  if (!JOB_KEY.test(name))
    throw invalid(
      'name',
      'must be 1 to 60 letters, digits, - and _, and begin with a letter or digit',
    );
  const time = { cron, timezone: timezone ?? DEFAULT_TIMEZONE };
  const problem = cronProblem(time);
  if (problem) throw invalid(problem.field, problem.message);
  const jobNames = checkFile(text, await readLastingOffer(services));
  return inTransaction(db, async (tx) => {
    await lockRepository(tx, id);
    const row = await demandRepository(tx, viewer, { id }, 'job.create', { name: true });
    if (
      (await tx.schedule.count({ where: { repositoryId: id, name: { not: null } } })) >=
      MAX_SCHEDULES
    )
      throw new AppError('conflict', `A repository may have at most ${MAX_SCHEDULES} schedules`);
    const schedule = await tx.schedule.create({
      data: {
        id: newId('sch'),
        repositoryId: id,
        name,
        ...time,
        jobNames,
        file: text,
        nextAt: nextTime(time, new Date()) as Date,
        createdById: account.userId,
      },
    });
    await recordAudit(tx, account, {
      action: 'schedule.create',
      namespaceIds: [row.namespaceId],
      subject: schedule.id,
      name: `${row.name}/${name}`,
      details: time,
    });
    return schedule;
  }).catch((error) => {
    if (!violatesUnique(error, 'name')) throw error;
    throw new AppError('already_exists', 'name: a schedule of that name exists', { field: 'name' });
  });
}

/** @returns the names of the jobs @throws AppError 400 naming `file` */
function checkFile(text: string, offer: Catalogue): string[] {
  const { file, problems } = readJobFile(text, offer);
  const [problem] = problems;
  if (problem) throw invalid('file', `line ${problem.line}: ${problem.message}`);
  const names = [...(file?.jobs ?? [])].flatMap(([name, { on }]) => (on?.manual ? [name] : []));
  if (names.length === 0) throw invalid('file', 'must have a job with `on: { manual: true }`');
  return names;
}

/** @throws AppError 401, 403, 404, 409 for a schedule of the file in the repository */
export async function deleteSchedule(
  { db }: Deps,
  viewer: Viewer,
  { id }: { id: string },
): Promise<string> {
  const account = demandAccount(viewer);
  if (account.credential.kind === 'job') throw forbidden('A job cannot delete schedules');
  const schedule = isId('sch', id) ? await db.schedule.findUnique({ where: { id } }) : null;
  if (!schedule) throw notFound('Schedule');
  const key = { id: schedule.repositoryId };
  const row = await demandRepository(db, viewer, key, 'job.create', { name: true });
  if (schedule.name === null)
    throw new AppError(
      'conflict',
      'The schedule is in .loam/jobs.yml on the default branch: remove it there',
    );
  await inTransaction(db, async (tx) => {
    const { count } = await tx.schedule.deleteMany({ where: { id } });
    if (count === 0) throw notFound('Schedule');
    await recordAudit(tx, account, {
      action: 'schedule.delete',
      namespaceIds: [row.namespaceId],
      subject: id,
      name: `${row.name}/${schedule.name}`,
    });
  });
  return id;
}

type RefreshedFile = { file: JobFile | null; creator: Account | null; keepsOwner: boolean };

/**
 * Takes over the schedules of the file on the default branch. A schedule that the file had before keeps its next time, so that
 * a push does not skip it.
 * @param creator null if the pusher may not create jobs: runs of the schedules wait for approval
 * @param keepsOwner such a pusher did not change the file, so the schedules stay in the name of whoever did
 */
export async function refreshSchedules(
  tx: Db,
  repository: Pick<RunRepository, 'id'>,
  { file, creator, keepsOwner }: RefreshedFile,
): Promise<void> {
  const repositoryId = repository.id;
  const times = new Map<string, CronTime & { jobNames: string[] }>();
  for (const [name, { on }] of file?.jobs ?? [])
    for (const { cron, timezone } of on?.schedule ?? []) {
      const key = `${timezone} ${cron}`;
      times.getOrInsert(key, { cron, timezone, jobNames: [] }).jobNames.push(name);
    }
  const existing = await tx.schedule.findMany({ where: { repositoryId, name: null } });
  const createdById = creator?.userId ?? null;
  for (const { id, cron, timezone } of existing) {
    const time = times.get(`${timezone} ${cron}`);
    if (!time) await tx.schedule.delete({ where: { id } });
    else {
      const owner = keepsOwner ? {} : { createdById };
      await tx.schedule.update({ where: { id }, data: { jobNames: time.jobNames, ...owner } });
      times.delete(`${timezone} ${cron}`);
    }
  }
  for (const time of times.values()) {
    const nextAt = nextTime(time, new Date());
    if (nextAt)
      await tx.schedule.create({
        data: { id: newId('sch'), repositoryId, name: null, ...time, nextAt, createdById },
      });
  }
}
