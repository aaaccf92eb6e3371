/**
 * The secrets that a push adds.
 *
 *   new files → what looks like a secret in them → the patch of those files alone → the lines that add it
 *
 * Most pushes have no secret, so only their new files are read, once each and without a comparison: 10,000 commits take
 * half the time of a walk over all their patches. A file that is new may hold what was there before; only lines that
 * the push adds count.
 */
import { pathsOf } from '../../../git/objects/file-changes.ts';
import type { NewBlob } from '../../../git/objects/new-blobs.ts';
import { patchOf, type Quarantined } from '../../../git/objects/walk.ts';
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

/** Looks for the secrets that commits reachable from `tips`, and from no ref yet, add. */
export class SecretScan {
  readonly #place: Quarantined;
  readonly #tips: readonly string[];
  readonly #options: ScanOptions;
  readonly #turn: () => Promise<void> | undefined;
  /** By id. */
  readonly #findings = new Map<string, Finding>();
  /** By the ids of their files. */
  #suspects = new Map<string, Suspect[]>();

  constructor(place: Quarantined, tips: readonly string[], options: ScanOptions) {
    this.#place = place;
    this.#tips = tips;
    this.#options = options;
    this.#turn = takeTurns(place.signal);
  }

  /** A file that is new. True when there are as many findings as are wanted. @throws GitError; the reason of the signal */
  async see({ oid, data }: NewBlob): Promise<boolean> {
    const found = await this.#suspectsIn(data);
    if (found.length > 0) this.#suspects.set(oid, found);
    if (this.#suspects.size >= MAX_FILES) await this.#locate();
    return this.#isFull;
  }

  /** @throws GitError; the reason of the signal */
  async findings(): Promise<Finding[]> {
    if (!this.#isFull) await this.#locate();
    return [...this.#findings.values()];
  }

  get #isFull(): boolean {
    return this.#findings.size >= this.#options.limit;
  }

  async #suspectsIn(data: Buffer): Promise<Suspect[]> {
    if (data.subarray(0, BINARY_BYTES).includes(0)) return [];
    const found = new Map<string, Suspect>();
    for (const secret of secretsIn(data, data.toString('latin1'))) {
      await this.#turn();
      if (!secret) continue;
      const { kind, text } = secret;
      const id = this.#options.idOf(kind, text);
      found.set(id, { id, kind, firstLine: text.split(/\r?\n/, 1)[0] ?? '' });
      if (found.size >= MAX_OF_FILE) break;
    }
    await this.#turn();
    return [...found.values()];
  }

  async #locate(): Promise<void> {
    const suspects = this.#suspects;
    this.#suspects = new Map();
    if (suspects.size === 0) return;
    const candidates = await placed(this.#place, this.#tips, suspects);
    if (candidates.size === 0) return;
    const allowed = await this.#options.allowed([...candidates.values()].flat());
    for await (const finding of added(this.#place, this.#tips, candidates)) {
      if (allowed.has(finding.id)) continue;
      if (!this.#findings.has(finding.id)) this.#findings.set(finding.id, finding);
      if (this.#isFull) break;
    }
  }
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

/** The lines of a patch of these files that add one of their candidates. */
async function* added(
  place: Quarantined,
  tips: readonly string[],
  candidates: ReadonlyMap<string, Candidate[]>,
): AsyncGenerator<Finding> {
  const paths = [...candidates.keys()];
  // One regular expression per file matches all its candidates. Searching 300,000 lines for 200 candidates one by one took 5 s.
  const anyOf = new Map(paths.map((path) => [path, matcherOf(candidates.get(path) ?? [])]));
  const turn = takeTurns(place.signal);
  for await (const { text, path, ...where } of addedLines(patchOf(place, tips, paths))) {
    const wait = turn();
    if (wait) await wait;
    if (!anyOf.get(path)?.test(text)) continue;
    for (const { firstLine, ...finding } of candidates.get(path) ?? [])
      if (text.includes(firstLine)) yield { ...finding, ...where };
  }
}

/** Matches a line that contains any of the candidates. */
function matcherOf(candidates: readonly Candidate[]): RegExp {
  return new RegExp(candidates.map(({ firstLine }) => RegExp.escape(firstLine)).join('|'));
}
