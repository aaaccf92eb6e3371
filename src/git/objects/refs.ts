/** Branches and tags. */
import { readRefFiles } from '../disk/ref-files.ts';
import { git } from '../processes/run.ts';

export type Ref = {
  name: string;
  /** Of the commit, also of an annotated tag. */
  sha: string;
  /** Of an annotated tag itself; null for all other refs. */
  tag: string | null;
};
export type RefKind = 'branch' | 'tag';

/** What the full names of such refs begin with. */
export const PREFIX: Record<RefKind, string> = { branch: 'refs/heads/', tag: 'refs/tags/' };
const MAX_BYTES = 64 * 2 ** 20;

/**
 * Up to `limit` refs by name, those after a name.
 *
 * `after.position` is how many stood up to that name when it was read. Git can only count from the beginning,
 * so it is what keeps it from listing all refs; where refs came or went since, all are listed.
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

/** `isNested`: its tag is one of a tag, and `sha` is that one's. Git before 2.45 follows no further. */
type ListedRef = Ref & { isNested: boolean };

/** With the objects that tags of tags lead to in the end. */
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

/** In the order of the names' bytes. */
async function readFirstRefs(dir: string, kind: RefKind, count?: number): Promise<ListedRef[]> {
  const prefix = PREFIX[kind];
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

/** All refs with what they point at: `refs/heads/main` → id. @throws as `git` */
export async function allRefs(dir: string): Promise<ReadonlyMap<string, string>> {
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

/** Makes `HEAD` name a branch, which need not exist. */
export async function setHead(dir: string, branch: string): Promise<void> {
  await git(['symbolic-ref', 'HEAD', `refs/heads/${branch}`], { dir });
}

function lines(output: Buffer): string[] {
  return output.toString().split('\n').filter(Boolean);
}
