/** All of git that the server holds on to: where repositories lie, what is open in them, what runs on them. */
import { availableParallelism } from 'node:os';
import {
  FairSemaphore,
  openTransferSemaphores,
  type TransferSemaphores,
} from '../platform/limits/fair-semaphore.ts';
import { Disk } from './disk/disk.ts';
import { Maintenance } from './disk/maintenance.ts';
import { Quarantines } from './disk/quarantines.ts';
import { StaleLocks } from './disk/stale-locks.ts';
import { Activity } from './objects/activity.ts';
import { CatFilePool } from './objects/cat-file.ts';
import { DiffReader } from './objects/diff.ts';
import { HistoryCache } from './objects/history.ts';
import { LastCommits } from './objects/last-commits.ts';
import { Searches } from './objects/search.ts';
import { checkVersion } from './processes/run.ts';
import { Tasks } from './processes/tasks.ts';
import { installHooks } from './transport/hooks.ts';

/** Reading processes at once: each takes some 20 ms of a core, and three descriptors of ours. */
const READERS = Math.max(8, 2 * availableParallelism());

/**
 * Its transfers are fetches, pushes and downloads: each holds a process, and of a large repository a core and hundreds
 * of megabytes.
 */
export type Git = AsyncDisposable &
  TransferSemaphores & {
    disk: Disk;
    quarantines: Quarantines;
    locks: StaleLocks;
    objects: CatFilePool;
    history: HistoryCache;
    diffs: DiffReader;
    lastCommits: LastCommits;
    activity: Activity;
    searches: Searches;
    /** For short processes that read; whoever starts one takes a turn. */
    turns: FairSemaphore;
    maintenance: Maintenance;
    /** Pushes and background work, which a stopping server waits for. */
    tasks: Tasks;
    /** The folder of the hook that every push runs. */
    hooks: string;
  };

type Options = {
  /** Where repositories lie; other servers may share it. */
  root: string;
  /** The id of this one. */
  server: string;
  /** A folder of this server's own, for the hook. */
  hooks: string;
  /** No other machine works in the repositories. */
  isAlone: boolean;
  /** How many fetches, pushes and downloads run at once. */
  transfers: number;
  /** Gets the failures of background work. */
  report: (error: unknown) => void;
};

/** @throws Error when git is missing or too old, or hooks cannot run where they are. */
export async function openGit({
  root,
  server,
  hooks,
  isAlone,
  transfers,
  report,
}: Options): Promise<Git> {
  await checkVersion();
  const disk = new Disk(root, server);
  await disk.prepare();
  await installHooks(hooks);
  const objects = new CatFilePool();
  const tasks = new Tasks(report);
  const turns = new FairSemaphore(READERS);
  const locks = new StaleLocks({ isAlone });
  return {
    disk,
    quarantines: new Quarantines(disk),
    locks,
    objects,
    history: new HistoryCache(turns),
    diffs: new DiffReader(turns),
    lastCommits: new LastCommits(turns),
    activity: new Activity(turns),
    searches: new Searches(),
    turns,
    ...openTransferSemaphores(transfers),
    maintenance: new Maintenance(tasks, locks),
    tasks,
    hooks,
    async [Symbol.asyncDispose]() {
      await tasks[Symbol.asyncDispose]();
      await objects[Symbol.asyncDispose]();
    },
  };
}
