/**
 * Finds the secrets that a push adds.
 *
 *   new text files → candidates in them → the patch of those files only → the lines that add a candidate
 *   other new objects that people read → candidates in them
 *
 * Most pushes contain no secret, so at first only the new objects are read, once each and without a comparison: 10,000
 * commits take half the time of a walk over all their patches. A new version of a text file may contain old lines; only
 * lines that the push adds count. These are checked as a whole: files with a NUL, the names in a directory, commits,
 * tags, and files that no commit of the push has at a path. (A tag can point to such a file, and a later commit would
 * then add nothing new.)
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
  /** Returns the ids of the candidates that are allowed. */
  allowed(candidates: readonly Candidate[]): Promise<ReadonlySet<string>>;
  /** Returns the objects that the repository had before the push: a pack includes them as delta bases. */
  known(oids: readonly string[]): Promise<ReadonlySet<string>>;
  /** Maximum of findings; each secret is reported once. */
  limit: number;
};

/**
 * A possible secret in a new object, whether or not the push adds it. `path` is the path of the file or a description
 * of the object.
 */
export type Candidate = Suspect & { path: string };
type Suspect = Pick<Finding, 'id' | 'kind'> & { firstLine: string };

/** An object with possible secrets. `isOpaque`: git may produce no patch for it. */
type SuspectObject = { type: ObjectType; isOpaque: boolean; suspects: Suspect[] };

/** Objects that are located in one batch. */
const MAX_OBJECTS = 200;
/**
 * Candidates per file over all its versions, because each added line is searched for each. A file full of keys needs no
 * more.
 */
const MAX_CANDIDATES_PER_FILE = 200;
/** Digits of an object id in messages. */
const SHORT_ID = 10;

/** Finds the secrets added by the commits that are reachable from `tips` and from no existing ref. */
export class SecretScan {
  readonly #quarantined: RepositoryWithQuarantine;
  readonly #tips: readonly string[];
  readonly #options: ScanOptions;
  readonly #yieldIfDue: () => Promise<void> | undefined;
  /** Finding id → finding. */
  readonly #findings = new Map<string, Finding>();
  /** Object id → object. */
  #suspected = new Map<string, SuspectObject>();

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
   * Inspects a new object. @returns whether the limit of findings is reached @throws GitError; the reason of the signal
   */
  async inspect({ type, oid, data }: NewObject): Promise<boolean> {
    const text = type === 'tree' ? fileNamesIn(data) : data;
    const suspects = await this.#suspectsIn(text);
    if (suspects.length > 0)
      this.#suspected.set(oid, { type, isOpaque: text.includes(0), suspects });
    if (this.#suspected.size >= MAX_OBJECTS) await this.#locate();
    return this.#isFull;
  }

  /** Inspects the names of refs that the push creates. @throws the reason of the signal */
  async inspectRefs(names: readonly string[]): Promise<void> {
    const suspects = await this.#suspectsIn(Buffer.from(names.join('\n')));
    await this.#add(suspects.map((one) => ({ ...one, path: 'the name of a ref' })));
  }

  /** @throws GitError; the reason of the signal */
  async findings(): Promise<Finding[]> {
    if (!this.#isFull) await this.#locate();
    return [...this.#findings.values()];
  }

  get #isFull(): boolean {
    return this.#findings.size >= this.#options.limit;
  }

  /** Data with a NUL is also searched without the NULs, because UTF-16 has one next to every ASCII character. */
  async #suspectsIn(data: Buffer): Promise<Suspect[]> {
    const found = new Map<string, Suspect>();
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

  async #locate(): Promise<void> {
    const suspected = this.#suspected;
    this.#suspected = new Map();
    if (suspected.size === 0) return;
    const blobs = suspected.entries().filter(([, { type }]) => type === 'blob');
    const paths = await findBlobPaths(
      this.#quarantined,
      this.#tips,
      new Set(blobs.map(([oid]) => oid)),
    );
    const isPatchable = ([oid, { isOpaque }]: [string, SuspectObject]) =>
      !isOpaque && paths.has(oid);
    const [patchable, wholeObjects] = [
      [...suspected].filter((one) => isPatchable(one)),
      [...suspected].filter((one) => !isPatchable(one)),
    ];
    await this.#addWhole(wholeObjects, paths);
    if (patchable.length > 0 && !this.#isFull)
      await this.#addLines(candidatesByPath(patchable, paths));
  }

  async #addWhole(objects: readonly [string, SuspectObject][], paths: Paths): Promise<void> {
    if (objects.length === 0) return;
    const known = await this.#options.known(objects.map(([oid]) => oid));
    const candidates = objects.flatMap(([oid, { type, suspects }]) => {
      if (known.has(oid)) return [];
      const path = describeLocation(oid, type, paths);
      return suspects.map((suspect) => ({ ...suspect, path }));
    });
    await this.#add(candidates);
  }

  async #add(candidates: readonly Candidate[]): Promise<void> {
    if (candidates.length === 0) return;
    const allowed = await this.#options.allowed(candidates);
    for (const { id, kind, path } of candidates)
      if (!allowed.has(id)) this.#report({ id, kind, location: path, commit: null });
  }

  async #addLines(candidates: ReadonlyMap<string, Candidate[]>): Promise<void> {
    const allowed = await this.#options.allowed([...candidates.values()].flat());
    for await (const finding of findAddedLines(this.#quarantined, this.#tips, candidates)) {
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

/** Blob id → the paths at which commits of the push have it, as Latin-1. */
type Paths = ReadonlyMap<string, ReadonlySet<string>>;

/** Describes the location without names that may themselves be secrets. */
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

/** Groups the candidates of text files by path, as Latin-1. */
function candidatesByPath(
  files: readonly [string, SuspectObject][],
  paths: Paths,
): ReadonlyMap<string, Candidate[]> {
  const candidates = new Map<string, Candidate[]>();
  for (const [oid, { suspects }] of files) {
    for (const bytes of paths.get(oid) ?? []) {
      const path = Buffer.from(bytes, 'latin1').toString('utf8');
      const known = candidates.get(bytes) ?? [];
      const ids = new Set(known.map(({ id }) => id));
      const fresh = suspects.filter(({ id }) => !ids.has(id));
      const all = [...known, ...fresh.map((one) => ({ ...one, path }))];
      candidates.set(bytes, all.slice(0, MAX_CANDIDATES_PER_FILE));
    }
  }
  return candidates;
}

/** Yields the lines in the patch of these files that add a candidate. */
async function* findAddedLines(
  quarantined: RepositoryWithQuarantine,
  tips: readonly string[],
  candidates: ReadonlyMap<string, Candidate[]>,
): AsyncGenerator<Finding> {
  const paths = [...candidates.keys()];
  // One regular expression per file matches all its candidates. Searching 300,000 lines for 200 candidates one by one
  // took 5 s.
  const matchers = new Map(paths.map((path) => [path, createMatcher(candidates.get(path) ?? [])]));
  const yieldIfDue = createYielder(quarantined.signal);
  for await (const { text, path, line, commit } of addedLines(
    readPatch(quarantined, tips, paths),
  )) {
    const wait = yieldIfDue();
    if (wait) await wait;
    if (!matchers.get(path)?.test(text)) continue;
    for (const { firstLine, id, kind, path: shown } of candidates.get(path) ?? [])
      if (text.includes(firstLine)) yield { id, kind, location: `${shown}:${line}`, commit };
  }
}

/** A pattern for lines that contain any of the candidates. */
function createMatcher(candidates: readonly Candidate[]): RegExp {
  return new RegExp(candidates.map(({ firstLine }) => RegExp.escape(firstLine)).join('|'));
}

/** `path` and `text` are Latin-1, which preserves every byte. */
type AddedLine = { commit: string; path: string; line: number; text: string };

/**
 * Parses the added lines of a patch without context (`git log --patch --cc --unified=0`). Lines of a hunk are counted
 * by its header, so file contents cannot be mistaken for a header.
 */
export async function* addedLines(patch: AsyncIterable<string>): AsyncGenerator<AddedLine> {
  let commit = '';
  let path = '';
  let line = 0;
  /** Remaining lines of the hunk: those of the new file, and those of each parent that it is compared with. */
  let remainingAdded = 0;
  let remainingRemoved: number[] = [];
  let parents = 1;
  for await (const text of patch) {
    const inHunk = remainingAdded > 0 || remainingRemoved.some((count) => count > 0);
    if (inHunk && !text.startsWith('\\')) {
      const marks = text.slice(0, parents);
      if (marks.includes('-')) {
        remainingRemoved = remainingRemoved.map((count, i) => count - (marks[i] === '-' ? 1 : 0));
        continue;
      }
      remainingAdded--;
      // A line that one parent has was checked in that parent.
      if (!marks.includes(' ')) yield { commit, path, line, text: text.slice(parents) };
      remainingRemoved = remainingRemoved.map((count, i) => count - (marks[i] === ' ' ? 1 : 0));
      line++;
      continue;
    }
    const hunk = /^(@{2,})((?: -\d+(?:,\d+)?)+) \+(\d+)(?:,(\d+))? \1/.exec(text);
    if (hunk) {
      const [, marks = '', olds = '', start, count] = hunk;
      parents = marks.length - 1;
      remainingRemoved = olds
        .trim()
        .split(' ')
        .map((old) => Number(old.split(',')[1] ?? 1));
      line = Number(start);
      remainingAdded = Number(count ?? 1);
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
function unquotePath(shown: string): string {
  const path = shown.replace(/\t$/, '');
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
