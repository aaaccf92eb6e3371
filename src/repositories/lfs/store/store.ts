/**
 * The large-file store. Objects are identified by SHA-256 and size, cut into chunks (`chunking.ts`), and deduplicated;
 * chunks are stored in packs (`packs.ts`), all metadata is in PostgreSQL. Repositories with `content_addressed` share
 * one store, every other repository has its own. A repository can neither read nor detect objects that were not
 * uploaded to it. Callers check permissions.
 */
import type pg from 'pg';
import type { Config } from '../../../base/config/config.ts';
import type { Logger } from '../../../base/log.ts';
import type { DiskSpace } from '../../../platform/storage/disk-space.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { deriveGearTable } from './chunking.ts';
import { HashingPool } from './hashing.ts';
import { type OpenedObject, openObject, openStored, type Range } from './read.ts';
import {
  detachObjects,
  findDamagedObjects,
  type NewObject,
  readSizes,
  type StoredKey,
} from './references.ts';
import { readUploadOffset, resumeUpload } from './resume.ts';
import { upload } from './upload.ts';
import { type StoredStream, writeStream } from './write.ts';

export { BodyTooLong } from './hashing.ts';
export { DamagedChunkError } from './read.ts';
export { deleteHolders, type StoredKey } from './references.ts';

export type LargeFiles = {
  /**
   * Verifies size and SHA-256, stores new chunks, and adds the object to the repository, atomically. Uses a few MiB of
   * memory for any size. Concurrent puts of one object are safe. Pieces of `body` may be reused after the next read.
   * @throws AppError 422 if the bytes do not match, 403 `quota_exceeded`, 404 if the repository is gone, 503;
   * the reason of `signal`
   */
  put(
    repositoryId: string,
    object: NewObject,
    body: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<void>;
  /**
   * Returns how many bytes from the start of an object need not be sent: those kept by `resume`, or all if the
   * repository has the object. Renews their grace period. @throws AppError 422 if the stored object has another size
   */
  offset(repositoryId: string, object: NewObject): Promise<number>;
  /**
   * Like `put`, for an object whose first `from` bytes are already stored. If interrupted, keeps the received bytes.
   * @throws AppError as `put`; 409 if `from` differs from `offset`
   */
  resume(
    repositoryId: string,
    object: NewObject & { from: number },
    body: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<void>;
  /** Sizes of the objects that the repository has. */
  sizes(repositoryId: string, oids: readonly string[]): Promise<Map<string, number>>;
  /** The objects that a reader found damaged. Uploading them again repairs them. */
  damaged(repositoryId: string, oids: readonly string[]): Promise<Set<string>>;
  /**
   * Returns null if the repository does not have the object. Every chunk is verified before its bytes are returned.
   * @param range in bytes, the end excluded, within the object's size
   * @throws RangeError
   */
  open(repositoryId: string, oid: string, range?: Range): Promise<OpenedObject | null>;
  /**
   * Stores a stream whose size is not known before its end, without a temporary copy. `use` then adds what holds the object;
   * without it, the new chunks are removed. Uses a few MiB of memory for any size.
   * @throws AppError 404 if the repository is gone, 503; `BodyTooLong` for more than `atMost` bytes; errors of `body` and `use`;
   *   the reason of `signal`
   */
  write<T>(
    repositoryId: string,
    body: AsyncIterable<Uint8Array>,
    options: { atMost: number; signal: AbortSignal },
    use: (stored: StoredStream) => Promise<T>,
  ): Promise<T>;
  /** Reads an object that a row of the caller holds. @throws as `open` */
  openStored(key: StoredKey): Promise<OpenedObject>;
  /** Removes objects from the repository. The sweep deletes their bytes when no repository has them. */
  remove(repositoryId: string, oids: readonly string[]): Promise<void>;
};

type Deps = { pool: pg.Pool; storage: Storage; config: Config; space: DiskSpace; log: Logger };

/** @param key `keys.derive('chunks of large files')` */
export function openLargeFiles(deps: Deps, key: Uint8Array): LargeFiles & AsyncDisposable {
  const hashing = new HashingPool(deriveGearTable(key));
  return {
    put: (...args) => upload({ ...deps, hashing }, ...args),
    offset: (...args) => readUploadOffset({ ...deps, hashing }, ...args),
    resume: (...args) => resumeUpload({ ...deps, hashing }, ...args),
    sizes: (...args) => readSizes(deps, ...args),
    damaged: (...args) => findDamagedObjects(deps, ...args),
    open: (...args) => openObject({ ...deps, hashing }, ...args),
    write: (...args) => writeStream({ ...deps, hashing }, ...args),
    openStored: (key) => openStored({ ...deps, hashing }, key),
    remove: (...args) => detachObjects(deps, ...args),
    [Symbol.asyncDispose]: () => hashing[Symbol.asyncDispose](),
  };
}
