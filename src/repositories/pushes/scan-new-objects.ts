/** Scans the new objects of a push for missing large files and secrets. The objects are read once for all scanners. */

import type { Git } from '../../git/git.ts';
import { matchesFilter, type ObjectFilter, readNewObjects } from '../../git/objects/new-objects.ts';
import type { Verdict } from '../../git/transport/hooks.ts';
import type { Db } from '../../platform/database/client.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import type { IncomingPush, ObjectScanner } from './incoming-push.ts';
import { createPointerScanner } from './large-files.ts';
import type { FindingIds } from './secrets/find.ts';
import { createSecretScanner } from './secrets/scanner.ts';

/**
 * Time limit when only LFS pointers are checked. The check only spares pushers a mistake, so a push that
 * takes longer (some millions of objects) is accepted unchecked. If secrets are scanned too, both checks always
 * complete, within the time limit of all pre-receive checks.
 */
const POINTER_CHECK_TIMEOUT_MS = 20_000;

type Deps = { db: Db; findingIds: FindingIds; git: Git; largeFiles: LargeFiles };

/** @throws GitError; the reason of the signal */
export async function scanNewObjects(
  services: Deps,
  incoming: IncomingPush,
  { includeSecrets }: { includeSecrets: boolean },
): Promise<Verdict> {
  const pointers = createPointerScanner(services, incoming);
  if (includeSecrets) return scan(incoming, [pointers, createSecretScanner(services, incoming)]);
  const { quarantined } = incoming;
  const timeout = AbortSignal.timeout(POINTER_CHECK_TIMEOUT_MS);
  const withTimeout = { ...quarantined, signal: AbortSignal.any([quarantined.signal, timeout]) };
  try {
    return await scan({ quarantined: withTimeout }, [pointers]);
  } catch (error) {
    if (timeout.aborted && !quarantined.signal.aborted) return { accepted: true };
    throw error;
  }
}

/**
 * The first scanner that rejects decides. The scanners after it get no `verdict` call, so the secret scanner does not
 * store the `secret.allow` options of a rejected push.
 */
async function scan(
  { quarantined }: Pick<IncomingPush, 'quarantined'>,
  scanners: readonly [ObjectScanner, ...ObjectScanner[]],
): Promise<Verdict> {
  const filters = scanners.map(({ filter }) => filter);
  const combined: ObjectFilter = {
    types: [...new Set(filters.flatMap(({ types }) => types))],
    minBytes: Math.min(...filters.map(({ minBytes }) => minBytes)),
    maxBytes: Math.max(...filters.map(({ maxBytes }) => maxBytes)),
  };
  for await (const objects of readNewObjects(quarantined, combined)) {
    for (const object of objects) {
      for (const scanner of scanners) {
        if (!matchesFilter(scanner.filter, object.type, object.data.length)) continue;
        const isDecided = await scanner.inspect(object);
        if (isDecided) return scanner.verdict();
      }
    }
  }
  const notes: string[] = [];
  for (const scanner of scanners) {
    const verdict = await scanner.verdict();
    if (!verdict.accepted) return verdict;
    notes.push(...(verdict.notes ?? []));
  }
  return { accepted: true, notes };
}
