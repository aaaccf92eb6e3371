/**
 * Parts of a fetch or push that HTTP and SSH share: the permission check during the transfer, and the receiving of
 * a push.
 */

import type { Readable, Writable } from 'node:stream';
import type pg from 'pg';
import type { Config } from '../base/config/config.ts';
import type { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Git } from '../git/git.ts';
import type { GitRun, GitService } from '../git/transport/git-services.ts';
import { receivePack } from '../git/transport/receive.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Recheck, Rechecks } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import type { IdempotentEffect } from '../platform/database/idempotent-effects.ts';
import type { GitExit } from '../platform/processes/git-started.ts';
import type { DiskSpace } from '../platform/storage/disk-space.ts';
import { removeQuarantines } from './folder.ts';
import type { LargeFiles } from './lfs/store/store.ts';
import type { PushRecorder } from './pushes/recorder.ts';
import { createPushRules } from './pushes/rules.ts';
import type { FindingIds } from './pushes/secret-scanning/find.ts';
import type { JobsFile } from './pushes/triggers.ts';
import { type GitAction, gitAccessRule } from './repositories.ts';

export type Deps = {
  log: Logger;
  pool: pg.Pool;
  config: Config;
  db: Db;
  git: Git;
  space: DiskSpace;
  largeFiles: LargeFiles;
  findingIds: FindingIds;
  pushes: PushRecorder;
  cluster: Cluster;
  jobsFile: JobsFile;
};

export function gitActionOf(service: GitService): GitAction {
  return service === 'git-upload-pack' ? 'repository.read' : 'repository.push';
}

type Watched = {
  /** The repository's id. */
  id: string;
  action: GitAction;
  /** Ends the transfer: with an error response if none has begun. */
  cutOff(error: AppError): void;
};

/** Watches the permission of a running transfer, and cuts it off when the permission is revoked. */
export function watchTransferPermission(
  services: { db: Db; rechecks: Rechecks },
  { viewer }: { viewer: Viewer },
  { id, action, cutOff }: Watched,
): Recheck {
  const permissionWatch = services.rechecks.watch(viewer, gitAccessRule(services, id, action));
  const { refused } = permissionWatch;
  refused.addEventListener('abort', () => cutOff(refused.reason), { once: true });
  return permissionWatch;
}

type PushTransfer = {
  /** The repository's id. */
  id: string;
  requestId: string;
  /** The watched permission to push. */
  permissionWatch: Recheck;
  input: Readable;
  output: Writable;
  effect?: IdempotentEffect | undefined;
};

/** Prepares to receive a push from a viewer who may push. @throws AppError 401 for anonymous viewers */
export async function prepareReceive(
  services: Deps,
  { viewer }: { viewer: Viewer },
  { id, requestId, permissionWatch, input, output, effect }: PushTransfer,
): Promise<(gitRun: GitRun) => Promise<GitExit>> {
  const by = demandAccount(viewer);
  const request = { repositoryId: id, by, requestId, right: permissionWatch, effect };
  const rules = await createPushRules(services, request);
  return (gitRun) =>
    services.git.quarantines.runPush(
      id,
      () => receivePack(gitRun, input, output, rules),
      () => removeQuarantines(services, id),
    );
}
