/**
 * Turns the times of schedules into triggers. Each server looks; the row lock and the move to the next time make sure that a
 * time is used once. A time that is more than an hour late is skipped, because the servers were down for longer.
 */
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { runStatement } from '../../platform/database/statement.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import { startLoop } from '../../platform/loop.ts';
import { nextTime } from '../cron.ts';

type Deps = { db: Db; log: Logger };

const INTERVAL_MS = 5_000;
const MAX_LATE_MS = 60 * 60_000;
const BATCH = 20;

type DueRow = {
  id: string;
  repositoryId: string;
  defaultBranch: string;
  name: string | null;
  cron: string;
  timezone: string;
  nextAt: Date;
};

/** Runs until disposed. */
export function startClock(services: Deps): AsyncDisposable {
  return startLoop(
    { name: 'Starting scheduled runs', every: INTERVAL_MS, log: services.log },
    async () => (await tick(services, new Date())) === BATCH,
  );
}

/** @returns the number of schedules whose time had come */
export async function tick({ db }: Pick<Deps, 'db'>, now: Date): Promise<number> {
  return inTransaction(db, async (tx) => {
    const due = await runStatement<DueRow>(
      tx,
      `select s.id, s.repository_id as "repositoryId", r.default_branch as "defaultBranch", s.name, s.cron, s.timezone,
         s.next_at as "nextAt"
       from schedules s join repositories r on r.id = s.repository_id
       where s.next_at <= $1 order by s.next_at limit ${BATCH} for update of s skip locked`,
      [now],
    );
    for (const { id, repositoryId, defaultBranch, name, nextAt, ...time } of due) {
      const next = nextTime(time, now);
      if (next) await tx.schedule.update({ where: { id }, data: { nextAt: next } });
      else await tx.schedule.delete({ where: { id } });
      if (now.getTime() - nextAt.getTime() > MAX_LATE_MS) continue;
      await tx.schedule.updateMany({ where: { id }, data: { lastAt: now } });
      await tx.runTrigger.create({
        data: {
          id: newId('evt'),
          repositoryId,
          scheduleId: id,
          before: '',
          after: '',
          ref: REF_PREFIX.branch + defaultBranch,
          startsRun: true,
          mayCreateJobs: true,
          actor: { userId: null, username: name ?? 'schedule', credential: null },
        },
      });
    }
    if (due.length > 0) await notifyReaders(tx, 'runs');
    return due.length;
  });
}
