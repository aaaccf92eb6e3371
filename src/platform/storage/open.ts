/** Opens the configured storage. */
import { type Config, ConfigError } from '../../base/config/config.ts';
import { prepareDataFolder } from './data-folder.ts';
import { openFolder } from './folder.ts';
import { type Storage, StorageUnavailable } from './storage.ts';

/** @throws ConfigError if the storage cannot be used */
export async function openStorage({ storage }: Pick<Config, 'storage'>): Promise<Storage> {
  if (storage.kind === 's3') {
    // Imported on demand, because the SDK takes a quarter of a second and 60 MB to load.
    const { openS3 } = await import('./s3.ts');
    return openS3(storage).catch((error) => {
      if (!(error instanceof StorageUnavailable)) throw error;
      throw new ConfigError(`LOAM_STORAGE: the S3 server does not answer (${error.message})`);
    });
  }
  await prepareDataFolder(storage.path, 'LOAM_STORAGE', 0o700);
  return openFolder(storage.path);
}
