/**
 * Stores the artifacts of a job: a gzip tar archive and an index of its files. Large files are gzip members of their own and
 * small files share members, so `tar -xz` reads the archive, and a single file is sent by reading only its member. Each
 * attempt has its own storage prefix, and the job's row names the attempt whose artifacts are current, because storage cannot
 * replace two objects, or an object and a row, atomically.
 */
import { posix } from 'node:path';
import { type Duplex, Readable, Transform } from 'node:stream';
import { json } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import { createGunzip, gzipSync } from 'node:zlib';
import { extract, type Header } from 'tar-stream';
import { type ByteRange, removeAll, type Storage } from '../../platform/storage/storage.ts';
import { ArtifactsNotKept, tooManyEntriesError } from '../../runners/runner.ts';
import { TAR_END, type TarFingerprint, tarHeader } from '../../runners/supervisor/tar-format.ts';
import { type ArtifactEntry, createMemberWriter, type IndexEntry } from './members.ts';

export type { ArtifactEntry } from './members.ts';

type StoredArtifacts = {
  files: number;
  sizeBytes: number;
  /** Number of skipped entries: devices, FIFOs, sockets, unreadable files, and names or links that lead outside the folder. */
  leftOut: number;
};
/** The limits for storing. A limit that is exceeded, or `signal`, aborts it. */
type StoreLimits = {
  /** The path of the folder as the job sees it, because absolute links into the folder contain it. */
  folder: string;
  /** Uncompressed size of all files. */
  maxBytes: number;
  maxEntries: number;
  /** Called with the size of the archive as it grows, and before the index is stored; throws if there is not enough storage. */
  requireRoom(sizeBytes: number): Promise<void>;
  /** Gets each entry of the tar. */
  fingerprint?: TarFingerprint;
  signal: AbortSignal;
};
/** `attemptId` is null for artifacts of earlier versions, which stored one set of artifacts for each job. */
export type ArtifactKey = { namespaceId: string; jobId: string; attemptId: string | null };
/** A checkpoint (`../checkpoints/store.ts`) is stored in the same form. */
export type ArchiveKey = ArtifactKey | { namespaceId: string; checkpointId: string };

type Deps = { storage: Storage };

const TAR = 'artifacts.tar.gz';
const INDEX = 'index.json';
/** Number of index entries that are encoded at once. */
const INDEX_STEP = 5_000;

/** The storage prefix of all artifacts of a job. */
function jobPrefix({ namespaceId, jobId }: Omit<ArtifactKey, 'attemptId'>): string {
  return `artifacts/${namespaceId}/${jobId}/`;
}

function objectKey(key: ArchiveKey, name: typeof TAR | typeof INDEX): string {
  if ('checkpointId' in key) return `checkpoints/${key.namespaceId}/${key.checkpointId}/${name}`;
  return `${jobPrefix(key)}${key.attemptId === null ? '' : `${key.attemptId}/`}${name}`;
}

/**
 * Stores the tar of a runner, or nothing if it fails. Regular files, directories, and links that stay below the root of the
 * archive are kept. A name that is not UTF-8 is kept byte for byte in the archive, and shown with replacement characters.
 * @throws ArtifactsNotKept, the errors of `requireRoom`, and the reason of `signal` when it aborts
 */
export async function storeArtifacts(
  { storage }: Deps,
  key: ArchiveKey,
  tar: Readable,
  limits: StoreLimits,
): Promise<StoredArtifacts> {
  const repacked: RepackResult = { index: [], leftOut: 0 };
  const archive = Readable.from(repack(tar, limits, repacked), { objectMode: false });
  try {
    const { size } = await storage.put(objectKey(key, TAR), archive, {
      atMost: 2 * limits.maxBytes,
      signal: limits.signal,
    });
    await limits.requireRoom(size);
    limits.signal.throwIfAborted();
    await storage.put(objectKey(key, INDEX), encodeIndex(repacked.index));
    return { files: repacked.index.length, sizeBytes: size, leftOut: repacked.leftOut };
  } catch (error) {
    // Objects that cannot be removed now are removed with the job.
    await removeArchive({ storage }, key).catch(() => {});
    throw error;
  }
}

/** Encodes the index as JSON in steps. Encoding a hundred thousand files at once would block other requests for too long. */
async function* encodeIndex(index: readonly IndexEntry[]): AsyncGenerator<Buffer> {
  for (let start = 0; start < index.length; start += INDEX_STEP) {
    const part = JSON.stringify(index.slice(start, start + INDEX_STEP));
    yield Buffer.from((start === 0 ? '[' : ',') + part.slice(1, -1));
    await yieldToEventLoop();
  }
  yield Buffer.from(index.length === 0 ? '[]' : ']');
}

export async function removeArchive({ storage }: Deps, key: ArchiveKey): Promise<void> {
  await storage.remove(objectKey(key, INDEX));
  await storage.remove(objectKey(key, TAR));
}

/** Collected while the archive is written. */
type RepackResult = { index: IndexEntry[]; leftOut: number };

async function* repack(
  tar: Readable,
  { folder, maxBytes, maxEntries, requireRoom, fingerprint, signal }: StoreLimits,
  repacked: RepackResult,
): AsyncGenerator<Buffer> {
  const writer = createMemberWriter(repacked.index, requireRoom);
  /** Names as bytes, and as shown to users. */
  const names = new Set<string>();
  const shownPaths = new Set<string>();
  let bytesLeft = maxBytes;
  let count = 0;
  for await (const { name, header: given, contents } of readTar([tar], signal)) {
    count += 1;
    if (count > maxEntries) throw tooManyEntriesError(maxEntries);
    const { size = 0, mode, mtime, type } = given;
    fingerprint?.add(given);
    const isFile = type === 'file' || type === 'contiguous-file';
    const isNew = name !== null && !names.has(name);
    // Also of entries that are left out: an agent of a cluster may be hostile and send endless contents.
    bytesLeft -= size;
    if (bytesLeft < 0)
      throw new ArtifactsNotKept(
        `they are larger than the job's disk of ${Math.floor(maxBytes / 2 ** 30)} GB`,
      );
    if (!isFile || !isNew) {
      const header = isNew ? headerWithoutContents(given, name, folder) : null;
      if (header) {
        names.add(name as string);
        yield* writer.addHeader(header);
      } else if (type !== 'directory') repacked.leftOut += 1;
      continue;
    }
    const bytes = Buffer.from(name, 'latin1');
    const header = tarHeader({ name: bytes, size, mode: (mode ?? 0o644) & 0o777, mtime });
    const path = uniquePath(shownPaths, bytes.toString('utf8'));
    names.add(name);
    shownPaths.add(path);
    yield* writer.add({ path, header, contents, size });
  }
  yield* writer.end();
  yield gzipSync(TAR_END);
}

/**
 * Reads the entries of a tar. Contents must be read before the next entry is requested.
 * @param stages the source of the tar, and what converts it
 * @returns names with one character for each byte; null: absolute, or leads outside the folder
 */
export async function* readTar(
  stages: readonly [Readable, ...Duplex[]],
  signal: AbortSignal,
): AsyncGenerator<{ name: string | null; header: Header; contents: Readable }> {
  // latin1 maps each byte to one character, so no byte of a name is lost.
  const entries = extract({ filenameEncoding: 'latin1' } as object);
  const feeding = pipeline([...stages, entries], { signal });
  // The loop throws the error, because it destroys `entries`.
  feeding.catch(() => {});
  try {
    for await (const entry of entries) {
      const { header } = entry;
      yield { name: safeName(nameBytes(header)), header, contents: entry as unknown as Readable };
      entry.resume();
    }
    await feeding;
  } finally {
    stages[0].destroy();
  }
}

/** Builds the header of a directory, or of a link that stays inside the folder; null for any other entry. */
function headerWithoutContents(given: Header, name: string, folder: string): Buffer | null {
  const { type, mtime } = given;
  const common = { name: Buffer.from(name, 'latin1'), size: 0, mtime };
  if (type === 'directory') return tarHeader({ ...common, mode: 0o755, type: 'directory' });
  const target = type === 'symlink' ? relativeTarget(name, linkBytes(given), folder) : null;
  if (target === null) return null;
  return tarHeader({
    ...common,
    mode: 0o777,
    type: 'link',
    target: Buffer.from(target, 'latin1'),
  });
}

/**
 * Computes the target of a link, relative to the link; null if it leads outside the folder. A `..` after a name is rejected,
 * because the name may be a link to another folder, and `..` would then be the parent of that folder.
 * @param folder the path of the folder, which absolute targets inside it contain; by default, all of these are rejected
 */
export function relativeTarget(name: string, target: string, folder?: string): string | null {
  const inside = folder !== undefined && (target === folder || target.startsWith(`${folder}/`));
  const from = posix.dirname(name);
  const depth = from === '.' ? 0 : from.split('/').length;
  const path = inside ? '../'.repeat(depth) + target.slice(folder.length + 1) || '.' : target;
  if (path === '' || path.startsWith('/')) return null;
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  const first = parts.findIndex((part) => part !== '..');
  const up = first === -1 ? parts.length : first;
  return up > depth || parts.includes('..', up) ? null : path;
}

/** Returns the name with one character for each byte. A name from a PAX header is UTF-8; any other name is latin1 already. */
function nameBytes({ name, pax }: Header): string {
  return (pax as { path?: string } | null)?.path === undefined
    ? name
    : Buffer.from(name, 'utf8').toString('latin1');
}

/** The target of a link, as `nameBytes`. */
export function linkBytes({ linkname, pax }: Header): string {
  return nameBytes({
    name: linkname ?? '',
    pax: { path: (pax as { linkpath?: string })?.linkpath },
  } as Header);
}

/** @returns the normalized name; null if it is absolute, empty, or leads outside the folder */
function safeName(name: string): string | null {
  const path = posix.normalize(name).replace(/^\.\//, '');
  if (name.startsWith('/') || path === '..' || path.startsWith('../')) return null;
  return path.endsWith('/') || path === '.' || path.includes('\0') ? null : path;
}

/** Adds a number if the path is shown already: different names that are not UTF-8 may look the same. */
function uniquePath(shownPaths: ReadonlySet<string>, path: string): string {
  let unique = path;
  for (let n = 2; shownPaths.has(unique); n++) unique = `${path} (${n})`;
  return unique;
}

/** Removes the artifacts of all attempts of a job. This cannot be undone. */
export async function removeArtifacts(
  { storage }: Deps,
  key: Omit<ArtifactKey, 'attemptId'>,
): Promise<void> {
  await removeAll(storage, jobPrefix(key));
}

/** Removes the artifacts of all other attempts of the job. */
export async function removeOtherArtifacts({ storage }: Deps, key: ArtifactKey): Promise<void> {
  const kept = [objectKey(key, TAR), objectKey(key, INDEX)];
  for await (const object of storage.list(jobPrefix(key)))
    if (!kept.includes(object.key)) await storage.remove(object.key);
}

/** The storage key of the archive, which may not exist. */
export function archiveKey(key: ArchiveKey): string {
  return objectKey(key, TAR);
}

/** Lists the files in the order of the archive; null if there are no artifacts. */
export async function listArtifacts(deps: Deps, key: ArtifactKey): Promise<ArtifactEntry[] | null> {
  return readIndex(deps, key);
}

async function readIndex({ storage }: Deps, key: ArchiveKey): Promise<IndexEntry[] | null> {
  const found = await storage.open(objectKey(key, INDEX));
  return found && ((await json(found.contents)) as IndexEntry[]);
}

/** Finds the part of the archive that has a file, and perhaps others; null if there is no file with this path. */
export async function findMember(
  deps: Deps,
  key: ArchiveKey,
  path: string,
): Promise<ByteRange | null> {
  const entry = (await readIndex(deps, key))?.find((e) => e.path === path);
  return entry ? { start: entry.offset, end: entry.offset + entry.length - 1 } : null;
}

/** Finds a file of the archive; null if there is no file with this path. `open` reads its contents. */
export async function openArtifact(
  deps: Deps,
  key: ArtifactKey,
  path: string,
): Promise<{ size: number; etag: string; open(range?: ByteRange): Promise<Readable> } | null> {
  const entry = (await readIndex(deps, key))?.find((e) => e.path === path);
  if (!entry) return null;
  const { offset, length, skip, sizeBytes } = entry;
  const memberRange = { start: offset, end: offset + length - 1 };
  return {
    size: sizeBytes,
    // An attempt stores its archive once.
    etag: `${key.attemptId ?? key.jobId}-${offset}-${skip}`,
    async open({ start, end } = { start: 0, end: sizeBytes - 1 }) {
      const member = await deps.storage.open(archiveKey(key), memberRange);
      if (!member) throw new Error(`the archive of job ${key.jobId} was removed`);
      const range = new RangeStream(skip + start, end - start + 1);
      void pipeline(member.contents, createGunzip(), range).catch((e) => range.destroy(e));
      return range;
    },
  };
}

/** A stream that drops the first `skip` bytes and passes the next `take` bytes. */
class RangeStream extends Transform {
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
