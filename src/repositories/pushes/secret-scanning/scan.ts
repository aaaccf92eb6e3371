/**
 * Finds the secrets that a push adds.
 *
 *   new text files    → matches in them → the patch of those files only → the added lines that contain a match
 *   all other objects → matches in them, each of which is reported
 *
 * Most pushes contain no secret, so at first only the new objects are read, once each and without a comparison: for
 * 10,000 commits, this takes half the time of a walk over all their patches. A new version of a text file may contain
 * old lines, and only lines that the push adds are reported.
 *
 * The other objects are files with a NUL, the file names in a directory, commits, tags, and files that no commit of the
 * push has at a path. Otherwise a tag could bring in such a file unchecked, and a later commit that uses the file would
 * not add it as a new object.
 */

import type { ObjectType } from '../../../git/objects/cat-file.ts';
import type { NewObject } from '../../../git/objects/new-objects.ts';
import { parseTree } from '../../../git/objects/read.ts';
import {
  findBlobPaths,
  type RepositoryWithQuarantine,
  readPatch,
} from '../../../git/objects/walk.ts';
import { createYielder } from '../incoming-push.ts';
import { findSecrets } from './find.ts';

/** A reported secret. */
export type Finding = {
  /** The same secret has the same id in the same repository. */
  id: string;
  /** Completes the sentence "adds …", for example "a Stripe live key". */
  kind: string;
  /** Where it was added: `<path>:<line>`, or a description of the object. */
  location: string;
  /** The commit whose patch adds it; null if the location identifies the object. */
  commit: string | null;
};

type ScanOptions = {
  /** Computes the id of a finding. */
  idOf(kind: string, text: string): string;
  /** Returns the ids of the candidates that are allowed, and notes those that this push allows for the first time. */
  applyAllowances(candidates: readonly Candidate[]): Promise<ReadonlySet<string>>;
  /** Returns those of the objects that the repository had before the push. (A pack may repeat them as delta bases.) */
  findExisting(oids: readonly string[]): Promise<ReadonlySet<string>>;
  /** Maximum number of findings; each secret is reported once. */
  limit: number;
};

/** Text of a new object that looks like a secret, whether or not the push adds it. */
type Match = Pick<Finding, 'id' | 'kind'> & {
  /** The first line of the secret, because patches are searched line by line. */
  firstLine: string;
};
/** A match with its location: the path of the file, or a description of the object. */
export type Candidate = Match & { path: string };

type MatchingObject = {
  type: ObjectType;
  /** Whether the object contains a NUL, so that git treats it as binary and may produce no patch for it. */
  isBinary: boolean;
  matches: Match[];
};

/** Objects whose paths and patches are read together. */
const OBJECTS_PER_BATCH = 200;
/**
 * Limit over all versions of a file, because each added line is searched for every candidate of its file. A file with
 * that many candidates is rejected for the first of them.
 */
const MAX_CANDIDATES_PER_FILE = 200;
/** Digits of an object id in messages. */
const SHORT_ID = 10;

/** Finds the secrets added by the commits that are reachable from `tips` and from no existing ref. */
export class SecretScan {
  readonly #quarantined: RepositoryWithQuarantine;
  readonly #tips: readonly string[];
  readonly #options: ScanOptions;
  /** Yields to the event loop from time to time. Throws the reason of the signal. */
  readonly #yieldIfDue: () => Promise<void> | undefined;
  /** Finding id → finding. */
  readonly #findings = new Map<string, Finding>();
  /** Objects of the next batch, by id. */
  #batch = new Map<string, MatchingObject>();

  constructor(
    quarantined: RepositoryWithQuarantine,
    tips: readonly string[],
    options: ScanOptions,
  ) {
    this.#quarantined = quarantined;
    this.#tips = tips;
    this.#options = options;
    this.#yieldIfDue = createYielder(quarantined.signal);
  }

  /**
   * Collects the matches in a new object.
   * @returns whether the limit of findings is reached
   * @throws GitError; the reason of the signal
   */
  async inspect({ type, oid, data }: NewObject): Promise<boolean> {
    const text = type === 'tree' ? fileNamesIn(data) : data;
    const matches = await this.#findMatches(text);
    if (matches.length > 0) this.#batch.set(oid, { type, isBinary: text.includes(0), matches });
    if (this.#batch.size >= OBJECTS_PER_BATCH) await this.#reportBatch();
    return this.#isFull;
  }

  /** Inspects the names of refs that the push creates. @throws the reason of the signal */
  async inspectRefs(names: readonly string[]): Promise<void> {
    const matches = await this.#findMatches(Buffer.from(names.join('\n')));
    await this.#reportUnlessAllowed(
      matches.map((match) => ({ ...match, path: 'the name of a ref' })),
    );
  }

  /** @throws GitError; the reason of the signal */
  async findings(): Promise<Finding[]> {
    if (!this.#isFull) await this.#reportBatch();
    return [...this.#findings.values()];
  }

  get #isFull(): boolean {
    return this.#findings.size >= this.#options.limit;
  }

  /** Data with a NUL is also searched without the NULs, because UTF-16 has one next to every ASCII character. */
  async #findMatches(data: Buffer): Promise<Match[]> {
    const found = new Map<string, Match>();
    for (const bytes of data.includes(0) ? [data, withoutNuls(data)] : [data]) {
      for (const secret of findSecrets(bytes, bytes.toString('latin1'))) {
        await this.#yieldIfDue();
        if (!secret) continue;
        const { kind, text } = secret;
        const id = this.#options.idOf(kind, text);
        found.set(id, { id, kind, firstLine: text.split(/\r?\n/, 1)[0] ?? '' });
        if (found.size >= MAX_CANDIDATES_PER_FILE) break;
      }
      await this.#yieldIfDue();
    }
    return [...found.values()];
  }

  async #reportBatch(): Promise<void> {
    const batch = this.#batch;
    this.#batch = new Map();
    if (batch.size === 0) return;
    const blobs = batch.entries().filter(([, { type }]) => type === 'blob');
    const paths = await findBlobPaths(
      this.#quarantined,
      this.#tips,
      new Set(blobs.map(([oid]) => oid)),
    );
    const isPatchable = ([oid, { isBinary }]: [string, MatchingObject]) =>
      !isBinary && paths.has(oid);
    const patchable = [...batch].filter((entry) => isPatchable(entry));
    const wholeObjects = [...batch].filter((entry) => !isPatchable(entry));
    await this.#reportWhole(wholeObjects, paths);
    if (patchable.length > 0 && !this.#isFull)
      await this.#reportAddedLines(candidatesByPath(patchable, paths));
  }

  /** Reports every match in the objects, except in those that the repository had before the push. */
  async #reportWhole(objects: readonly [string, MatchingObject][], paths: Paths): Promise<void> {
    if (objects.length === 0) return;
    const existing = await this.#options.findExisting(objects.map(([oid]) => oid));
    const candidates = objects.flatMap(([oid, { type, matches }]) => {
      if (existing.has(oid)) return [];
      const path = describeLocation(oid, type, paths);
      return matches.map((match) => ({ ...match, path }));
    });
    await this.#reportUnlessAllowed(candidates);
  }

  async #reportUnlessAllowed(candidates: readonly Candidate[]): Promise<void> {
    if (candidates.length === 0) return;
    const allowed = await this.#options.applyAllowances(candidates);
    for (const { id, kind, path } of candidates)
      if (!allowed.has(id)) this.#report({ id, kind, location: path, commit: null });
  }

  async #reportAddedLines(candidates: ReadonlyMap<string, Candidate[]>): Promise<void> {
    const allowed = await this.#options.applyAllowances([...candidates.values()].flat());
    for await (const finding of findInPatch(this.#quarantined, this.#tips, candidates)) {
      if (!allowed.has(finding.id)) this.#report(finding);
      if (this.#isFull) break;
    }
  }

  #report(finding: Finding): void {
    if (!this.#isFull && !this.#findings.has(finding.id)) this.#findings.set(finding.id, finding);
  }
}

function withoutNuls(data: Buffer): Buffer {
  const kept = Buffer.allocUnsafe(data.length);
  let length = 0;
  for (const byte of data) if (byte !== 0) kept[length++] = byte;
  return kept.subarray(0, length);
}

/** The names in a directory, one per line. */
function fileNamesIn(tree: Buffer): Buffer {
  return Buffer.from(
    parseTree(tree)
      .map(({ name }) => name)
      .join('\n'),
  );
}

/** Blob id → the paths at which commits of the push have it. Decoded as Latin-1, which preserves every byte. */
type Paths = ReadonlyMap<string, ReadonlySet<string>>;

/**
 * Describes the location without names that may themselves be secrets. The text becomes the subject of a sentence:
 * "<location> adds a Stripe live key".
 */
function describeLocation(oid: string, type: ObjectType, paths: Paths): string {
  const short = oid.slice(0, SHORT_ID);
  switch (type) {
    case 'blob': {
      const [path] = paths.get(oid) ?? [];
      if (path !== undefined) return Buffer.from(path, 'latin1').toString('utf8');
      return `the file ${short}, which no commit of the push has,`;
    }
    case 'tree':
      return `a file name in the directory ${short}`;
    case 'commit':
      return `the message or an author of commit ${short}`;
    case 'tag':
      return `the message or the author of tag ${short}`;
  }
}

/** Groups the candidates of text files by path (Latin-1). */
function candidatesByPath(
  files: readonly [string, MatchingObject][],
  paths: Paths,
): ReadonlyMap<string, Candidate[]> {
  const candidates = new Map<string, Candidate[]>();
  for (const [oid, { matches }] of files) {
    for (const latin1Path of paths.get(oid) ?? []) {
      const path = Buffer.from(latin1Path, 'latin1').toString('utf8');
      const existing = candidates.get(latin1Path) ?? [];
      const ids = new Set(existing.map(({ id }) => id));
      const added = matches.filter(({ id }) => !ids.has(id));
      const all = [...existing, ...added.map((match) => ({ ...match, path }))];
      candidates.set(latin1Path, all.slice(0, MAX_CANDIDATES_PER_FILE));
    }
  }
  return candidates;
}

/** Yields the candidates that added lines in the patch of these files contain. */
async function* findInPatch(
  quarantined: RepositoryWithQuarantine,
  tips: readonly string[],
  candidates: ReadonlyMap<string, Candidate[]>,
): AsyncGenerator<Finding> {
  const paths = [...candidates.keys()];
  // One regular expression per file matches all its candidates. Searching 300,000 lines for 200 candidates one by one
  // took 5 s.
  const matchers = new Map(paths.map((path) => [path, createMatcher(candidates.get(path) ?? [])]));
  const yieldIfDue = createYielder(quarantined.signal);
  for await (const { text, path, line, commit } of parseAddedLines(
    readPatch(quarantined, tips, paths),
  )) {
    const wait = yieldIfDue();
    if (wait) await wait;
    if (!matchers.get(path)?.test(text)) continue;
    for (const { firstLine, id, kind, path: displayPath } of candidates.get(path) ?? [])
      if (text.includes(firstLine)) yield { id, kind, location: `${displayPath}:${line}`, commit };
  }
}

/** A pattern for lines that contain any of the candidates. */
function createMatcher(candidates: readonly Candidate[]): RegExp {
  return new RegExp(candidates.map(({ firstLine }) => RegExp.escape(firstLine)).join('|'));
}

/** `path` and `text` are Latin-1. */
type AddedLine = { commit: string; path: string; line: number; text: string };

/**
 * Parses the added lines of a patch without context (`git log --patch --cc --unified=0`). The lines of a hunk are
 * counted down from the numbers in its header, so file contents cannot be mistaken for a header.
 *
 * A merge is compared with all its parents: the hunk header has one `@` more than parents, and each line begins with
 * one mark per parent. In `@@@ -3,1 -3,0 +3,1 @@@`, the mark ` +` means that the first parent has the line.
 */
export async function* parseAddedLines(patch: AsyncIterable<string>): AsyncGenerator<AddedLine> {
  let commit = '';
  let path = '';
  let line = 0;
  /** Remaining lines of the hunk in the new file, and in each parent. */
  let remainingInFile = 0;
  let remainingInParents: number[] = [];
  let parents = 1;
  for await (const text of patch) {
    const inHunk = remainingInFile > 0 || remainingInParents.some((count) => count > 0);
    if (inHunk && !text.startsWith('\\')) {
      const marks = text.slice(0, parents);
      if (marks.includes('-')) {
        remainingInParents = remainingInParents.map(
          (count, i) => count - (marks[i] === '-' ? 1 : 0),
        );
        continue;
      }
      remainingInFile--;
      // If a parent has the line, it was checked when that parent was added.
      if (!marks.includes(' ')) yield { commit, path, line, text: text.slice(parents) };
      remainingInParents = remainingInParents.map((count, i) => count - (marks[i] === ' ' ? 1 : 0));
      line++;
      continue;
    }
    const hunk = /^(@{2,})((?: -\d+(?:,\d+)?)+) \+(\d+)(?:,(\d+))? \1/.exec(text);
    if (hunk) {
      const [, marks = '', olds = '', start, count] = hunk;
      parents = marks.length - 1;
      remainingInParents = olds
        .trim()
        .split(' ')
        .map((old) => Number(old.split(',')[1] ?? 1));
      line = Number(start);
      remainingInFile = Number(count ?? 1);
    } else if (text.startsWith('commit ')) {
      commit = text.slice('commit '.length);
    } else if (text.startsWith('+++ ')) {
      path = unquotePath(text.slice('+++ '.length));
    }
  }
}

/**
 * Decodes a path as git prints it: followed by a tab if it contains spaces, in quotes if it contains special
 * characters.
 */
function unquotePath(printed: string): string {
  const path = printed.replace(/\t$/, '');
  if (!path.startsWith('"')) return path;
  return path.slice(1, -1).replace(/\\([0-7]{3}|.)/g, (_, escaped: string) => {
    if (escaped.length === 3) return String.fromCharCode(Number.parseInt(escaped, 8));
    return ESCAPES[escaped] ?? escaped;
  });
}

const ESCAPES: Record<string, string> = {
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
