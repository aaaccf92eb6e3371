/** Whether the large files are here that a push points to (as GitHub asks for: its GH008). */
import { newPointers } from '../../git/objects/new-pointers.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Services } from '../../services.ts';
import { type Brought, refused } from './brought.ts';

/** Of a refusal. */
const MAX_SHOWN = 5;

/**
 * Refuses new pointers to large files that the repository was not given: nobody could check them out. A client of git-lfs
 * uploads before it pushes; others forget to, as `git push --mirror` of a clone without its large files does.
 */
export async function judgeLargeFiles(
  { git, largeFiles }: Pick<Services, 'git' | 'largeFiles'>,
  { repository, place }: Brought,
): Promise<Verdict> {
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
