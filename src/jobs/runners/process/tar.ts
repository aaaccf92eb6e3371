/**
 * A tar of what a job left at its `output_path`. The job wrote everything here, names and links included:
 * nothing outside the folders it was given is ever opened.
 */
import { constants } from 'node:fs';
import { lstat, open, readdir, realpath } from 'node:fs/promises';
import { join, normalize, relative, sep } from 'node:path';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pack } from 'tar-stream';
import { MOUNTS } from './sandbox.ts';

/**
 * The place on this machine of a path as the job sees it; null when nothing is there, or when it leads
 * outside: by its text, or through a link.
 */
export async function locate(dir: string, path: string): Promise<string | null> {
  const inside = normalize(path.startsWith('/') ? path : join(MOUNTS.work, path));
  const mount = Object.entries(MOUNTS).find(
    ([, at]) => inside === at || inside.startsWith(`${at}/`),
  );
  if (!mount) return null;
  const [folder, at] = mount;
  const root = await realpath(join(dir, folder));
  try {
    const found = await realpath(join(root, relative(at, inside)));
    return found === root || found.startsWith(root + sep) ? found : null;
  } catch {
    return null;
  }
}

/** Regular files alone, and with names relative to `path`; a single file goes under its own name. */
export function tarOf(path: string): Readable {
  const archive = pack();
  void addTree(path)
    .then(() => archive.finalize())
    .catch((error) => archive.destroy(error));
  return archive as unknown as Readable;

  async function addTree(root: string): Promise<void> {
    const stat = await lstat(root);
    if (stat.isFile()) return addFile(root, root.slice(root.lastIndexOf(sep) + 1));
    // A list of folders to visit, not recursion: the job chose how deep they go.
    for (const folders = [root]; folders.length > 0; ) {
      const folder = folders.pop() as string;
      const entries = await readdir(folder, { withFileTypes: true });
      entries.sort((a, b) => (a.name < b.name ? -1 : 1));
      for (const entry of entries) {
        const file = join(folder, entry.name);
        if (entry.isDirectory()) folders.push(file);
        else if (entry.isFile()) await addFile(file, relative(root, file));
      }
    }
  }

  async function addFile(file: string, name: string): Promise<void> {
    await using handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW);
    const { size, mode, mtime } = await handle.stat();
    const header = { name, size, mode: mode & 0o777, mtime };
    if (size === 0) return void archive.entry(header, Buffer.alloc(0));
    const entry = archive.entry(header);
    // To the size in the header and no further, should it still grow.
    await pipeline(handle.createReadStream({ start: 0, end: size - 1, autoClose: false }), entry);
  }
}
