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
import { extract, pack } from 'tar-stream';
import type { Services } from '../services.ts';

export type ArtifactEntry = { path: string; sizeBytes: number };
/** Where its member lies in the file, and how far the contents are from the member's beginning. */
type IndexEntry = ArtifactEntry & { offset: number; length: number; skip: number };

export type Collected = { files: number; sizeBytes: number };
export type ArtifactKey = { namespaceId: string; jobId: string };

type Dirs = { config: Pick<Services['config'], 'dataDir'> };

const TAR = 'artifacts.tar.gz';
const INDEX = 'index.json';
const BLOCK = 512;

/** There is more than the job's disk holds. */
export class TooLarge extends Error {
  override name = 'TooLarge';
}

function folderOf({ config }: Dirs, { namespaceId, jobId }: ArtifactKey): string {
  return join(config.dataDir, 'artifacts', namespaceId, jobId);
}

/**
 * Stores a runner's tar in place of what an earlier attempt left, or not at all: it is written beside,
 * synced, and renamed. Only regular files are taken, under names that stay below the archive's root.
 * @param demandRoom is told the size before anything is replaced, and throws when there is no room for it
 * @throws TooLarge beyond `maxBytes` of contents
 */
export async function storeArtifacts(
  dirs: Dirs,
  key: ArtifactKey,
  tar: Readable,
  maxBytes: number,
  demandRoom: (sizeBytes: number) => Promise<void>,
): Promise<Collected> {
  const folder = folderOf(dirs, key);
  const fresh = `${folder}.new`;
  await rm(fresh, { recursive: true, force: true });
  await mkdir(fresh, { recursive: true, mode: 0o700 });
  try {
    const index = await repack(tar, join(fresh, TAR), maxBytes);
    await writeSynced(join(fresh, INDEX), JSON.stringify(index));
    const sizeBytes = (await stat(join(fresh, TAR))).size;
    await demandRoom(sizeBytes);
    await rm(folder, { recursive: true, force: true });
    await rename(fresh, folder);
    return { files: index.length, sizeBytes };
  } catch (error) {
    await rm(fresh, { recursive: true, force: true });
    throw error;
  }
}

async function repack(tar: Readable, file: string, maxBytes: number): Promise<IndexEntry[]> {
  const index: IndexEntry[] = [];
  const names = new Set<string>();
  await using out = await open(file, 'wx', 0o600);
  let offset = 0;
  let left = maxBytes;
  const entries = extract();
  // Its failure reaches us through `entries`, which it destroys.
  const feeding = pipeline(tar, entries).catch(() => {});
  for await (const entry of entries) {
    const { name, size = 0, mode, mtime, type } = entry.header;
    const path = safeName(name);
    if ((type !== 'file' && type !== 'contiguous-file') || !path || names.has(path)) {
      entry.resume();
      continue;
    }
    left -= size;
    if (left < 0) throw new TooLarge(`they are larger than the job's disk of ${maxBytes} bytes`);
    const member = gzipMember(
      { name: path, size, mode: (mode ?? 0o644) & 0o777, mtime },
      entry as unknown as Readable,
    );
    const start = offset;
    for await (const chunk of member.bytes) {
      await out.write(chunk);
      offset += chunk.length;
    }
    const skip = await member.skip;
    index.push({ path, sizeBytes: size, offset: start, length: offset - start, skip });
    names.add(path);
  }
  await feeding;
  await out.write(gzipSync(Buffer.alloc(2 * BLOCK)));
  await out.sync();
  return index;
}

/** Null for a name that is absolute, climbs out, or is no text. */
function safeName(name: string): string | null {
  const path = posix.normalize(name).replace(/^\.\//, '');
  if (name.startsWith('/') || path.startsWith('..') || path.endsWith('/') || path === '.')
    return null;
  return path.includes('\0') ? null : path;
}

/** The tar entry of one file, header and padding included, as one gzip member. */
type MemberHeader = { name: string; size: number; mode: number; mtime?: Date };

function gzipMember(header: MemberHeader, contents: Readable) {
  const archive = pack();
  const skip = Promise.withResolvers<number>();
  let total = 0;
  let pending: Buffer = Buffer.alloc(0);
  const padded = Math.ceil(header.size / BLOCK) * BLOCK;
  const withoutTrailer = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      // An archive ends with two empty blocks; only the last member's may.
      const all = Buffer.concat([pending, chunk]);
      const cut = Math.max(0, all.length - 2 * BLOCK);
      pending = all.subarray(cut);
      total += cut;
      done(null, all.subarray(0, cut));
    },
    flush(done) {
      skip.resolve(total - padded);
      done();
    },
  });
  const gzip = createGzip();
  const entry = archive.entry(header);
  const filled = pipeline(contents, entry).then(() => archive.finalize());
  const packed = pipeline(archive as unknown as Readable, withoutTrailer, gzip);
  // A failure of either destroys `gzip`, which is what is read.
  filled.catch((error) => gzip.destroy(error));
  packed.catch((error) => gzip.destroy(error));
  skip.promise.catch(() => {});
  return { bytes: gzip as AsyncIterable<Buffer>, skip: skip.promise };
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

/** One file of the archive; null when there is none of that path. */
export async function openArtifact(
  dirs: Dirs,
  key: ArtifactKey,
  path: string,
): Promise<{ sizeBytes: number; contents: Readable } | null> {
  const entry = (await readIndex(dirs, key))?.find((e) => e.path === path);
  if (!entry) return null;
  const { offset, length, skip, sizeBytes } = entry;
  const member = createReadStream(archiveFile(dirs, key), {
    start: offset,
    end: offset + length - 1,
  });
  const slice = new Slice(skip, sizeBytes);
  void pipeline(member, createGunzip(), slice).catch((error) => slice.destroy(error));
  return { sizeBytes, contents: slice };
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
