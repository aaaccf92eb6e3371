/**
 * Periodic background work of every server, mostly deletion of expired or orphaned data: at startup and every ten minutes, in
 * short batches that do not disturb other work. All servers run all tasks; rows that another server has deleted are skipped.
 */
import type pg from 'pg';
import { deleteExpiredResponses } from './api/http/idempotency.ts';
import { sleep } from './base/backoff.ts';
import type { Config } from './base/config/config.ts';
import type { Logger } from './base/log.ts';
import type { Cluster } from './cluster/cluster.ts';
import { removeDeadServers } from './cluster/members.ts';
import type { Git } from './git/git.ts';
import { removeOldEntries } from './identity/audit.ts';
import { removeDeletedNamespaces } from './identity/deletion.ts';
import { removeOldDeviceRequests } from './identity/devices.ts';
import { removeOldSessions } from './identity/sign-in/sessions.ts';
import type { TokenIssuer } from './identity/token-issuer.ts';
import { removeMarkedLeftovers } from './jobs/artifacts/kept.ts';
import { removeUnusedCaches } from './jobs/caches/entries.ts';
import { removeUnusedCheckpoints } from './jobs/checkpoints/store.ts';
import { removeDeletedPages } from './jobs/logs/removal.ts';
import { removeDeadWorkers } from './jobs/queue/heartbeats.ts';
import { removeJobsOfDeleted } from './jobs/retention/removal.ts';
import { createRetentionSweep } from './jobs/retention/retention-sweep.ts';
import { removeOldAppSessions } from './jobs/shells/apps/sessions.ts';
import type { Db } from './platform/database/client.ts';
import { removeOldEvents } from './platform/events/outbox.ts';
import { startLoop } from './platform/loop.ts';
import type { Metrics } from './platform/metrics/metrics.ts';
import type { Storage } from './platform/storage/storage.ts';
import { sweepLargeFiles } from './repositories/lfs/store/sweep.ts';
import { removeAbandoned } from './repositories/recovery.ts';
import { removeUnusedSnapshots } from './repositories/snapshots.ts';
import { removeDeletedWebhooks, removeOldDeliveries } from './webhooks/retention.ts';

type Deps = {
  pool: pg.Pool;
  git: Git;
  cluster: Cluster;
  db: Db;
  storage: Storage;
  log: Logger;
  config: Config;
  metrics: Metrics;
  tokenIssuer: TokenIssuer;
};

/** Name in the log → one batch of the task. */
export function maintenanceTasks(services: Deps): Record<string, MaintenanceTask> {
  const { config, storage, tokenIssuer } = services;
  return {
    'remove old events': () => removeOldEvents(services, config.eventDays),
    'remove old entries of the audit log': () => removeOldEntries(services, config.auditDays),
    'remove old answers of idempotent requests': () => deleteExpiredResponses(services),
    'remove expired sessions': () => removeOldSessions(services),
    'remove expired sessions of apps': () => removeOldAppSessions(services),
    'rotate the keys of identity tokens': () => tokenIssuer.rotate(),
    'remove old device requests': () => removeOldDeviceRequests(services),
    'remove dead workers': () => removeDeadWorkers(services),
    'remove dead servers': () => removeDeadServers(services),
    'remove abandoned repository folders': () => removeAbandoned(services),
    'remove unused snapshots': () => removeUnusedSnapshots(services),
    'remove unfinished uploads': async () => {
      await storage.removeAbandoned();
      return false;
    },
    'remove jobs of deleted namespaces': () => removeJobsOfDeleted(services),
    'remove jobs, logs and artifacts by age': createRetentionSweep(services),
    'remove deleted artifacts': () => removeMarkedLeftovers(services),
    'remove unused checkpoints': () => removeUnusedCheckpoints(services),
    'remove logs of deleted jobs': () => removeDeletedPages(services),
    'remove deleted namespaces': () => removeDeletedNamespaces(services),
    'remove old webhook deliveries': () => removeOldDeliveries(services),
    'remove deleted webhooks': () => removeDeletedWebhooks(services),
    'remove unused caches': () => removeUnusedCaches(services),
    // Last, because it may have to copy much data.
    'remove unreferenced large files': () => sweepLargeFiles(services),
  };
}

const INTERVAL_MS = 10 * 60_000;
/** Pause between batches, so that a large backlog does not keep the database busy. */
const PAUSE_MS = 20;

/** Runs one batch. @returns whether there may be more work */
type MaintenanceTask = () => Promise<boolean>;

/** Runs the tasks until disposed. A task that fails does not stop the others, and runs again next time. */
export function startMaintenance(
  { log }: { log: Logger },
  tasks: Readonly<Record<string, MaintenanceTask>>,
): AsyncDisposable {
  return startLoop({ name: 'Maintenance', every: INTERVAL_MS, log }, async (signal) => {
    for (const [name, task] of Object.entries(tasks)) {
      try {
        while (!signal.aborted && (await task())) await sleep(PAUSE_MS, signal);
      } catch (error) {
        if (!signal.aborted)
          log.warn({ err: error }, `maintenance task "${name}" failed; retry in ten minutes`);
      }
    }
  });
}
