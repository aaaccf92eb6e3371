/** Pointers of git-lfs among the files of a fresh checkout, in which nobody works yet. */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { canBePointer, type Pointer, parsePointer } from '../objects/pointer.ts';
import { gitLines } from '../processes/run.ts';

export type PointerFile = {
  /** As bytes: names need not be UTF-8. */
  path: Buffer;
  pointer: Pointer;
};

/** Those of the commit that is checked out in `dir`. Only files of a pointer's size are read. @throws GitError */
export async function* pointerFiles(
  dir: string,
  signal?: AbortSignal,
): AsyncGenerator<PointerFile> {
  const args = ['ls-tree', '-r', '-z', '--full-tree', FORMAT, 'HEAD'];
  const options = { dir: join(dir, '.git'), signal };
  const entries = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  for await (const entry of entries) {
    const [, size, name] = /^100\d{3} +(\d+) (.*)$/s.exec(entry) ?? [];
    if (!name || !canBePointer(Number(size))) continue;
    const path = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(name, 'latin1')]);
    const pointer = parsePointer(await readShort(path));
    if (pointer) yield { path, pointer };
  }
}

const FORMAT = '--format=%(objectmode) %(objectsize) %(path)';

async function readShort(path: Buffer): Promise<string> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  return file.readFile('latin1');
}
