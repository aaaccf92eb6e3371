/** Whether the large files are here that a push points to (as GitHub asks for: its GH008). */
import type { Git } from '../../git/git.ts';
import type { NewObject } from '../../git/objects/new-objects.ts';
import { POINTER_BYTES, type Pointer, parsePointer } from '../../git/objects/pointer.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { type Brought, type Look, refused } from './brought.ts';

/** Of a refusal. */
const MAX_SHOWN = 5;
/** Missing ones, of which no more need be found. */
const ENOUGH = 1_000;
/** Asked for in one query. */
const ASKED_AT_ONCE = 10_000;

type Deps = { git: Git; largeFiles: LargeFiles };

/**
 * Refuses new pointers to large files that the repository was not given: nobody could check them out. A client of git-lfs
 * uploads before it pushes; others forget to, as `git push --mirror` of a clone without its large files does.
 */
export function lookForPointers({ git, largeFiles }: Deps, { repository, place }: Brought): Look {
  /** Not asked for yet. `blob`: the id of git's object. */
  let pointers: (Pointer & { blob: string })[] = [];
  /** The size of each, by its SHA-256. */
  const missing = new Map<string, number>();
  const ask = async () => {
    const asked = pointers;
    pointers = [];
    const oids = new Set(asked.map(({ oid }) => oid));
    const here = await largeFiles.sizes(repository.id, [...oids]);
    const unknown = asked.filter(({ oid, size }) => here.get(oid) !== size);
    if (unknown.length === 0) return;
    // What git has had before was judged then, and its large file may have been deleted since.
    const known = await git.objects.use(place.dir, (objects) =>
      objects.info(unknown.map(({ blob }) => blob)),
    );
    for (const [i, { oid, size }] of unknown.entries()) if (!known[i]) missing.set(oid, size);
  };
  return {
    wanted: { types: ['blob'], ...POINTER_BYTES },
    async see({ oid: blob, data }: NewObject) {
      const pointer = parsePointer(data.toString('latin1'));
      if (pointer && pointers.push({ blob, ...pointer }) >= ASKED_AT_ONCE) await ask();
      return missing.size >= ENOUGH;
    },
    async verdict() {
      if (pointers.length > 0) await ask();
      return missing.size > 0 ? refusal(missing) : { accepted: true };
    },
  };
}

function refusal(missing: ReadonlyMap<string, number>) {
  const count = `${missing.size >= ENOUGH ? 'at least ' : ''}${missing.size}`;
  const shown = [...missing].slice(0, MAX_SHOWN);
  const more = missing.size - shown.length;
  return refused(
    `The push refers to ${count} large file${missing.size > 1 ? 's' : ''} that this repository was not given:`,
    ...shown.map(([oid, size]) => `  ${oid} (${size} bytes)`),
    ...(more > 0 ? [`  and ${more} more`] : []),
    'Upload them first: git lfs push --all <remote>',
  );
}
