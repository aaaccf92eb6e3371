/** Who wrote the lines of a file. */
import { GitError, git } from '../processes/run.ts';

/** Lines in a row that one commit brought. Lines count from 1. */
export type BlamedLines = {
  sha: string;
  line: number;
  count: number;
  /** Where they stood in that commit. */
  oldPath: string;
  oldLine: number;
};

export type BlameOf = { commit: string; path: string; from: number; to: number };

const TIMEOUT_MS = 20_000;

/**
 * Of the lines from `from` to `to` of a file, as far as it has them; null when it is shorter than `from`.
 * @throws GitError also when it takes too long
 */
export async function blame(
  dir: string,
  { commit, path, from, to }: BlameOf,
): Promise<BlamedLines[] | null> {
  const args = ['blame', '--incremental', '-L', `${from},${to}`, commit, '--', path];
  try {
    const output = await git(args, { dir, timeoutMs: TIMEOUT_MS });
    return parse(output.toString()).sort((a, b) => a.line - b.line);
  } catch (error) {
    if (error instanceof GitError && /has only \d+ lines?$/m.test(error.stderr)) return null;
    throw error;
  }
}

/** Each entry begins with `<id> <line then> <line now> <count>`, has facts of the commit, and ends with its `filename`. */
function parse(output: string): BlamedLines[] {
  const all: BlamedLines[] = [];
  for (const text of output.split('\n')) {
    const [, sha = '', oldLine, line, count] =
      /^([0-9a-f]{40}) (\d+) (\d+) (\d+)$/.exec(text) ?? [];
    const last = all.at(-1);
    if (sha)
      all.push({
        sha,
        oldLine: Number(oldLine),
        line: Number(line),
        count: Number(count),
        oldPath: '',
      });
    else if (last && text.startsWith('filename ')) last.oldPath = text.slice('filename '.length);
  }
  return all;
}
