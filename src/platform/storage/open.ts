/** Storage as configured. */
import { access, mkdir, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type Config, ConfigError } from '../../base/config/config.ts';
import { prepareDataFolder } from './data-folder.ts';
import { openFolder } from './folder.ts';
import { type Storage, StorageAway } from './storage.ts';

/** @throws ConfigError when it cannot be used */
export async function openStorage({
  storage,
  dataDir,
}: Pick<Config, 'storage' | 'dataDir'>): Promise<Storage> {
  if (storage.kind === 's3') {
    // Here, because the SDK takes a quarter of a second to load and 60 MB.
    const { openS3 } = await import('./s3.ts');
    return openS3(storage).catch((error) => {
      if (!(error instanceof StorageAway)) throw error;
      throw new ConfigError(`LOAM_STORAGE: the S3 server does not answer (${error.message})`);
    });
  }
  await prepareDataFolder(storage.path, 'LOAM_STORAGE', 0o700);
  const opened = await openFolder(storage.path);
  if (dirname(storage.path) === dataDir) await takeOver(dataDir, storage.path);
  return opened;
}

/** Earlier versions had the artifacts in the data folder itself. */
async function takeOver(dataDir: string, folder: string): Promise<void> {
  const before = join(dataDir, 'artifacts');
  const isThere = await access(before).then(
    () => true,
    () => false,
  );
  if (!isThere) return;
  await mkdir(folder, { recursive: true });
  await rename(before, join(folder, 'artifacts'));
}
