/** Reads one small file, and the message of the commit, at the tips of a push, which may still be in quarantine. */
import { isObjectId } from '../names.ts';
import { git, gitViaStarter } from '../processes/run.ts';
import { quarantineEnv, type RepositoryWithQuarantine } from './walk.ts';

export type PushedFile = {
  /** Null if the file is larger than the limit. */
  text: string | null;
  /** The message of the commit; empty if it is too large. */
  message: string;
};

type ObjectHeader = { oid: string; type: string; size: number };

/** A commit with a larger message is read as one without a message. */
const MAX_COMMIT_BYTES = 64 * 1024;

/** A tip that has the file. */
export type FoundFile = { tip: string; file: ObjectHeader; commit: ObjectHeader | null };

/**
 * Finds the tips that have the file, with one git process.
 * @param tips ids of commits or tags
 * @throws GitError
 */
export async function findPushedFiles(
  repository: RepositoryWithQuarantine,
  tips: readonly string[],
  path: string,
): Promise<FoundFile[]> {
  const headers = await readHeaders(repository, [
    ...tips.map((tip) => `${tip}:${path}`),
    ...tips.map((tip) => `${tip}^{commit}`),
  ]);
  return tips.flatMap((tip, i) => {
    const file = headers[i];
    return file?.type === 'blob' ? [{ tip, file, commit: headers[tips.length + i] ?? null }] : [];
  });
}

/** Reads the files, by tip. The caller limits their number. @throws GitError */
export async function readPushedFiles(
  repository: RepositoryWithQuarantine,
  found: readonly FoundFile[],
  maxBytes: number,
): Promise<Map<string, PushedFile>> {
  const wanted = found.flatMap(({ file, commit }) => [
    ...(file.size <= maxBytes ? [file.oid] : []),
    ...(commit && commit.size <= MAX_COMMIT_BYTES ? [commit.oid] : []),
  ]);
  const contents = await readContents(repository, [...new Set(wanted)]);
  const files = found.map(({ tip, file, commit }): [string, PushedFile] => {
    const text = commit ? (contents.get(commit.oid) ?? '') : '';
    const end = text.indexOf('\n\n');
    return [
      tip,
      { text: contents.get(file.oid) ?? null, message: end < 0 ? '' : text.slice(end + 2) },
    ];
  });
  return new Map(files);
}

/** Null for objects that do not exist. */
async function readHeaders(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  names: readonly string[],
): Promise<(ObjectHeader | null)[]> {
  const output = await gitViaStarter(['cat-file', '--batch-check'], {
    dir,
    signal,
    env: quarantineEnv(dir, quarantine),
    input: names.map((name) => `${name}\n`).join(''),
  });
  return output
    .toString()
    .split('\n')
    .slice(0, names.length)
    .map((line) => {
      const [oid = '', type = '', size] = line.split(' ');
      return isObjectId(oid) && size !== undefined ? { oid, type, size: Number(size) } : null;
    });
}

async function readContents(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  oids: readonly string[],
): Promise<Map<string, string>> {
  const contents = new Map<string, string>();
  if (oids.length === 0) return contents;
  const output = await git(['cat-file', '--batch'], {
    dir,
    signal,
    env: quarantineEnv(dir, quarantine),
    input: oids.map((oid) => `${oid}\n`).join(''),
  });
  // <id> <type> <size>\n<contents>\n
  for (let at = 0; at < output.length; ) {
    const end = output.indexOf('\n', at);
    const [oid = '', , size] = output.toString('latin1', at, end).split(' ');
    const start = end + 1;
    contents.set(oid, output.toString('utf8', start, start + Number(size)));
    at = start + Number(size) + 1;
  }
  return contents;
}
