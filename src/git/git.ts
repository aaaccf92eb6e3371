/** All of git that the server holds on to: where repositories lie, and what is open in them. */
import { CatFilePool } from './catfile.ts';
import { Disk } from './disk.ts';
import { HistoryCache } from './read.ts';
import { checkVersion } from './run.ts';

export type Git = AsyncDisposable & {
  disk: Disk;
  objects: CatFilePool;
  history: HistoryCache;
};

/** @throws Error when git is missing or too old. */
export async function openGit(root: string): Promise<Git> {
  await checkVersion();
  const disk = new Disk(root);
  await disk.prepare();
  const objects = new CatFilePool();
  return {
    disk,
    objects,
    history: new HistoryCache(),
    async [Symbol.asyncDispose]() {
      await objects[Symbol.asyncDispose]();
    },
  };
}
