/**
 * The secrets that a push adds.
 *
 *   new text files → what looks like a secret in them → the patch of those files alone → the lines that add it
 *   all else that is new and that people read → what looks like a secret in it
 *
 * Most pushes have no secret, so only their new objects are read, once each and without a comparison: 10,000 commits take
 * half the time of a walk over all their patches. A text file that is new may hold what was there before; only lines that
 * the push adds count. A file with a NUL, the names in a directory, a commit, a tag, and a file that no commit of the push
 * has at a path (a tag can name one, and a later commit would then bring nothing new) are each judged as a whole.
 */
import type { ObjectType } from '../../../git/objects/cat-file-answers.ts';
import { pathsOf } from '../../../git/objects/file-changes.ts';
import type { NewObject } from '../../../git/objects/new-objects.ts';
import { parseTree } from '../../../git/objects/read.ts';
import { patchOf, type Quarantined } from '../../../git/objects/walk.ts';
import { takeTurns } from '../brought.ts';
import { secretsIn } from './find.ts';

export type Finding = {
  /** The same for the same secret in the same repository. */
  id: string;
  /** As in "adds a Stripe live key". */
  kind: string;
  /** What adds it: `<path>:<line>`, or another part of the push in words. */
  place: string;
  /** The commit whose patch adds it; null where the place says enough. */
  commit: string | null;
};

export type ScanOptions = {
  /** Of a secret. */
  idOf(kind: string, text: string): string;
  /** Which of these candidates are let pass. */
  allowed(candidates: readonly Candidate[]): Promise<ReadonlySet<string>>;
  /** Which of these objects the repository had before the push: they come as bases of deltas. */
  known(oids: readonly string[]): Promise<ReadonlySet<string>>;
  /** Of findings; each secret is told once. */
  limit: number;
};

/** What looks like a secret in something that is new, whether or not the push adds it. `path`: of the file, or its place in words. */
export type Candidate = Suspect & { path: string };
type Suspect = Pick<Finding, 'id' | 'kind'> & { firstLine: string };

/** An object with suspects. `isOpaque`: git may make no patch of it. */
type Suspected = { type: ObjectType; isOpaque: boolean; suspects: Suspect[] };

/** Objects that are looked for at once. */
const MAX_OBJECTS = 200;
/** Of one file, in all its versions, because each is looked for in each line: one of nothing but keys needs no more. */
const MAX_OF_FILE = 200;
/** Of an id that is shown. */
const SHORT = 10;

/** Looks for the secrets that commits reachable from `tips`, and from no ref yet, add. */
export class SecretScan {
  readonly #place: Quarantined;
  readonly #tips: readonly string[];
  readonly #options: ScanOptions;
  readonly #turn: () => Promise<void> | undefined;
  /** By id. */
  readonly #findings = new Map<string, Finding>();
  /** By the ids of the objects. */
  #suspected = new Map<string, Suspected>();

  constructor(place: Quarantined, tips: readonly string[], options: ScanOptions) {
    this.#place = place;
    this.#tips = tips;
    this.#options = options;
    this.#turn = takeTurns(place.signal);
  }

  /** An object that is new. True when there are as many findings as are wanted. @throws GitError; the reason of the signal */
  async see({ type, oid, data }: NewObject): Promise<boolean> {
    const text = type === 'tree' ? namesIn(data) : data;
    const suspects = await this.#suspectsIn(text);
    if (suspects.length > 0)
      this.#suspected.set(oid, { type, isOpaque: text.includes(0), suspects });
    if (this.#suspected.size >= MAX_OBJECTS) await this.#locate();
    return this.#isFull;
  }

  /** Names of refs that the push makes. @throws the reason of the signal */
  async seeRefs(names: readonly string[]): Promise<void> {
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

  /** Bytes with a NUL are read without those, too: UTF-16 has one beside each of the characters that secrets are made of. */
  async #suspectsIn(data: Buffer): Promise<Suspect[]> {
    const found = new Map<string, Suspect>();
    for (const bytes of data.includes(0) ? [data, withoutNuls(data)] : [data]) {
      for (const secret of secretsIn(bytes, bytes.toString('latin1'))) {
        await this.#turn();
        if (!secret) continue;
        const { kind, text } = secret;
        const id = this.#options.idOf(kind, text);
        found.set(id, { id, kind, firstLine: text.split(/\r?\n/, 1)[0] ?? '' });
        if (found.size >= MAX_OF_FILE) break;
      }
      await this.#turn();
    }
    return [...found.values()];
  }

  async #locate(): Promise<void> {
    const suspected = this.#suspected;
    this.#suspected = new Map();
    if (suspected.size === 0) return;
    const blobs = suspected.entries().filter(([, { type }]) => type === 'blob');
    const paths = await pathsOf(this.#place, this.#tips, new Set(blobs.map(([oid]) => oid)));
    const isInPatch = ([oid, { isOpaque }]: [string, Suspected]) => !isOpaque && paths.has(oid);
    const [inPatch, others] = [
      [...suspected].filter((one) => isInPatch(one)),
      [...suspected].filter((one) => !isInPatch(one)),
    ];
    await this.#addWhole(others, paths);
    if (inPatch.length > 0 && !this.#isFull) await this.#addLines(placed(inPatch, paths));
  }

  async #addWhole(objects: readonly [string, Suspected][], paths: Paths): Promise<void> {
    if (objects.length === 0) return;
    const known = await this.#options.known(objects.map(([oid]) => oid));
    const candidates = objects.flatMap(([oid, { type, suspects }]) => {
      if (known.has(oid)) return [];
      const path = placeOf(oid, type, paths);
      return suspects.map((suspect) => ({ ...suspect, path }));
    });
    await this.#add(candidates);
  }

  async #add(candidates: readonly Candidate[]): Promise<void> {
    if (candidates.length === 0) return;
    const allowed = await this.#options.allowed(candidates);
    for (const { id, kind, path } of candidates)
      if (!allowed.has(id)) this.#note({ id, kind, place: path, commit: null });
  }

  async #addLines(candidates: ReadonlyMap<string, Candidate[]>): Promise<void> {
    const allowed = await this.#options.allowed([...candidates.values()].flat());
    for await (const finding of added(this.#place, this.#tips, candidates)) {
      if (!allowed.has(finding.id)) this.#note(finding);
      if (this.#isFull) break;
    }
  }

  #note(finding: Finding): void {
    if (!this.#isFull && !this.#findings.has(finding.id)) this.#findings.set(finding.id, finding);
  }
}

function withoutNuls(data: Buffer): Buffer {
  const kept = Buffer.allocUnsafe(data.length);
  let length = 0;
  for (const byte of data) if (byte !== 0) kept[length++] = byte;
  return kept.subarray(0, length);
}

/** The names in a directory, a line each. */
function namesIn(tree: Buffer): Buffer {
  return Buffer.from(
    parseTree(tree)
      .map(({ name }) => name)
      .join('\n'),
  );
}

/** By the ids of blobs: the paths at which the commits of a push have them, as Latin-1. */
type Paths = ReadonlyMap<string, ReadonlySet<string>>;

/** Without the secret itself, which a name may be. */
function placeOf(oid: string, type: ObjectType, paths: Paths): string {
  const short = oid.slice(0, SHORT);
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

/** The suspects of text files, by path as Latin-1. */
function placed(
  files: readonly [string, Suspected][],
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
  for await (const { text, path, line, commit } of addedLines(patchOf(place, tips, paths))) {
    const wait = turn();
    if (wait) await wait;
    if (!anyOf.get(path)?.test(text)) continue;
    for (const { firstLine, id, kind, path: shown } of candidates.get(path) ?? [])
      if (text.includes(firstLine)) yield { id, kind, place: `${shown}:${line}`, commit };
  }
}

/** Matches a line that contains any of the candidates. */
function matcherOf(candidates: readonly Candidate[]): RegExp {
  return new RegExp(candidates.map(({ firstLine }) => RegExp.escape(firstLine)).join('|'));
}

/* The lines that a patch adds. */

/** `path` and `text` as Latin-1, which keeps every byte. */
type AddedLine = { commit: string; path: string; line: number; text: string };

/**
 * The added lines of a patch without context (`git log --patch --cc --unified=0`). Lines within a hunk are
 * counted off by its header, so a file's content cannot pass for a header.
 */
export async function* addedLines(patch: AsyncIterable<string>): AsyncGenerator<AddedLine> {
  let commit = '';
  let path = '';
  let line = 0;
  /** Lines of the new file that the hunk still holds, and the number of parents it is compared with. */
  let left = 0;
  let removed: number[] = [];
  let parents = 1;
  for await (const text of patch) {
    const inHunk = left > 0 || removed.some((count) => count > 0);
    if (inHunk && !text.startsWith('\\')) {
      const marks = text.slice(0, parents);
      if (marks.includes('-')) {
        removed = removed.map((count, i) => count - (marks[i] === '-' ? 1 : 0));
        continue;
      }
      left--;
      // A line that one parent has is that parent's, and was looked at there.
      if (!marks.includes(' ')) yield { commit, path, line, text: text.slice(parents) };
      removed = removed.map((count, i) => count - (marks[i] === ' ' ? 1 : 0));
      line++;
      continue;
    }
    const hunk = /^(@{2,})((?: -\d+(?:,\d+)?)+) \+(\d+)(?:,(\d+))? \1/.exec(text);
    if (hunk) {
      const [, marks = '', olds = '', start, count] = hunk;
      parents = marks.length - 1;
      removed = olds
        .trim()
        .split(' ')
        .map((old) => Number(old.split(',')[1] ?? 1));
      line = Number(start);
      left = Number(count ?? 1);
    } else if (text.startsWith('commit ')) {
      commit = text.slice('commit '.length);
    } else if (text.startsWith('+++ ')) {
      path = unquoted(text.slice('+++ '.length));
    }
  }
}

/** A path as git shows it: with a tab after it when it holds spaces, in quotes when it holds special characters. */
function unquoted(shown: string): string {
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
