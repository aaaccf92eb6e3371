/**
 * Reads refs directly from git's files, which saves a process where a request only lists refs. Returns null for any
 * unusual content, so that the caller runs git instead. Also syncs the refs of pushes with many refs.
 */
import { readFileSync } from 'node:fs';
import { type FileHandle, open, readdir, readFile, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { isObjectId, isRefName } from '../names.ts';
import { git } from '../processes/run.ts';
import { syncIfExists, syncTree } from './fsync.ts';

/** Reading more loose refs takes as long as starting git. Maintenance packs refs before there are so many. */
const MAX_LOOSE_REFS = 200;
/** Maximum size of `packed-refs`. A ref takes 60 to 80 bytes and 2 µs to parse. */
const MAX_PACKED_BYTES = 8 * 2 ** 20;
/** Limit where refs are sent to a client: for a larger file, git is cheaper and does not use the main thread. */
export const MAX_SERVED_PACKED_BYTES = 128 * 2 ** 10;
const REFS_PREFIX = 'refs/';
/** Header of a file that has the target of every annotated tag: all refs without a target are not annotated tags. */
const FULLY_PEELED_HEADER = /^# pack-refs with:.* fully-peeled /;
/** Git allows branches to point to commits only. */
const BRANCH_PREFIX = 'refs/heads/';

/**
 * `id`: the object that the ref points to. `peeled`: the target of an annotated tag; null when the object is not an
 * annotated tag; absent when the files do not say.
 */
export type RefOnDisk = { id: string; peeled?: string | null };

/**
 * Reads all refs by full name, such as `refs/heads/main`, sorted by the bytes of the names. Returns null if git must
 * list them, because there is a symbolic ref, a broken ref, a name that git would skip, or too many refs.
 */
export async function readRefFiles(
  dir: string,
  maxPackedBytes = MAX_PACKED_BYTES,
): Promise<Map<string, RefOnDisk> | null> {
  try {
    // Loose refs first, as git does: a ref that is packed between the two reads is then in `packed-refs`.
    const loose = await readLoose(dir);
    const packed = loose && (await readPacked(join(dir, 'packed-refs'), maxPackedBytes));
    if (!packed) return null;
    for (const [name, ref] of loose) packed.set(name, ref);
    return sortByBytes(packed);
  } catch {
    // Git reports missing or unreadable files with its own message.
    return null;
  }
}

/** Sorts by the UTF-8 bytes of the names. JavaScript's string order differs only for characters beyond U+FFFF. */
function sortByBytes(refs: Map<string, RefOnDisk>): Map<string, RefOnDisk> {
  const all = [...refs];
  const isPlain = !all.some(([name]) => /[\ud800-\udfff]/.test(name));
  all.sort(
    isPlain
      ? ([a], [b]) => (a < b ? -1 : 1)
      : ([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)),
  );
  return new Map(all);
}

/** Returns the branch that `HEAD` names, such as `refs/heads/main`; it need not exist. Null if git must read `HEAD`. */
export function readBranchOfHead(dir: string): string | null {
  try {
    const [, branch = ''] = /^ref: (.*)\n$/.exec(readFileSync(join(dir, 'HEAD'), 'utf8')) ?? [];
    return branch.startsWith(BRANCH_PREFIX) && isOrdinaryRef(branch) ? branch : null;
  } catch {
    return null;
  }
}

async function readLoose(dir: string): Promise<Map<string, RefOnDisk> | null> {
  const refs = new Map<string, RefOnDisk>();
  const folders = ['refs'];
  for (const folder of folders)
    for (const entry of await entriesOf(join(dir, folder), folder === 'refs')) {
      const name = `${folder}/${entry.name}`;
      if (entry.isDirectory()) folders.push(name);
      else if (!name.endsWith('.lock')) {
        if (refs.size >= MAX_LOOSE_REFS || !isOrdinaryRef(name)) return null;
        const text = readRefFile(join(dir, name));
        // The ref was deleted or packed since the folder was listed.
        if (text === null) continue;
        const id = text.slice(0, 40);
        if (!isObjectId(id) || text !== `${id}\n`) return null;
        refs.set(name, name.startsWith(BRANCH_PREFIX) ? { id, peeled: null } : { id });
      }
    }
  return refs;
}

/** Git creates and removes folders below `refs` together with the refs in them. */
async function entriesOf(folder: string, isNeeded: boolean) {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    if (isNeeded || !isMissing(error)) throw error;
    return [];
  }
}

/** Reads 41 bytes synchronously: 10 µs of the main thread, where Node's thread pool took 80 µs of it. */
function readRefFile(path: string): string | null {
  try {
    return readFileSync(path, 'latin1');
  } catch (error) {
    if (!isMissing(error)) throw error;
    return null;
  }
}

async function readPacked(path: string, maxBytes: number): Promise<Map<string, RefOnDisk> | null> {
  const refs = new Map<string, RefOnDisk>();
  let file: FileHandle;
  try {
    file = await open(path);
  } catch (error) {
    if (!isMissing(error)) throw error;
    return refs;
  }
  try {
    if ((await file.stat()).size > maxBytes) return null;
    const text = await file.readFile('utf8');
    const unpeeled = FULLY_PEELED_HEADER.test(text) ? { peeled: null } : {};
    let last: RefOnDisk | undefined;
    for (const line of text.split('\n')) {
      if (line === '' || line.startsWith('#')) continue;
      // Target of the annotated tag on the line before.
      if (line.startsWith('^')) {
        const peeled = line.slice(1);
        if (!last || !isObjectId(peeled)) return null;
        last.peeled = peeled;
        continue;
      }
      const [id, name] = [line.slice(0, 40), line.slice(41)];
      if (line[40] !== ' ' || !isObjectId(id) || !isOrdinaryRef(name)) return null;
      last = { id, ...unpeeled };
      refs.set(name, last);
    }
    return refs;
  } finally {
    await file.close();
  }
}

/** A name that contains U+FFFD was not valid UTF-8, so it does not match the name of the file. */
function isOrdinaryRef(name: string): boolean {
  return (
    name.startsWith(REFS_PREFIX) &&
    isRefName(name.slice(REFS_PREFIX.length)) &&
    !name.includes('\ufffd')
  );
}

function isMissing(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' || code === 'ENOTDIR';
}

/**
 * Durability of pushes with many refs. Git writes each ref into its own file and syncs the file before the next ref:
 * 88 s for a push of 10,000 refs. `transport/receive.ts` disables these syncs for such a push, and three steps replace
 * them:
 *
 * 1. Before git updates a ref, all refs are packed into one file, which is synced. It contains every acknowledged ref.
 * 2. After git has updated the refs, and before the push is acknowledged, they are packed and synced again.
 * 3. A power loss between steps 1 and 2 may leave empty ref files. The next start removes them, and the packed values
 *    from step 1 apply again, which is correct because the push was not acknowledged. The note of the push on disk
 *    lists the refs to check.
 *
 * A kill of the server alone loses nothing, because the kernel still has the data that git wrote.
 */
const PACK_REFS_TIMEOUT_MS = 5 * 60_000;
/** Content of a complete ref file. */
const COMPLETE_REF = /^(?:[0-9a-f]{40}|ref: .*)\n$/;

/** Packs all refs into one synced file and removes their loose files. @throws as `git` */
export async function packRefs(dir: string): Promise<void> {
  await git(['pack-refs', '--all'], { dir, timeoutMs: PACK_REFS_TIMEOUT_MS });
}

/** Syncs refs that git has written without syncing. */
export async function syncRefs(dir: string, refs: readonly string[]): Promise<void> {
  // Packing fails when another process holds the lock of `packed-refs` for too long.
  await packRefs(dir).catch(() => syncTree(join(dir, 'refs')));
  // The removal or renaming of a file is durable only after its folder is synced.
  await syncIfExists(dir);
  for (const folder of parentFolders(refs)) await syncIfExists(join(dir, folder));
}

/** Removes files of these refs that a power loss left incomplete. */
export async function removeTruncatedRefs(dir: string, refs: readonly string[]): Promise<void> {
  for (const ref of refs) {
    const file = join(dir, ref);
    const text = await readFile(file, 'latin1').catch(() => null);
    if (text !== null && !COMPLETE_REF.test(text)) await rm(file, { force: true });
  }
}

/** All folders above the refs, up to `refs`. */
function parentFolders(refs: readonly string[]): Set<string> {
  const folders = new Set<string>();
  for (const ref of refs)
    for (let at = dirname(ref); at !== '.' && !folders.has(at); at = dirname(at)) folders.add(at);
  return folders;
}
