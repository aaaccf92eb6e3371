/**
 * What a job left behind: one gzip tar on disk, and an index of what is in it.
 *
 * Each file of the tar is a gzip member of its own. Concatenated members are one valid gzip, so `tar -xz`
 * sees nothing special, and yet one file can be sent by itself: from its offset, without reading the rest.
 */
import { createReadStream } from 'node:fs';
import { mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { join, posix } from 'node:path';
import { type Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createGzip, gzipSync } from 'node:zlib';
import { extract, type Header } from 'tar-stream';
import type { Services } from '../../services.ts';
import { TooLarge, tooManyEntries } from '../runners/runner.ts';
import { TAR_END, tarHeader, tarPadding } from './tar.ts';

export type ArtifactEntry = { path: string; sizeBytes: number };
/** Where its member lies in the file, and how far the contents are from the member's beginning. */
type IndexEntry = ArtifactEntry & { offset: number; length: number; skip: number };

export type Stored = {
  files: number;
  sizeBytes: number;
  /** Links, devices, FIFOs, sockets, what could not be read, and names that lead outside. */
  leftOut: number;
};
/** What ends the storing of artifacts. */
export type Bounds = {
  /** Of contents. */
  maxBytes: number;
  maxEntries: number;
  /** Is told the size of the archive, as it grows and before it takes its place; throws when there is no room. */
  demandRoom(sizeBytes: number): Promise<void>;
  signal: AbortSignal;
};
export type ArtifactKey = { namespaceId: string; jobId: string };

type Dirs = { config: Pick<Services['config'], 'dataDir'> };

const TAR = 'artifacts.tar.gz';
const INDEX = 'index.json';

function folderOf({ config }: Dirs, { namespaceId, jobId }: ArtifactKey): string {
  return join(config.dataDir, 'artifacts', namespaceId, jobId);
}

/**
 * Stores a runner's tar in place of what an earlier attempt left, or not at all: it is written beside,
 * synced, and renamed. Only regular files are taken, under names that stay below the archive's root. A name that
 * is no UTF-8 is kept byte for byte in the archive, and shown with replacement characters.
 * @throws TooLarge, what `demandRoom` throws, and the reason of `signal` when it aborts
 */
export async function storeArtifacts(
  dirs: Dirs,
  key: ArtifactKey,
  tar: Readable,
  bounds: Bounds,
): Promise<Stored> {
  const folder = folderOf(dirs, key);
  const fresh = `${folder}.new`;
  await rm(fresh, { recursive: true, force: true });
  await mkdir(fresh, { recursive: true, mode: 0o700 });
  try {
    const { index, leftOut } = await repack(tar, join(fresh, TAR), bounds);
    await writeSynced(join(fresh, INDEX), JSON.stringify(index));
    const sizeBytes = (await stat(join(fresh, TAR))).size;
    await bounds.demandRoom(sizeBytes);
    bounds.signal.throwIfAborted();
    await rm(folder, { recursive: true, force: true });
    await rename(fresh, folder);
    return { files: index.length, sizeBytes, leftOut };
  } catch (error) {
    await rm(fresh, { recursive: true, force: true });
    throw error;
  }
}

type Repacked = { index: IndexEntry[]; leftOut: number };

/** So much of the archive is written between two looks at the room for it. */
const ROOM_STEP = 16 * 2 ** 20;

async function repack(
  tar: Readable,
  file: string,
  { maxBytes, maxEntries, demandRoom, signal }: Bounds,
): Promise<Repacked> {
  const index: IndexEntry[] = [];
  /** Names as bytes, and as they are shown. */
  const taken = new Set<string>();
  const shown = new Set<string>();
  await using out = await open(file, 'wx', 0o600);
  let offset = 0;
  let asked = 0;
  let left = maxBytes;
  let leftOut = 0;
  let count = 0;
  // One character for each byte, so that none is lost.
  const entries = extract({ filenameEncoding: 'latin1' } as object);
  // Its failure reaches us through `entries`, which it destroys.
  const feeding = pipeline(tar, entries, { signal }).catch(() => {});
  for await (const entry of entries) {
    count += 1;
    if (count > maxEntries) throw tooManyEntries(maxEntries);
    const { size = 0, mode, mtime, type } = entry.header;
    const name = safeName(bytesOf(entry.header));
    const isFile = type === 'file' || type === 'contiguous-file';
    if (!isFile || !name || taken.has(name)) {
      if (type !== 'directory') leftOut += 1;
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
    const start = offset;
    for await (const chunk of gzipMember(header, entry as unknown as Readable, size)) {
      await out.appendFile(chunk);
      offset += chunk.length;
      if (offset - asked < ROOM_STEP) continue;
      asked = offset;
      await demandRoom(offset);
    }
    const path = unlike(shown, bytes.toString('utf8'));
    index.push({
      path,
      sizeBytes: size,
      offset: start,
      length: offset - start,
      skip: header.length,
    });
    taken.add(name);
    shown.add(path);
  }
  await feeding;
  await out.appendFile(gzipSync(TAR_END));
  await out.sync();
  return { index, leftOut };
}

/** A name in an extended header is text; any other was read a character for each byte. */
function bytesOf({ name, pax }: Header): string {
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
function unlike(shown: ReadonlySet<string>, path: string): string {
  let own = path;
  for (let n = 2; shown.has(own); n++) own = `${path} (${n})`;
  return own;
}

/** The tar entry of one file, header and padding included. */
function gzipMember(header: Buffer, contents: Readable, size: number): AsyncIterable<Buffer> {
  const gzip = createGzip();
  const member = async function* () {
    yield header;
    yield* contents as AsyncIterable<Buffer>;
    yield tarPadding(size);
  };
  // A failure destroys `gzip`, which is what is read.
  void pipeline(member, gzip).catch((error) => gzip.destroy(error));
  return gzip;
}

async function writeSynced(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'wx', 0o600);
  await handle.writeFile(text);
  await handle.sync();
}

/** Irreversible. */
export async function removeArtifacts(dirs: Dirs, key: ArtifactKey): Promise<void> {
  await rm(folderOf(dirs, key), { recursive: true, force: true });
}

/** The file with the whole archive; it may not exist. */
export function archiveFile(dirs: Dirs, key: ArtifactKey): string {
  return join(folderOf(dirs, key), TAR);
}

/** In the order of the archive; null when there are no artifacts. */
export async function listArtifacts(dirs: Dirs, key: ArtifactKey): Promise<ArtifactEntry[] | null> {
  return readIndex(dirs, key);
}

async function readIndex(dirs: Dirs, key: ArtifactKey): Promise<IndexEntry[] | null> {
  try {
    return JSON.parse(await readFile(join(folderOf(dirs, key), INDEX), 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/** One file of the archive, which is read once it is opened; null when there is none of that path. */
export async function openArtifact(
  dirs: Dirs,
  key: ArtifactKey,
  path: string,
): Promise<{ sizeBytes: number; open(): Readable } | null> {
  const entry = (await readIndex(dirs, key))?.find((e) => e.path === path);
  if (!entry) return null;
  const { offset, length, skip, sizeBytes } = entry;
  return {
    sizeBytes,
    open() {
      const range = { start: offset, end: offset + length - 1 };
      const member = createReadStream(archiveFile(dirs, key), range);
      const slice = new Slice(skip, sizeBytes);
      void pipeline(member, createGunzip(), slice).catch((error) => slice.destroy(error));
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
