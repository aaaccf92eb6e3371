/**
 * The store of large files: what repositories are given, each by its SHA-256 and size. Contents are cut into chunks
 * (`cut.ts`), and of equal chunks one is kept, in a pack (`packs.ts`) that lies in storage; PostgreSQL has the rest.
 * All repositories with `content_addressed` share one store, each of the others has its own.
 *
 * Who was not given an object does not get it, and learns nothing of it. Authorization is the caller's.
 */
import type pg from 'pg';
import type { Config } from '../../../base/config/config.ts';
import type { Logger } from '../../../base/log.ts';
import type { DiskSpace } from '../../../platform/storage/disk-space.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { gearOf } from './chunking.ts';
import { damagedOf } from './references.ts';
import { openHashing } from './hashing.ts';
import { type Opened, openObject, type Range } from './read.ts';
import { type Given, sizesOf, take } from './references.ts';
import { offsetOf, resume } from './resume.ts';
import { upload } from './upload.ts';

export type LargeFiles = {
  /**
   * Verifies size and SHA-256, stores what is new of it, and gives the object to the repository: all or nothing. A
   * few MiB are in memory, whatever the size. Several may put the same object at once. A piece of the body is done with
   * when the next is asked for.
   * @throws AppError 422 for what is not these bytes, 403 `quota_exceeded`, 404 for a repository that is gone, 503;
   * the reason of `signal`
   */
  put(
    repositoryId: string,
    object: Given,
    body: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<void>;
  /**
   * Bytes of an object, from its beginning, that need not be sent again: kept by `resume`, or all where the repository
   * has it. They stay for the grace period from now on. @throws AppError 422 for another size than the repository has
   */
  offset(repositoryId: string, object: Given): Promise<number>;
  /**
   * As `put`, of an object whose first `from` bytes came before. When it breaks off, what has come is kept.
   * @throws AppError as `put`; 409 when `from` is not what `offset` says
   */
  resume(
    repositoryId: string,
    object: Given & { from: number },
    body: AsyncIterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<void>;
  /** Sizes of those that the repository was given. */
  sizes(repositoryId: string, oids: readonly string[]): Promise<Map<string, number>>;
  /** Those of them that a reader has found damaged since they were put: putting them again repairs them. */
  damaged(repositoryId: string, oids: readonly string[]): Promise<Set<string>>;
  /**
   * Null: the repository was not given it. Each chunk is verified as it is read: this fails before it hands on other
   * bytes than were put.
   * @param range in bytes, the end excluded, within the object's size
   * @throws RangeError
   */
  open(repositoryId: string, oid: string, range?: Range): Promise<Opened | null>;
  /** Takes them from the repository; the bytes go when nobody has them. */
  remove(repositoryId: string, oids: readonly string[]): Promise<void>;
};

type Deps = { pool: pg.Pool; storage: Storage; config: Config; space: DiskSpace; log: Logger };

/** @param key `keys.derive('chunks of large files')` */
export function openLargeFiles(deps: Deps, key: Uint8Array): LargeFiles & AsyncDisposable {
  const hashing = openHashing(gearOf(key));
  return {
    put: (...args) => upload({ ...deps, hashing }, ...args),
    offset: (...args) => offsetOf({ ...deps, hashing }, ...args),
    resume: (...args) => resume({ ...deps, hashing }, ...args),
    sizes: (...args) => sizesOf(deps, ...args),
    damaged: (...args) => damagedOf(deps, ...args),
    open: (...args) => openObject({ ...deps, hashing }, ...args),
    remove: (...args) => take(deps, ...args),
    [Symbol.asyncDispose]: () => hashing[Symbol.asyncDispose](),
  };
}
