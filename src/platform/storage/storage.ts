/**
 * Where large contents are kept: the artifacts of jobs. One interface over two drivers, a folder (`folder.ts`) and
 * any S3-compatible server (`s3.ts`); one contract test holds both to it.
 *
 * A key is a path of parts with slashes between. An object appears under its key whole or not at all, replaces what
 * was there, and is on disk, or with the other server, before `put` returns. What a killed server left of an object
 * that was being put is never seen, and removed by `tidy` a day later.
 */
import type { Readable } from 'node:stream';

export type StoredObject = {
  /** In bytes. */
  size: number;
  modifiedAt: Date;
  /** Another one for other contents under the same key. */
  version: string;
};

/** Bytes, the first and the last included. */
export type ByteRange = { start: number; end: number };

export type PutOptions = {
  /** Bytes that the contents cannot exceed, where they may be many: some drivers have to know before they begin. */
  atMost?: number;
  /** Leaves what was there as it is. */
  signal?: AbortSignal;
};

/** All of it, or in pieces as they come. */
export type Contents = AsyncIterable<Uint8Array> | Uint8Array;

/** A range that is read one part after the other, and closed by who reads it. */
export type Reading = AsyncDisposable & {
  /** Fills the memory from its beginning, not always whole. @returns how many bytes came; 0 at the end */
  into(memory: Uint8Array): Promise<number>;
};

export type Storage = Disposable & {
  /** For the operator: what it is and where, without credentials. */
  readonly place: string;
  /** The same for all processes that use the same contents. */
  readonly identity: string;
  /**
   * Takes contents of any size, with a few MiB of them in memory. It is done with a piece when it asks for the next, so
   * the same memory can hold that.
   * @throws what `contents` throws, and `signal.reason`; then nothing has changed
   */
  put(key: string, contents: Contents, options?: PutOptions): Promise<StoredObject>;
  /** All of it, or a range that lies within; null when there is none. A reader who stops must destroy the stream. */
  open(key: string, range?: ByteRange): Promise<(StoredObject & { contents: Readable }) | null>;
  /** The same for who reads into memory of their own; null when there is none. */
  read(key: string, range: ByteRange): Promise<Reading | null>;
  /** Null when there is none. */
  stat(key: string): Promise<StoredObject | null>;
  /** All whose key begins with `prefix`, which is empty or ends with a slash, in no order. */
  list(prefix: string): AsyncIterable<StoredObject & { key: string }>;
  /** What is not there is removed already. */
  remove(key: string): Promise<void>;
  /** Removes what cut-off `put`s left more than a day ago. */
  tidy(): Promise<void>;
  /**
   * An address under which a client without credentials gets it for `seconds`, as a file called `name`; null where
   * the driver has none to give.
   */
  link(key: string, seconds: number, name: string): Promise<string | null>;
};

/** It cannot be reached, or is not able to answer, at the moment. */
export class StorageAway extends Error {
  override name = 'StorageAway';
}

/** After this what was cut off is taken for abandoned. */
export const ABANDONED_MS = 24 * 60 * 60_000;

/** Removes every object whose key begins with `prefix`, which ends with a slash. */
export async function removeAll(storage: Storage, prefix: string): Promise<void> {
  for await (const { key } of storage.list(prefix)) await storage.remove(key);
}

/** Keys are made by us, never by clients. @throws Error for what is no key */
export function checkKey(key: string): string {
  const isKey = key.split('/').every((part) => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}$/.test(part));
  if (!isKey) throw new Error(`not a key of storage: ${JSON.stringify(key)}`);
  return key;
}
