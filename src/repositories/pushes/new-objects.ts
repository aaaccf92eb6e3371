/** Scans the new objects of a push for missing large files and secrets. The objects are read once for all scanners. */

import type { Git } from '../../git/git.ts';
import { matchesFilter, readNewObjects } from '../../git/objects/new-objects.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Db } from '../../platform/database/client.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import type { IncomingPush, ObjectScanner } from './incoming-push.ts';
import { createPointerScanner } from './large-files.ts';
import type { FindingIds } from './secrets/find.ts';
import { createSecretScanner } from './secrets/scanner.ts';

/**
 * Time limit when only large files are checked. This check protects only the pusher, so a push with more objects (some
 * millions) is accepted unchecked. Secret scanning always completes, within the time limit of all checks, and pointers
 * are checked with it.
 */
const MAX_POINTERS_MS = 20_000;

type Deps = { db: Db; findingIds: FindingIds; git: Git; largeFiles: LargeFiles };

/** @throws GitError; the reason of the signal */
export async function scanNewObjects(
  services: Deps,
  incoming: IncomingPush,
  { forSecrets }: { forSecrets: boolean },
): Promise<Verdict> {
  const pointers = createPointerScanner(services, incoming);
  if (forSecrets) return scan(incoming, [pointers, createSecretScanner(services, incoming)]);
  const { quarantined } = incoming;
  const timeout = AbortSignal.timeout(MAX_POINTERS_MS);
  const bounded = { ...quarantined, signal: AbortSignal.any([quarantined.signal, timeout]) };
  try {
    return await scan({ quarantined: bounded }, [pointers]);
  } catch (error) {
    if (timeout.aborted && !quarantined.signal.aborted) return { accepted: true };
    throw error;
  }
}

/**
 * The first scanner that rejects decides. The scanners after it get no `verdict` call, so they do not store what the
 * push allows.
 */
async function scan(
  { quarantined }: Pick<IncomingPush, 'quarantined'>,
  scanners: readonly [ObjectScanner, ...ObjectScanner[]],
): Promise<Verdict> {
  const all = scanners.map(({ wanted }) => wanted);
  const wanted = {
    types: [...new Set(all.flatMap(({ types }) => types))],
    min: Math.min(...all.map(({ min }) => min)),
    max: Math.max(...all.map(({ max }) => max)),
  };
  for await (const objects of readNewObjects(quarantined, wanted))
    for (const object of objects)
      for (const scanner of scanners)
        if (
          matchesFilter(scanner.wanted, object.type, object.data.length) &&
          (await scanner.inspect(object))
        )
          return scanner.verdict();
  const notes: string[] = [];
  for (const scanner of scanners) {
    const verdict = await scanner.verdict();
    if (!verdict.accepted) return verdict;
    notes.push(...(verdict.notes ?? []));
  }
  return { accepted: true, notes };
}
