/** Composes the git subsystem of a server: repository storage, caches, reader processes and background work. */
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
import { CatFilePool } from './objects/cat-file.ts';
import { Activity } from './objects/commit-counts.ts';
import { DiffReader } from './objects/diff.ts';
import { HistoryCache } from './objects/history.ts';
import { LastCommits } from './objects/last-commits.ts';
import { Searches } from './objects/search.ts';
import { checkVersion } from './processes/run.ts';
import { Tasks } from './processes/tasks.ts';
import { installHooks } from './transport/hooks.ts';

/** Concurrent reader processes: each takes about 20 ms of a core and three file descriptors of the server. */
const READERS = Math.max(8, 2 * availableParallelism());

/**
 * The transfer semaphores limit fetches, pushes and downloads: each holds a process, and on a large repository a core
 * and hundreds of megabytes.
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
    /** Limits short reader processes. Every caller that starts a reader process must hold a slot. */
    readSlots: FairSemaphore;
    maintenance: Maintenance;
    /** Pushes and background work that a stopping server waits for. */
    tasks: Tasks;
    /** Folder of the hook that every push runs. */
    hooks: string;
  };

type Options = {
  /** Root folder of the repositories; other servers may share it. */
  root: string;
  /** Id of this server. */
  server: string;
  /** Folder for the hook, used by this server only. */
  hooks: string;
  /** No other machine runs git in the repositories. */
  isAlone: boolean;
  /** Maximum number of concurrent fetches, pushes and downloads. */
  transfers: number;
  /** Receives errors of background work. */
  onError: (error: unknown) => void;
};

/** @throws Error when git is missing or too old, or when the hook folder does not allow execution. */
export async function openGit({
  root,
  server,
  hooks,
  isAlone,
  transfers,
  onError,
}: Options): Promise<Git> {
  await checkVersion();
  const disk = new Disk(root, server);
  await disk.prepare();
  await installHooks(hooks);
  const objects = new CatFilePool();
  const tasks = new Tasks(onError);
  const readSlots = new FairSemaphore(READERS);
  const locks = new StaleLocks({ isAlone });
  return {
    disk,
    quarantines: new Quarantines(disk),
    locks,
    objects,
    history: new HistoryCache(readSlots),
    diffs: new DiffReader(readSlots),
    lastCommits: new LastCommits(readSlots),
    activity: new Activity(readSlots),
    searches: new Searches(),
    readSlots,
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
