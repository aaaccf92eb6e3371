/**
 * Refs out of the files that git keeps them in, for what would start a program only to list them. Whatever is not quite
 * usual there is left to git.
 */
import { type FileHandle, open, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isObjectId, isRefName } from '../names.ts';

/** More of them take as long to read as a program takes to start. Maintenance packs them before they are so many. */
const MAX_LOOSE = 200;
/** Of all that are packed, some 60 to 80 bytes each. */
const MAX_PACKED_BYTES = 8 * 2 ** 20;
const NAMED = 'refs/';

/**
 * All refs with what they point at, `refs/heads/main` → id, in the order of the bytes of their names. Null where git
 * should be asked: because of a symbolic ref, a broken one or a name that it would pass over, or very many.
 */
export async function readRefFiles(dir: string): Promise<Map<string, string> | null> {
  try {
    // In this order, as git does: one that is packed meanwhile is in the second when it is not in the first any more.
    const loose = await readLoose(dir);
    const packed = loose && (await readPacked(join(dir, 'packed-refs')));
    if (!packed) return null;
    for (const [name, id] of loose) packed.set(name, id);
    const sorted = [...packed].map(([name, id]) => ({ name, id, bytes: Buffer.from(name) }));
    sorted.sort((one, other) => Buffer.compare(one.bytes, other.bytes));
    return new Map(sorted.map(({ name, id }) => [name, id]));
  } catch {
    // What is missing or cannot be read git tells in its own words.
    return null;
  }
}

async function readLoose(dir: string): Promise<Map<string, string> | null> {
  const refs = new Map<string, string>();
  const folders = ['refs'];
  for (const folder of folders)
    for (const entry of await entriesOf(join(dir, folder), folder === 'refs')) {
      const name = `${folder}/${entry.name}`;
      if (entry.isDirectory()) folders.push(name);
      else if (!name.endsWith('.lock')) {
        if (refs.size >= MAX_LOOSE || !isUsual(name)) return null;
        const text = await textOf(join(dir, name));
        // It was deleted, or packed, meanwhile.
        if (text === null) continue;
        const id = text.slice(0, 40);
        if (!isObjectId(id) || text !== `${id}\n`) return null;
        refs.set(name, id);
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

async function textOf(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'latin1');
  } catch (error) {
    if (!isMissing(error)) throw error;
    return null;
  }
}

async function readPacked(path: string): Promise<Map<string, string> | null> {
  const refs = new Map<string, string>();
  let file: FileHandle;
  try {
    file = await open(path);
  } catch (error) {
    if (!isMissing(error)) throw error;
    return refs;
  }
  try {
    if ((await file.stat()).size > MAX_PACKED_BYTES) return null;
    for (const line of (await file.readFile('utf8')).split('\n')) {
      // The header, and what an annotated tag leads to.
      if (line === '' || line.startsWith('#') || line.startsWith('^')) continue;
      const [id, name] = [line.slice(0, 40), line.slice(41)];
      if (line[40] !== ' ' || !isObjectId(id) || !isUsual(name)) return null;
      refs.set(name, id);
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
