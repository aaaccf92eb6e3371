/** Whether the large files are here that a push points to (as GitHub asks for: its GH008). */
import { newPointers } from '../../git/objects/new-pointers.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Services } from '../../services.ts';
import { type Brought, refused } from './brought.ts';

/** Of a refusal. */
const MAX_SHOWN = 5;

/** Of looking. It protects nobody but who pushes, so that what takes longer is let pass: some millions of objects. */
const MAX_LOOK_MS = 20_000;

type Deps = Pick<Services, 'git' | 'largeFiles'>;

/**
 * Refuses new pointers to large files that the repository was not given: nobody could check them out. A client of git-lfs
 * uploads before it pushes; others forget to, as `git push --mirror` of a clone without its large files does.
 */
export async function judgeLargeFiles(services: Deps, brought: Brought): Promise<Verdict> {
  const limit = AbortSignal.timeout(MAX_LOOK_MS);
  const { place } = brought;
  const bounded = { ...place, signal: AbortSignal.any([place.signal, limit]) };
  let missing: Map<string, number>;
  try {
    missing = await missingOf(services, { ...brought, place: bounded });
  } catch (error) {
    if (limit.aborted && !place.signal.aborted) return { accepted: true };
    throw error;
  }
  if (missing.size === 0) return { accepted: true };
  const shown = [...missing].slice(0, MAX_SHOWN);
  const more = missing.size - shown.length;
  return refused(
    `The push refers to ${missing.size} large file${missing.size > 1 ? 's' : ''} that this repository was not given:`,
    ...shown.map(([oid, size]) => `  ${oid} (${size} bytes)`),
    ...(more > 0 ? [`  and ${more} more`] : []),
    'Upload them first: git lfs push --all <remote>',
  );
}

/** The size of each, by its SHA-256. */
async function missingOf(
  { git, largeFiles }: Deps,
  { repository, place }: Brought,
): Promise<Map<string, number>> {
  const missing = new Map<string, number>();
  for await (const pointers of newPointers(place)) {
    const here = await largeFiles.sizes(repository.id, [
      ...new Set(pointers.map(({ oid }) => oid)),
    ]);
    const unknown = pointers.filter(({ oid, size }) => here.get(oid) !== size);
    if (unknown.length === 0) continue;
    // What git has had before was judged then, and its large file may have been deleted since.
    const known = await git.objects.use(place.dir, (objects) =>
      objects.info(unknown.map(({ blob }) => blob)),
    );
    for (const [i, { oid, size }] of unknown.entries()) if (!known[i]) missing.set(oid, size);
  }
  return missing;
}
