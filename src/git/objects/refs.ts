/** Lists branches and tags, and sets `HEAD`. */
import { readRefFiles } from '../disk/ref-files.ts';
import { git } from '../processes/run.ts';

export type Ref = {
  name: string;
  /** Commit id; for an annotated tag, the id of the tagged object. */
  sha: string;
  /** Id of the annotated tag object; null for all other refs. */
  tag: string | null;
};
export type RefKind = 'branch' | 'tag';

/** Prefix of full ref names. */
export const REF_PREFIX: Record<RefKind, string> = { branch: 'refs/heads/', tag: 'refs/tags/' };
const MAX_BYTES = 64 * 2 ** 20;

/**
 * Up to `limit` refs in the order of names, after the name `after.name`.
 *
 * `after.position` is the number of refs up to that name when the previous page was read. Git can only limit a list
 * from its beginning, so the position tells how many to list. If refs were added or removed since, all are listed.
 */
export async function listRefs(
  dir: string,
  kind: RefKind,
  { after, limit }: { after: { name: string; position: number } | null; limit: number },
): Promise<Ref[]> {
  const past = after ? Buffer.from(after.name) : null;
  const select = (refs: ListedRef[]) =>
    (past ? refs.filter(({ name }) => Buffer.compare(Buffer.from(name), past) > 0) : refs).slice(
      0,
      limit,
    );
  const count = (after?.position ?? 0) + limit;
  const first = await readFirstRefs(dir, kind, count);
  const page = select(first);
  if (page.length === limit || first.length < count) return peelNestedTags(dir, page);
  return peelNestedTags(dir, select(await readFirstRefs(dir, kind)));
}

/** `isNested`: the tag points to another tag, and `sha` is the id of that tag. Git before 2.45 peels only one level. */
type ListedRef = Ref & { isNested: boolean };

/** Replaces the ids of nested tags with the objects that they finally point to. */
async function peelNestedTags(dir: string, refs: readonly ListedRef[]): Promise<Ref[]> {
  const nested = refs.filter(({ isNested }) => isNested).map(({ sha }) => sha);
  const ends = new Map<string, string>();
  if (nested.length > 0) {
    const input = nested.map((sha) => `${sha}^{}\n`).join('');
    const output = await git(['cat-file', '--batch-check=%(objectname)'], { dir, input });
    for (const [i, line] of lines(output).entries()) ends.set(nested[i] as string, line);
  }
  return refs.map(({ name, sha, tag }) => ({ name, sha: ends.get(sha) ?? sha, tag }));
}

/** Sorted by the bytes of the names. */
async function readFirstRefs(dir: string, kind: RefKind, count?: number): Promise<ListedRef[]> {
  const prefix = REF_PREFIX[kind];
  const format = '--format=%(objectname) %(*objectname) %(*objecttype) %(refname)';
  const limit = count === undefined ? [] : [`--count=${count}`];
  const output = await git(['for-each-ref', format, ...limit, prefix], {
    dir,
    maxBytes: MAX_BYTES,
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

/** Object ids by full ref name, such as `refs/heads/main`. @throws as `git` */
export async function readAllRefs(dir: string): Promise<ReadonlyMap<string, string>> {
  const read = await readRefFiles(dir);
  if (read) return new Map([...read].map(([name, { id }]) => [name, id]));
  const format = '--format=%(objectname) %(refname)';
  const output = await git(['for-each-ref', format], { dir, maxBytes: MAX_BYTES });
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
