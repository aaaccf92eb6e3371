/**
 * The artifacts of a job: one gzip tar, and an index of the files in it, both in storage.
 *
 * Each large file of the tar is a gzip member of its own, and small ones share one. Concatenated members are one
 * valid gzip, so `tar -xz` sees nothing special, and yet one file can be sent by itself: from the offset of its
 * member, without reading the rest.
 *
 * Each attempt has a place of its own, and the job's row says whose artifacts count: storage cannot replace two
 * objects at once, nor together with a row.
 */
import { posix } from 'node:path';
import { Readable, Transform } from 'node:stream';
import { json } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { createGunzip, gzipSync } from 'node:zlib';
import { extract, type Header } from 'tar-stream';
import { removeAll, type Storage } from '../../platform/storage/storage.ts';
import { TooLarge, tooManyEntries } from '../../runners/runner.ts';
import { TAR_END, tarHeader } from '../../runners/supervisor/tar-format.ts';
import { type ArtifactEntry, type IndexEntry, openMemberWriter } from './members.ts';

export type { ArtifactEntry } from './members.ts';

export type StoredArtifacts = {
  files: number;
  sizeBytes: number;
  /** Devices, FIFOs, sockets, what could not be read, and names and links that lead outside. */
  leftOut: number;
};
/** What ends the storing of artifacts. */
export type StoreLimits = {
  /** As the job knows the folder: links to a place in it may name it. */
  folder: string;
  /** Of contents. */
  maxBytes: number;
  maxEntries: number;
  /** Called with the size of the archive, as it grows and before it is stored; throws when there is no room. */
  demandRoom(sizeBytes: number): Promise<void>;
  signal: AbortSignal;
};
/** `attemptId`: whose artifacts; null for those of earlier versions, of which each job had one set. */
export type ArtifactKey = { namespaceId: string; jobId: string; attemptId: string | null };

type Deps = { storage: Storage };

const TAR = 'artifacts.tar.gz';
const INDEX = 'index.json';
/** Files that are written into the index at once. */
const INDEX_STEP = 5_000;

/** Below it lies all that a job left. */
function prefixOf({ namespaceId, jobId }: Omit<ArtifactKey, 'attemptId'>): string {
  return `artifacts/${namespaceId}/${jobId}/`;
}

function objectKey(key: ArtifactKey, name: typeof TAR | typeof INDEX): string {
  return `${prefixOf(key)}${key.attemptId === null ? '' : `${key.attemptId}/`}${name}`;
}

/**
 * Stores a runner's tar, or nothing. Taken are regular files, under names that stay below the archive's root, links that do,
 * and the directories that are entries. A
 * name that is no UTF-8 is kept byte for byte in the archive, and shown with replacement characters.
 * @throws TooLarge, what `demandRoom` throws, and the reason of `signal` when it aborts
 */
export async function storeArtifacts(
  { storage }: Deps,
  key: ArtifactKey,
  tar: Readable,
  bounds: StoreLimits,
): Promise<StoredArtifacts> {
  const repacked: Repacked = { index: [], leftOut: 0 };
  const archive = Readable.from(repack(tar, bounds, repacked), { objectMode: false });
  try {
    const { size } = await storage.put(objectKey(key, TAR), archive, {
      atMost: 2 * bounds.maxBytes,
      signal: bounds.signal,
    });
    await bounds.demandRoom(size);
    bounds.signal.throwIfAborted();
    await storage.put(objectKey(key, INDEX), encodeIndex(repacked.index));
    return { files: repacked.index.length, sizeBytes: size, leftOut: repacked.leftOut };
  } catch (error) {
    // What stays goes with the job.
    await removeObjects(storage, key).catch(() => {});
    throw error;
  }
}

/** As JSON, in parts: all of a hundred thousand files at once took longer than other requests should wait. */
async function* encodeIndex(index: readonly IndexEntry[]): AsyncGenerator<Buffer> {
  for (let at = 0; at < index.length; at += INDEX_STEP) {
    const part = JSON.stringify(index.slice(at, at + INDEX_STEP));
    yield Buffer.from((at === 0 ? '[' : ',') + part.slice(1, -1));
    await nextTurn();
  }
  yield Buffer.from(index.length === 0 ? '[]' : ']');
}

async function removeObjects(storage: Storage, key: ArtifactKey): Promise<void> {
  await storage.remove(objectKey(key, INDEX));
  await storage.remove(objectKey(key, TAR));
}

/** What is counted while the archive is written. */
type Repacked = { index: IndexEntry[]; leftOut: number };

async function* repack(
  tar: Readable,
  { folder, maxBytes, maxEntries, demandRoom, signal }: StoreLimits,
  repacked: Repacked,
): AsyncGenerator<Buffer> {
  const writing = openMemberWriter(repacked.index, demandRoom);
  /** Names as bytes, and as they are shown. */
  const taken = new Set<string>();
  const shown = new Set<string>();
  let left = maxBytes;
  let count = 0;
  // One character for each byte, so that none is lost.
  const entries = extract({ filenameEncoding: 'latin1' } as object);
  // Its failure reaches us through `entries`, which it destroys.
  const feeding = pipeline(tar, entries, { signal }).catch(() => {});
  for await (const entry of entries) {
    count += 1;
    if (count > maxEntries) throw tooManyEntries(maxEntries);
    const { size = 0, mode, mtime, type } = entry.header;
    const name = safeName(nameBytes(entry.header));
    const isFile = type === 'file' || type === 'contiguous-file';
    const isNew = name !== null && !taken.has(name);
    if (!isFile || !isNew) {
      const header = isNew ? headerWithoutContents(entry.header, name, folder) : null;
      if (header) {
        taken.add(name as string);
        yield* writing.addHeader(header);
      } else if (type !== 'directory') repacked.leftOut += 1;
      entry.resume();
      continue;
    }
    left -= size;
    if (left < 0)
      throw new TooLarge(
        `they are larger than the job's disk of ${Math.floor(maxBytes / 2 ** 30)} GB`,
      );
    const bytes = Buffer.from(name, 'latin1');
    const header = tarHeader({ name: bytes, size, mode: (mode ?? 0o644) & 0o777, mtime });
    const path = uniquePath(shown, bytes.toString('utf8'));
    taken.add(name);
    shown.add(path);
    const contents = entry as unknown as Readable;
    yield* writing.add({ path, header, contents, size });
  }
  await feeding;
  yield* writing.end();
  yield gzipSync(TAR_END);
}

/** Of a directory, or of a link that stays inside; null for anything else. */
function headerWithoutContents(
  { type, mtime, linkname }: Header,
  name: string,
  folder: string,
): Buffer | null {
  const common = { name: Buffer.from(name, 'latin1'), size: 0, mtime };
  if (type === 'directory') return tarHeader({ ...common, mode: 0o755, type: 'directory' });
  const target = type === 'symlink' ? relativeTarget(name, linkname ?? '', folder) : null;
  if (target === null) return null;
  return tarHeader({
    ...common,
    mode: 0o777,
    type: 'link',
    target: Buffer.from(target, 'latin1'),
  });
}

/**
 * The target of a link, relative to where that stands; null when it leads outside. A `..` after a name is refused: the name
 * may be that of a link, after which it is another folder.
 */
function relativeTarget(name: string, target: string, folder: string): string | null {
  const inside = target === folder || target.startsWith(`${folder}/`);
  const from = posix.dirname(name);
  const depth = from === '.' ? 0 : from.split('/').length;
  const path = inside ? '../'.repeat(depth) + target.slice(folder.length + 1) || '.' : target;
  if (path === '' || path.startsWith('/')) return null;
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  const first = parts.findIndex((part) => part !== '..');
  const up = first === -1 ? parts.length : first;
  return up > depth || parts.includes('..', up) ? null : path;
}

/** A name in an extended header is text; any other was read a character for each byte. */
function nameBytes({ name, pax }: Header): string {
  return (pax as { path?: string } | null)?.path === undefined
    ? name
    : Buffer.from(name, 'utf8').toString('latin1');
}

/** Null for a name that is absolute, leads outside, or is empty. */
function safeName(name: string): string | null {
  const path = posix.normalize(name).replace(/^\.\//, '');
  if (name.startsWith('/') || path === '..' || path.startsWith('../')) return null;
  return path.endsWith('/') || path === '.' || path.includes('\0') ? null : path;
}

/** Names that are no UTF-8 are shown alike; each gets a number then, so that it can be asked for. */
function uniquePath(shown: ReadonlySet<string>, path: string): string {
  let own = path;
  for (let n = 2; shown.has(own); n++) own = `${path} (${n})`;
  return own;
}

/** Of all attempts of a job; irreversible. */
export async function removeArtifacts(
  { storage }: Deps,
  key: Omit<ArtifactKey, 'attemptId'>,
): Promise<void> {
  await removeAll(storage, prefixOf(key));
}

/** Of all attempts of the job but this one. */
export async function removeOtherArtifacts({ storage }: Deps, key: ArtifactKey): Promise<void> {
  const kept = [objectKey(key, TAR), objectKey(key, INDEX)];
  for await (const object of storage.list(prefixOf(key)))
    if (!kept.includes(object.key)) await storage.remove(object.key);
}

/** The whole archive, in storage; it may not be there. */
export function archiveKey(key: ArtifactKey): string {
  return objectKey(key, TAR);
}

/** In the order of the archive; null when there are no artifacts. */
export async function listArtifacts(deps: Deps, key: ArtifactKey): Promise<ArtifactEntry[] | null> {
  return readIndex(deps, key);
}

async function readIndex({ storage }: Deps, key: ArtifactKey): Promise<IndexEntry[] | null> {
  const found = await storage.open(objectKey(key, INDEX));
  return found && ((await json(found.contents)) as IndexEntry[]);
}

/** One file of the archive, which is read once it is opened; null when there is none of that path. */
export async function openArtifact(
  deps: Deps,
  key: ArtifactKey,
  path: string,
): Promise<{ sizeBytes: number; open(): Promise<Readable> } | null> {
  const entry = (await readIndex(deps, key))?.find((e) => e.path === path);
  if (!entry) return null;
  const { offset, length, skip, sizeBytes } = entry;
  const range = { start: offset, end: offset + length - 1 };
  return {
    sizeBytes,
    async open() {
      const member = await deps.storage.open(archiveKey(key), range);
      if (!member) throw new Error(`the archive of job ${key.jobId} is gone`);
      const slice = new Slice(skip, sizeBytes);
      void pipeline(member.contents, createGunzip(), slice).catch((e) => slice.destroy(e));
      return slice;
    },
  };
}

/** Passes `take` bytes after the first `skip`. */
class Slice extends Transform {
  #skip: number;
  #take: number;
  constructor(skip: number, take: number) {
    super();
    this.#skip = skip;
    this.#take = take;
  }
  override _transform(chunk: Buffer, _encoding: string, done: (e: null, out: Buffer) => void) {
    const part = chunk.subarray(this.#skip, this.#skip + this.#take);
    this.#skip = Math.max(0, this.#skip - chunk.length);
    this.#take -= part.length;
    done(null, part);
  }
}
