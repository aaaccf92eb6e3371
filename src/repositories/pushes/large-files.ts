/** Rejects pushes with pointers to missing large files, as GitHub does (GH008). */
import type { Git } from '../../git/git.ts';
import type { NewObject } from '../../git/objects/new-objects.ts';
import { POINTER_BYTES, type Pointer, parsePointer } from '../../git/objects/pointer.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { type IncomingPush, type ObjectScanner, reject } from './incoming-push.ts';

const MAX_FILES_IN_MESSAGE = 5;
/** The scan stops after this many missing files. */
const MAX_MISSING = 1_000;
const POINTERS_PER_LOOKUP = 10_000;

type Deps = { git: Git; largeFiles: LargeFiles };

/**
 * Rejects new pointers to large files that the repository does not have, because no clone could check them out. git-lfs
 * uploads files before it pushes; plain git does not, for example in `git push --mirror` from a clone without its large
 * files.
 */
export function createPointerScanner(
  { git, largeFiles }: Deps,
  { repository, quarantined }: IncomingPush,
): ObjectScanner {
  /** Pointers to look up. `blob` is the id of the git object. */
  let pointers: (Pointer & { blob: string })[] = [];
  /** SHA-256 → size. */
  const missing = new Map<string, number>();
  const lookUpBatch = async () => {
    const batch = pointers;
    pointers = [];
    const oids = new Set(batch.map(({ oid }) => oid));
    const available = await largeFiles.sizes(repository.id, [...oids]);
    const unavailable = batch.filter(({ oid, size }) => available.get(oid) !== size);
    if (unavailable.length === 0) return;
    // A pointer that the repository already has was checked when it was pushed; its large file may have been deleted
    // since.
    const existing = await git.objects.use(quarantined.dir, (objects) =>
      objects.info(unavailable.map(({ blob }) => blob)),
    );
    for (const [i, { oid, size }] of unavailable.entries())
      if (!existing[i]) missing.set(oid, size);
  };
  return {
    filter: { types: ['blob'], minBytes: POINTER_BYTES.min, maxBytes: POINTER_BYTES.max },
    async inspect({ oid: blob, data }: NewObject) {
      const pointer = parsePointer(data.toString('latin1'));
      if (pointer && pointers.push({ blob, ...pointer }) >= POINTERS_PER_LOOKUP)
        await lookUpBatch();
      return missing.size >= MAX_MISSING;
    },
    async verdict() {
      if (pointers.length > 0) await lookUpBatch();
      return missing.size > 0 ? rejectMissing(missing) : { accepted: true };
    },
  };
}

function rejectMissing(missing: ReadonlyMap<string, number>) {
  const count = `${missing.size >= MAX_MISSING ? 'at least ' : ''}${missing.size}`;
  const listed = [...missing].slice(0, MAX_FILES_IN_MESSAGE);
  const more = missing.size - listed.length;
  return reject(
    `The push refers to ${count} large file${missing.size > 1 ? 's' : ''} missing from this repository:`,
    ...listed.map(([oid, size]) => `  ${oid} (${size} bytes)`),
    ...(more > 0 ? [`  and ${more} more`] : []),
    'Upload them first: git lfs push --all <remote>',
  );
}
