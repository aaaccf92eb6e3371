/** Pointers of git-lfs that a push brings. */
import { gitApart, gitLines } from '../processes/run.ts';
import { canBePointer, type Pointer, parsePointer } from './pointer.ts';
import { type Quarantined, seeing } from './walk.ts';

/** `blob`: the id of git's object. */
export type NewPointer = Pointer & { blob: string };

const FORM = '%(objectname) %(objectsize)';
/** Of some 200 bytes each, with what `cat-file` says of them. */
const READ_AT_ONCE = 10_000;

/**
 * Those in the packs of a quarantine, some of which may be here already: the base of a delta comes with it. One process
 * lists the objects with their sizes, 100,000 in some 250 ms, and another reads those that can be pointers, which most
 * pushes have none of. Walking from the tips would tell what is new and where it lies, and takes several times as long.
 * @throws GitError
 */
export async function* newPointers({
  dir,
  quarantine,
  signal,
}: Quarantined): AsyncGenerator<NewPointer[]> {
  if (!quarantine) return;
  const args = ['cat-file', '--batch-all-objects', '--unordered', `--batch-check=${LISTED}`];
  // Of the quarantine alone, without what it borrows.
  const options = { dir, signal, env: { GIT_OBJECT_DIRECTORY: quarantine } };
  let blobs: string[] = [];
  const read = async () => {
    const pointers = await readPointers({ dir, quarantine, signal }, blobs);
    blobs = [];
    return pointers;
  };
  for await (const line of gitLines(args, options)) {
    const [type, size, blob = ''] = line.split(' ');
    if (type !== 'blob' || !canBePointer(Number(size))) continue;
    if (blobs.push(blob) === READ_AT_ONCE) yield await read();
  }
  if (blobs.length > 0) yield await read();
}

const LISTED = '%(objecttype) %(objectsize) %(objectname)';

async function readPointers(
  { dir, quarantine, signal }: Quarantined,
  blobs: readonly string[],
): Promise<NewPointer[]> {
  const output = await gitApart(['cat-file', '--buffer', `--batch=${FORM}`], {
    dir,
    signal,
    env: seeing(dir, quarantine),
    input: blobs.join('\n'),
  });
  const pointers: NewPointer[] = [];
  for (let at = 0; at < output.length; ) {
    const end = output.indexOf('\n', at);
    const [blob = '', size] = output.toString('latin1', at, end).split(' ');
    const next = end + 1 + Number(size);
    const pointer = parsePointer(output.toString('latin1', end + 1, next));
    if (pointer) pointers.push({ blob, ...pointer });
    at = next + 1;
  }
  return pointers;
}
