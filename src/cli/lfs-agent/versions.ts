/** Finds earlier versions of large files in the commits that are being pushed. */
import { git } from '../git.ts';

/** What a pointer of git-lfs names. Size in bytes. */
export type LargeObject = { oid: string; size: number };

const MAX_COMMITS = 2_000;
/** A push must not wait long for what only saves time. */
const TIMEOUT_MS = 20_000;
/** Of versions of a file that the server may have. */
const MAX_CANDIDATES = 4;
const MAX_POINTER_BYTES = 1_024;
const CHANGED_BLOB = /^:\d+ \d+ ([0-9a-f]+) ([0-9a-f]+) M\t/gm;
const POINTER =
  /^([0-9a-f]{40,64}) blob \d+\nversion https:\/\/git-lfs\.github\.com\/spec\/v1\n(?:ext-.*\n)*oid sha256:([0-9a-f]{64})\nsize (\d{1,15})$/gm;

export class EarlierVersions {
  /** The versions that each object has replaced at the same path. */
  readonly #replaced = new Map<string, LargeObject[]>();

  /**
   * Reads the changes of commits that the remote does not have, as far as its remote-tracking branches tell, and the
   * difference between the upstream branch and HEAD, for amended and rebased commits.
   * @param remote name or URL
   * @throws GitError
   */
  static async read(remote: string): Promise<EarlierVersions> {
    const versions = new EarlierVersions();
    const known = /^[\w.-]+$/.test(remote) ? `--remotes=${remote}` : '--remotes';
    const raw = ['--raw', '--no-abbrev', '--no-renames', '--diff-filter=M', '--ignore-submodules'];
    const tips = ['--branches', '--tags', 'HEAD', '--not', known];
    const inCommits = await run(['log', '--format=', `-n${MAX_COMMITS}`, ...raw, ...tips]);
    const inTotal = await run(['diff-tree', '-r', ...raw, '@{upstream}', 'HEAD'], {
      mayFail: true,
    });
    const changes = [...`${inCommits}\n${inTotal ?? ''}`.matchAll(CHANGED_BLOB)].map(
      ([, from = '', to = '']) => ({ from, to }),
    );
    const pointers = await readPointers([
      ...new Set(changes.flatMap(({ from, to }) => [from, to])),
    ]);
    for (const { from, to } of changes) {
      const [older, newer] = [pointers.get(from), pointers.get(to)];
      if (older && newer) versions.#add(newer.oid, older);
    }
    return versions;
  }

  #add(oid: string, replaced: LargeObject): void {
    const known = this.#replaced.get(oid) ?? [];
    if (!known.some((one) => one.oid === replaced.oid)) known.push(replaced);
    this.#replaced.set(oid, known);
  }

  /** Earlier versions of an object, the latest first: the one before may be part of the same push. */
  of(oid: string): LargeObject[] {
    const found: LargeObject[] = [];
    const visited = new Set([oid]);
    for (let level = [oid]; level.length > 0 && found.length < MAX_CANDIDATES; ) {
      const older = level.flatMap((one) => this.#replaced.get(one) ?? []);
      const fresh = older.filter((one) => !visited.has(one.oid) && visited.add(one.oid));
      found.push(...fresh);
      level = fresh.map((one) => one.oid);
    }
    return found.slice(0, MAX_CANDIDATES);
  }
}

/** @param blobs ids of blobs of any size @returns the pointers among them, by blob id */
async function readPointers(blobs: readonly string[]): Promise<Map<string, LargeObject>> {
  const sizes = await run(['cat-file', '--batch-check=%(objectname) %(objectsize)'], {
    input: blobs.map((blob) => `${blob}\n`).join(''),
  });
  const small = sizes
    .split('\n')
    .map((line) => line.split(' '))
    // A missing blob has the word "missing" in place of its size.
    .filter(([, size]) => Number(size) > 0 && Number(size) <= MAX_POINTER_BYTES);
  const contents = await run(['cat-file', '--batch'], {
    input: small.map(([blob]) => `${blob}\n`).join(''),
  });
  return new Map(
    [...contents.matchAll(POINTER)].map(([, blob = '', oid = '', size]) => [
      blob,
      { oid, size: Number(size) },
    ]),
  );
}

type RunOptions = { input?: string };

function run(args: readonly string[], options?: RunOptions): Promise<string>;
function run(
  args: readonly string[],
  options: RunOptions & { mayFail: true },
): Promise<string | null>;
function run(args: readonly string[], options: RunOptions & { mayFail?: true } = {}) {
  // In a partial clone, an earlier version is not worth a download.
  const env = { GIT_NO_LAZY_FETCH: '1' };
  return git(args, { ...options, env, timeoutMs: TIMEOUT_MS } as { mayFail: true });
}
