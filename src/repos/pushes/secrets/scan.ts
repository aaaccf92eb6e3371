/**
 * The secrets that a push adds.
 *
 *   new files → what looks like a secret in them → the patch of those files alone → the lines that add it
 *
 * Most pushes have no secret, so only their new files are read, once each and without a comparison: 10,000 commits take
 * half the time of a walk over all their patches. A file that is new may hold what was there before; only lines that
 * the push adds count.
 */
import { newBlobs, pathsOf } from '../../../git/objects/new-blobs.ts';
import { MAX_COMPARED_BYTES, patchOf, type Quarantined } from '../../../git/objects/walk.ts';
import { takeTurns } from '../take-turns.ts';
import { addedLines } from './added-lines.ts';
import { secretsIn } from './find.ts';

export type Finding = {
  /** The same for the same secret in the same repository. */
  id: string;
  /** As in "adds a Stripe live key". */
  kind: string;
  commit: string;
  path: string;
  line: number;
};

export type ScanOptions = {
  /** Of a secret. */
  idOf(kind: string, text: string): string;
  /** Which of these candidates are let pass. */
  allowed(candidates: readonly Candidate[]): Promise<ReadonlySet<string>>;
  /** Of findings; each secret is told once. */
  limit: number;
};

/** What looks like a secret in a file that is new, whether or not the push adds it. */
export type Candidate = Suspect & { path: string };
type Suspect = Pick<Finding, 'id' | 'kind'> & { firstLine: string };

/** Git looks for the first NUL in so many bytes, and takes a file with one for binary. */
const BINARY_BYTES = 8_000;
/** Files that are compared at once. */
const MAX_FILES = 200;
/** Of one file, in all its versions, because each is looked for in each line: one of nothing but keys needs no more. */
const MAX_OF_FILE = 200;

/** The secrets that commits reachable from `tips`, and from no ref yet, add. @throws GitError; the reason of the signal */
export async function findSecrets(
  place: Quarantined,
  tips: readonly string[],
  options: ScanOptions,
): Promise<Finding[]> {
  const findings = new Map<string, Finding>();
  const turn = takeTurns(place.signal);
  /** By the ids of their files. */
  let suspects = new Map<string, Suspect[]>();
  const locate = async () => {
    const candidates = await placed(place, tips, suspects);
    suspects = new Map();
    const allowed = await options.allowed([...candidates.values()].flat());
    for await (const finding of added(place, tips, candidates)) {
      if (allowed.has(finding.id)) continue;
      if (!findings.has(finding.id)) findings.set(finding.id, finding);
      if (findings.size >= options.limit) break;
    }
  };
  for await (const blobs of newBlobs(place, MAX_COMPARED_BYTES)) {
    for (const { oid, data } of blobs) {
      const found = await suspectsIn(data, options, turn);
      if (found.length > 0) suspects.set(oid, found);
      if (suspects.size >= MAX_FILES) await locate();
      if (findings.size >= options.limit) return [...findings.values()];
    }
  }
  if (suspects.size > 0) await locate();
  return [...findings.values()];
}

/** The suspects of files that the push brings, by path as Latin-1. Others are here already, as bases of deltas. */
async function placed(
  place: Quarantined,
  tips: readonly string[],
  suspects: ReadonlyMap<string, Suspect[]>,
): Promise<Map<string, Candidate[]>> {
  const candidates = new Map<string, Candidate[]>();
  for (const [oid, places] of await pathsOf(place, tips, new Set(suspects.keys()))) {
    for (const bytes of places) {
      const path = Buffer.from(bytes, 'latin1').toString('utf8');
      const known = candidates.get(bytes) ?? [];
      const ids = new Set(known.map(({ id }) => id));
      const fresh = suspects.get(oid)?.filter(({ id }) => !ids.has(id)) ?? [];
      const all = [...known, ...fresh.map((one) => ({ ...one, path }))];
      candidates.set(bytes, all.slice(0, MAX_OF_FILE));
    }
  }
  return candidates;
}

async function suspectsIn(
  data: Buffer,
  { idOf }: ScanOptions,
  turn: () => Promise<void> | undefined,
): Promise<Suspect[]> {
  if (data.subarray(0, BINARY_BYTES).includes(0)) return [];
  const found = new Map<string, Suspect>();
  for (const secret of secretsIn(data, data.toString('latin1'))) {
    await turn();
    if (!secret) continue;
    const { kind, text } = secret;
    const id = idOf(kind, text);
    found.set(id, { id, kind, firstLine: text.split(/\r?\n/, 1)[0] ?? '' });
    if (found.size >= MAX_OF_FILE) break;
  }
  await turn();
  return [...found.values()];
}

/** The lines of a patch of these files that add one of their candidates. */
async function* added(
  place: Quarantined,
  tips: readonly string[],
  candidates: ReadonlyMap<string, Candidate[]>,
): AsyncGenerator<Finding> {
  const paths = [...candidates.keys()];
  if (paths.length === 0) return;
  const turn = takeTurns(place.signal);
  for await (const { text, path, ...where } of addedLines(patchOf(place, tips, paths))) {
    const wait = turn();
    if (wait) await wait;
    for (const { firstLine, ...finding } of candidates.get(path) ?? [])
      if (text.includes(firstLine)) yield { ...finding, ...where };
  }
}
