/**
 * Refs out of the files that git keeps them in, for what would start a program only to list them. Whatever is not quite
 * usual there is left to git.
 */
import { readFileSync } from 'node:fs';
import { type FileHandle, open, readdir, readFile, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { isObjectId, isRefName } from '../names.ts';
import { git } from '../processes/run.ts';
import { syncIfThere, syncTree } from './sync.ts';

/** More of them take as long to read as a program takes to start. Maintenance packs them before they are so many. */
const MAX_LOOSE = 200;
/** Of all that are packed, some 60 to 80 bytes each, which take 2 µs each. */
const MAX_PACKED_BYTES = 8 * 2 ** 20;
/** For what git would pass on to a client as it is: beyond these the program takes less, and takes it from another thread. */
export const FEW_PACKED_BYTES = 128 * 2 ** 10;
const NAMED = 'refs/';
/** The header of a file that says of each annotated tag what it leads to, and so of all else that it is none. */
const ALL_PEELED = /^# pack-refs with:.* fully-peeled /;
/** Git lets no branch point at anything but a commit. */
const BRANCHES = 'refs/heads/';

/** What a ref points at. `peeled`: what that leads to where it is an annotated tag; null: it is none; absent: the files do not say. */
export type RefOnDisk = { id: string; peeled?: string | null };

/**
 * All refs, by their full names such as `refs/heads/main`, in the order of the bytes of those. Null where git should be
 * asked: because of a symbolic ref, a broken one or a name that it would pass over, or very many.
 */
export async function readRefFiles(
  dir: string,
  maxPackedBytes = MAX_PACKED_BYTES,
): Promise<Map<string, RefOnDisk> | null> {
  try {
    // In this order, as git does: one that is packed meanwhile is in the second when it is not in the first any more.
    const loose = await readLoose(dir);
    const packed = loose && (await readPacked(join(dir, 'packed-refs'), maxPackedBytes));
    if (!packed) return null;
    for (const [name, ref] of loose) packed.set(name, ref);
    return inOrderOfBytes(packed);
  } catch {
    // What is missing or cannot be read git tells in its own words.
    return null;
  }
}

/** Of their names in UTF-8. That of JavaScript's strings is the same but for what is beyond U+FFFF. */
function inOrderOfBytes(refs: Map<string, RefOnDisk>): Map<string, RefOnDisk> {
  const all = [...refs];
  const isPlain = !all.some(([name]) => /[\ud800-\udfff]/.test(name));
  all.sort(
    isPlain
      ? ([one], [other]) => (one < other ? -1 : 1)
      : ([one], [other]) => Buffer.compare(Buffer.from(one), Buffer.from(other)),
  );
  return new Map(all);
}

/** The branch that `HEAD` names, `refs/heads/main`, which need not exist. Null where git should be asked. */
export function readBranchOfHead(dir: string): string | null {
  try {
    const [, branch = ''] = /^ref: (.*)\n$/.exec(readFileSync(join(dir, 'HEAD'), 'utf8')) ?? [];
    return branch.startsWith(BRANCHES) && isUsual(branch) ? branch : null;
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
        if (refs.size >= MAX_LOOSE || !isUsual(name)) return null;
        const text = textOf(join(dir, name));
        // It was deleted, or packed, meanwhile.
        if (text === null) continue;
        const id = text.slice(0, 40);
        if (!isObjectId(id) || text !== `${id}\n`) return null;
        refs.set(name, name.startsWith(BRANCHES) ? { id, peeled: null } : { id });
      }
    }
  return refs;
}

/** Folders below `refs` come and go with the refs in them. */
async function entriesOf(folder: string, isNeeded: boolean) {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    if (isNeeded || !isMissing(error)) throw error;
    return [];
  }
}

/** Read at once: it has 41 bytes. By Node's threads each file took 80 µs of this one, at once it takes 10. */
function textOf(path: string): string | null {
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
    const unpeeled = ALL_PEELED.test(text) ? { peeled: null } : {};
    let last: RefOnDisk | undefined;
    for (const line of text.split('\n')) {
      if (line === '' || line.startsWith('#')) continue;
      // What the annotated tag before it leads to.
      if (line.startsWith('^')) {
        const peeled = line.slice(1);
        if (!last || !isObjectId(peeled)) return null;
        last.peeled = peeled;
        continue;
      }
      const [id, name] = [line.slice(0, 40), line.slice(41)];
      if (line[40] !== ' ' || !isObjectId(id) || !isUsual(name)) return null;
      last = { id, ...unpeeled };
      refs.set(name, last);
    }
    return refs;
  } finally {
    await file.close();
  }
}

/** What is no UTF-8 was read as U+FFFD, and is no file's name. */
function isUsual(name: string): boolean {
  return name.startsWith(NAMED) && isRefName(name.slice(NAMED.length)) && !name.includes('\ufffd');
}

function isMissing(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' || code === 'ENOTDIR';
}

/**
 * Refs of pushes that bring many of them. Git writes each ref into a file of its own and syncs it before the next, which
 * took 88 s of a push of 10,000. For such a push that is switched off (`transport/receive.ts`), and three things take
 * its place:
 *
 * 1. Before git updates a ref, those there are are packed into one file, which is synced: what was acknowledged
 *    earlier stands there.
 * 2. After git has updated them, and before anybody is told, they are packed and synced in the same way.
 * 3. After a loss of power between the two a file of a ref may be empty. It is removed at the next start, and what
 *    was packed before holds again: the push was acknowledged to nobody. Which refs these may be stands in its note.
 *
 * Where only the server was killed nothing is lost, because the kernel has what git wrote.
 */
const TIMEOUT_MS = 5 * 60_000;
/** What a ref's file holds when it is whole. */
const WHOLE = /^(?:[0-9a-f]{40}|ref: .*)\n$/;

/** Writes all refs into one file, synced, and removes the files they had. @throws as `git` */
export async function packRefs(dir: string): Promise<void> {
  await git(['pack-refs', '--all'], { dir, timeoutMs: TIMEOUT_MS });
}

/** These refs, which git has written without syncing them, are on the disk when it resolves. */
export async function storeRefs(dir: string, refs: readonly string[]): Promise<void> {
  // Such as when another process holds its lock for too long.
  await packRefs(dir).catch(() => syncTree(join(dir, 'refs')));
  // A file that is removed, and one that is renamed, is so for good when its folder is synced.
  await syncIfThere(dir);
  for (const folder of foldersOf(refs)) await syncIfThere(join(dir, folder));
}

/** Removes what a loss of power left of files of these refs. */
export async function removeCutRefs(dir: string, refs: readonly string[]): Promise<void> {
  for (const ref of refs) {
    const file = join(dir, ref);
    const text = await readFile(file, 'latin1').catch(() => null);
    if (text !== null && !WHOLE.test(text)) await rm(file, { force: true });
  }
}

/** With those that they are in, up to `refs`. */
function foldersOf(refs: readonly string[]): Set<string> {
  const folders = new Set<string>();
  for (const ref of refs)
    for (let at = dirname(ref); at !== '.' && !folders.has(at); at = dirname(at)) folders.add(at);
  return folders;
}
