/** Scans the new objects of a push for missing large files and secrets. The objects are read once for all scanners. */
import type { Git } from '../../git/git.ts';
import {
  matchesFilter,
  type NewObject,
  type ObjectFilter,
  readNewObjects,
} from '../../git/objects/new-objects.ts';
import { POINTER_BYTES, type Pointer, parsePointer } from '../../git/objects/pointer.ts';
import type { Db } from '../../platform/database/client.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import {
  type IncomingPush,
  type ObjectScanner,
  reject,
  type ScanVerdict,
} from './incoming-push.ts';
import type { FindingIds } from './secret-scanning/find.ts';
import { createSecretScanner } from './secret-scanning/scanner.ts';

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
): Promise<ScanVerdict> {
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

/** The first scanner that rejects decides. */
async function scan(
  { quarantined }: Pick<IncomingPush, 'quarantined'>,
  scanners: readonly [ObjectScanner, ...ObjectScanner[]],
): Promise<ScanVerdict> {
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
  const stores: (() => Promise<void>)[] = [];
  for (const scanner of scanners) {
    const verdict = await scanner.verdict();
    if (!verdict.accepted) return verdict;
    notes.push(...(verdict.notes ?? []));
    if (verdict.store) stores.push(verdict.store);
  }
  const store = async () => {
    for (const storeOne of stores) await storeOne();
  };
  return { accepted: true, notes, store };
}

const MAX_FILES_IN_MESSAGE = 5;
/** The scan stops after this many missing files. */
const MAX_MISSING = 1_000;
const POINTERS_PER_LOOKUP = 10_000;

/**
 * Rejects new pointers to large files that the repository does not have, as GitHub does (GH008), because no clone could
 * check them out. git-lfs uploads files before it pushes; plain git does not, for example in `git push --mirror` from a
 * clone without its large files.
 */
function createPointerScanner(
  { git, largeFiles }: Pick<Deps, 'git' | 'largeFiles'>,
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
