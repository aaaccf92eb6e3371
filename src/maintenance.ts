/** What every server looks after now and then, by turns with the others: above all removing what nobody needs any more. */

import type pg from 'pg';
import { removeOldAnswers } from './api/http/kept-answers.ts';
import type { Config } from './base/config/config.ts';
import type { Logger } from './base/log.ts';
import { removeGoneServers } from './cluster/members.ts';
import type { Git } from './git/git.ts';
import { removeOldEntries } from './identity/audit.ts';
import { removeDeletedNamespaces } from './identity/deletion.ts';
import { removeOldDevices } from './identity/devices.ts';
import { removeOldSessions } from './identity/sign-in/sessions.ts';
import { removeLeftMarked } from './jobs/artifacts/kept.ts';
import { removeDeletedPages } from './jobs/logs/removal.ts';
import { removeJobsOfDeleted } from './jobs/removal.ts';
import { removeGoneWorkers } from './jobs/worker/queue.ts';
import type { Db } from './platform/database/client.ts';
import type { MaintenanceTask } from './platform/database/maintenance.ts';
import { removeOldEvents } from './platform/events/outbox.ts';
import type { Storage } from './platform/storage/storage.ts';
import { sweepLargeFiles } from './repositories/lfs/store/sweep.ts';
import { removeAbandoned } from './repositories/recovery.ts';
import { removeDeletedWebhooks, removeOldDeliveries } from './webhooks/retention.ts';

export type Deps = {
  pool: pg.Pool;
  git: Git;
  db: Db;
  storage: Storage;
  log: Logger;
  config: Config;
};

/** What is said in the log → what does a bounded part of it, and says whether there is more (`database/upkeep.ts`). */
export function maintenanceTasks(services: Deps): Record<string, MaintenanceTask> {
  const { config, storage } = services;
  return {
    'removing old events': () => removeOldEvents(services, config.eventDays),
    'removing old entries of the audit log': () => removeOldEntries(services, config.auditDays),
    'removing old answers to requests': () => removeOldAnswers(services),
    'removing sessions that are over': () => removeOldSessions(services),
    'removing programs that have asked to sign in': () => removeOldDevices(services),
    'removing workers that are gone': () => removeGoneWorkers(services),
    'removing servers that are gone': () => removeGoneServers(services),
    'removing what nobody builds or removes any more': () => removeAbandoned(services),
    'removing what was not stored to its end': async () => {
      await storage.tidy();
      return false;
    },
    'removing jobs of deleted namespaces': () => removeJobsOfDeleted(services),
    'removing artifacts that were deleted': () => removeLeftMarked(services),
    'removing logs of deleted jobs': () => removeDeletedPages(services),
    'removing deleted namespaces': () => removeDeletedNamespaces(services),
    'removing old deliveries of webhooks': () => removeOldDeliveries(services),
    'removing webhooks that were deleted': () => removeDeletedWebhooks(services),
    // The last, because it may have much to copy.
    'removing large files that nobody has': () => sweepLargeFiles(services),
  };
}
