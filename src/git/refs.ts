/** Branches and tags. */
import { git } from './run.ts';

export type Ref = { name: string; sha: string };
export type RefKind = 'branch' | 'tag';

const PREFIX: Record<RefKind, string> = { branch: 'refs/heads/', tag: 'refs/tags/' };
const MAX_BYTES = 64 * 2 ** 20;

/** By name; `sha` is the commit, also of an annotated tag. */
export async function listRefs(
  dir: string,
  kind: RefKind,
  { offset, limit }: { offset: number; limit: number },
): Promise<Ref[]> {
  const prefix = PREFIX[kind];
  const format = '--format=%(objectname) %(*objectname) %(refname)';
  const args = ['for-each-ref', format, `--count=${offset + limit}`, prefix];
  const output = await git(args, { dir, maxBytes: MAX_BYTES });
  return lines(output)
    .slice(offset)
    .map((line) => {
      const [object = '', peeled = '', name = ''] = line.split(' ');
      return { sha: peeled || object, name: name.slice(prefix.length) };
    });
}

/** All refs with what they point at: `refs/heads/main` → id. */
export async function allRefs(dir: string): Promise<Map<string, string>> {
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
