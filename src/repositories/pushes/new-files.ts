/** What is looked for in the objects that a push brings, which are read once for all who look. */

import type { Git } from '../../git/git.ts';
import { isWanted, newObjects } from '../../git/objects/new-objects.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Db } from '../../platform/database/client.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import type { Brought, Look } from './brought.ts';
import { lookForPointers } from './large-files.ts';
import type { FindingIds } from './secrets/find.ts';
import { lookForSecrets } from './secrets/judge.ts';

/**
 * Of looking for large files alone. It protects nobody but who pushes, so that what takes longer is let pass: some millions
 * of objects. Secrets are looked for to the end, and what may take no longer than all of the judge's work comes with them.
 */
const MAX_POINTERS_MS = 20_000;

type Deps = { db: Db; findingIds: FindingIds; git: Git; largeFiles: LargeFiles };

/** @throws GitError; the reason of the signal */
export async function judgeNewFiles(
  services: Deps,
  brought: Brought,
  { forSecrets }: { forSecrets: boolean },
): Promise<Verdict> {
  const pointers = lookForPointers(services, brought);
  if (forSecrets) return shown(brought, [pointers, lookForSecrets(services, brought)]);
  const { place } = brought;
  const limit = AbortSignal.timeout(MAX_POINTERS_MS);
  const bounded = { ...place, signal: AbortSignal.any([place.signal, limit]) };
  try {
    return await shown({ place: bounded }, [pointers]);
  } catch (error) {
    if (limit.aborted && !place.signal.aborted) return { accepted: true };
    throw error;
  }
}

/** The first of the looks that refuses decides; those behind it may keep what the push allows. */
async function shown(
  { place }: Pick<Brought, 'place'>,
  looks: readonly [Look, ...Look[]],
): Promise<Verdict> {
  const all = looks.map(({ wanted }) => wanted);
  const wanted = {
    types: [...new Set(all.flatMap(({ types }) => types))],
    min: Math.min(...all.map(({ min }) => min)),
    max: Math.max(...all.map(({ max }) => max)),
  };
  for await (const objects of newObjects(place, wanted))
    for (const object of objects)
      for (const look of looks)
        if (isWanted(look.wanted, object.type, object.data.length) && (await look.see(object)))
          return look.verdict();
  const notes: string[] = [];
  for (const look of looks) {
    const verdict = await look.verdict();
    if (!verdict.accepted) return verdict;
    notes.push(...(verdict.notes ?? []));
  }
  return { accepted: true, notes };
}
