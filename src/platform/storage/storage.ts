/**
 * Object storage for large contents, such as artifacts of jobs. The interface has two drivers, a folder (`folder.ts`) and
 * S3-compatible servers (`s3.ts`), and one contract test for both.
 *
 * A key is a path whose parts are separated by slashes. An object becomes visible only when it is complete, replaces an
 * earlier object with its key, and is durable before `put` returns. Incomplete objects of a killed server are never visible;
 * `removeAbandoned` removes them a day later.
 */
import type { Readable } from 'node:stream';

export type StoredObject = {
  /** Bytes. */
  size: number;
  modifiedAt: Date;
  /** Different contents of a key have different versions. */
  version: string;
};

/** Positions of the first and last byte, both included. */
export type ByteRange = { start: number; end: number };

export type PutOptions = {
  /** Upper bound of the size, if it may be large: some drivers must know it before they start. */
  atMost?: number;
  /** On abort, an existing object stays unchanged. */
  signal?: AbortSignal;
};

/** The whole contents, or a stream of pieces. */
export type Contents = AsyncIterable<Uint8Array> | Uint8Array;

/** A range that is read in steps. The reader must dispose it. */
export type RangeReader = AsyncDisposable & {
  /** Reads into `memory`, which may not be filled. @returns the number of bytes; 0 at the end */
  into(memory: Uint8Array): Promise<number>;
};

export type Storage = Disposable & {
  /** Description for the operator: kind and location, without credentials. */
  readonly description: string;
  /** Equal for all processes that use the same objects. */
  readonly identity: string;
  /**
   * Stores contents of any size, with a few MiB in memory. A piece is not used after the next piece is requested, so the
   * source may reuse its memory.
   * @throws errors of `contents`, and `signal.reason` on abort; then an existing object is unchanged
   */
  put(key: string, contents: Contents, options?: PutOptions): Promise<StoredObject>;
  /** Opens the object or a range of it; null if it does not exist. A reader that stops early must destroy the stream. */
  open(key: string, range?: ByteRange): Promise<(StoredObject & { contents: Readable }) | null>;
  /** Like `open`, for readers that provide the memory; null if the object does not exist. */
  read(key: string, range: ByteRange): Promise<RangeReader | null>;
  /** Null if the object does not exist. */
  stat(key: string): Promise<StoredObject | null>;
  /** All objects whose key begins with `prefix`, in no order. `prefix` is empty or ends with a slash. */
  list(prefix: string): AsyncIterable<StoredObject & { key: string }>;
  /** Succeeds if the object does not exist. */
  remove(key: string): Promise<void>;
  /** Removes unfinished uploads that are older than a day. */
  removeAbandoned(): Promise<void>;
  /**
   * A URL with which a client without credentials can download the object for `seconds`, as a file called `name`; null if
   * the driver does not support this.
   */
  link(key: string, seconds: number, name: string): Promise<string | null>;
};

/** The storage cannot be reached, or cannot answer at the moment. */
export class StorageUnavailable extends Error {
  override name = 'StorageUnavailable';
}

/** Age at which an unfinished upload is considered abandoned. */
export const ABANDONED_MS = 24 * 60 * 60_000;

/** Removes every object whose key begins with `prefix`, which ends with a slash. */
export async function removeAll(storage: Storage, prefix: string): Promise<void> {
  for await (const { key } of storage.list(prefix)) await storage.remove(key);
}

/** Keys are created by Loam, never by clients. @throws Error for an invalid key */
export function checkKey(key: string): string {
  const isValid = key.split('/').every((part) => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}$/.test(part));
  if (!isValid) throw new Error(`invalid storage key: ${JSON.stringify(key)}`);
  return key;
}
