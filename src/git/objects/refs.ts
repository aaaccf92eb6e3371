/** Lists branches and tags, and sets `HEAD`. */
import { readRefFiles } from '../disk/ref-files.ts';
import { git } from '../processes/run.ts';

export type Ref = {
  /** Without the prefix, such as `main`. */
  name: string;
  /** Id of the object that the ref points to, usually a commit; for an annotated tag, of the tagged object. */
  sha: string;
  /** Id of the annotated tag object; null for all other refs. */
  tag: string | null;
};
export type RefKind = 'branch' | 'tag';

/** Prefix of full ref names. */
export const REF_PREFIX: Record<RefKind, string> = { branch: 'refs/heads/', tag: 'refs/tags/' };
/** Prefix of refs that are neither listed nor fetched: only the server's features use them. */
export const HIDDEN_PREFIX = 'refs/loam/';
const MAX_OUTPUT_BYTES = 64 * 2 ** 20;

/**
 * Returns up to `limit` refs that follow `after.name`, sorted by name.
 *
 * Git cannot start a list in the middle. `after.position` is how many refs preceded this page, including `after.name`,
 * when the previous page was read. So `position + limit` refs are listed first, and all refs only if that list does not
 * have the whole page, because refs were added since.
 */
export async function listRefs(
  dir: string,
  kind: RefKind,
  { after, limit }: { after: { name: string; position: number } | null; limit: number },
): Promise<Ref[]> {
  const afterName = after ? Buffer.from(after.name) : null;
  const takePage = (refs: ListedRef[]) => {
    const isAfter = ({ name }: ListedRef) =>
      !afterName || Buffer.compare(Buffer.from(name), afterName) > 0;
    return refs.filter(isAfter).slice(0, limit);
  };
  const count = (after?.position ?? 0) + limit;
  const firstRefs = await readRefs(dir, kind, count);
  const page = takePage(firstRefs);
  // Fewer refs than requested are all refs of the repository.
  if (page.length === limit || firstRefs.length < count) return peelNestedTags(dir, page);
  return peelNestedTags(dir, takePage(await readRefs(dir, kind)));
}

/** `isNested`: the tag points to another tag, and `sha` is the id of that tag. */
type ListedRef = Ref & { isNested: boolean };

/**
 * Replaces the ids of nested tags with the objects that they finally point to: git before 2.45 peels only one level.
 */
async function peelNestedTags(dir: string, refs: readonly ListedRef[]): Promise<Ref[]> {
  const nested = refs.filter(({ isNested }) => isNested).map(({ sha }) => sha);
  const peeled = new Map<string, string>();
  if (nested.length > 0) {
    const input = nested.map((sha) => `${sha}^{}\n`).join('');
    const output = await git(['cat-file', '--batch-check=%(objectname)'], { dir, input });
    for (const [i, line] of lines(output).entries()) peeled.set(nested[i] as string, line);
  }
  return refs.map(({ name, sha, tag }) => ({ name, sha: peeled.get(sha) ?? sha, tag }));
}

/** Reads refs with `git for-each-ref`, sorted by the bytes of their names; with `count`, only the first ones. */
async function readRefs(dir: string, kind: RefKind, count?: number): Promise<ListedRef[]> {
  const prefix = REF_PREFIX[kind];
  const format = '--format=%(objectname) %(*objectname) %(*objecttype) %(refname)';
  const limit = count === undefined ? [] : [`--count=${count}`];
  const output = await git(['for-each-ref', format, ...limit, prefix], {
    dir,
    maxBytes: MAX_OUTPUT_BYTES,
  });
  return lines(output).map((line) => {
    const [object = '', target = '', type = '', name = ''] = line.split(' ');
    return {
      sha: target || object,
      tag: target ? object : null,
      name: name.slice(prefix.length),
      isNested: type === 'tag',
    };
  });
}

/** Reads the object ids of all refs by full name, such as `refs/heads/main`. @throws as `git` */
export async function readAllRefs(dir: string): Promise<ReadonlyMap<string, string>> {
  const read = await readRefFiles(dir);
  if (read) return new Map([...read].map(([name, { id }]) => [name, id]));
  const format = '--format=%(objectname) %(refname)';
  const output = await git(['for-each-ref', format], { dir, maxBytes: MAX_OUTPUT_BYTES });
  return new Map(
    lines(output).map((line) => {
      const [sha = '', name = ''] = line.split(' ');
      return [name, sha];
    }),
  );
}

/** Sets `HEAD` to a branch, which need not exist. */
export async function setHead(dir: string, branch: string): Promise<void> {
  await git(['symbolic-ref', 'HEAD', `refs/heads/${branch}`], { dir });
}

function lines(output: Buffer): string[] {
  return output.toString().split('\n').filter(Boolean);
}
