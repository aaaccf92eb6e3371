/** Lists and reads the objects of a push with two git processes, whatever their number. */
import { pipeline } from 'node:stream/promises';
import { GitError, gitLines, startGit } from '../processes/run.ts';
import type { ObjectType } from './cat-file.ts';
import type { RepositoryWithQuarantine } from './walk.ts';

export type NewObject = { type: ObjectType; oid: string; data: Buffer };

/** Selects objects by type and size; both limits are inclusive. */
export type ObjectFilter = {
  types: readonly ObjectType[];
  minBytes: number;
  maxBytes: number;
};

const NEWLINE = 10;
/** Ids are written to git in batches of this size. */
const BATCH_BYTES = 16_384;

/** Lists all objects of the quarantine, which for 10,000 commits is twice as fast as a walk from their tips. */
const LIST_ARGS = [
  'cat-file',
  '--batch-all-objects',
  '--unordered',
  '--batch-check=%(objecttype) %(objectsize) %(objectname)',
];
const READ_ARGS = ['cat-file', '--buffer', '--batch=%(objectname) %(objecttype) %(objectsize)'];

/**
 * Yields each object that matches the filter in the packs of a quarantine once, in batches as they arrive. Some objects
 * may exist in the repository already, because packs also contain bases of deltas. Leaving the loop ends the processes.
 * @throws GitError
 */
export async function* readNewObjects(
  { dir, quarantine, signal }: RepositoryWithQuarantine,
  filter: ObjectFilter,
): AsyncGenerator<NewObject[]> {
  if (!quarantine) return;
  // Reads the quarantine alone, without the objects of the repository.
  const options = { dir, signal, env: { GIT_OBJECT_DIRECTORY: quarantine } };
  const ids = listMatchingIds(gitLines(LIST_ARGS, options), filter);
  try {
    // Most small pushes have no matching object, so the second process is not started.
    const first = await ids.next();
    if (first.done) return;
    using process = await startGit(READ_ARGS, options);
    const feeding = pipeline(async function* () {
      yield first.value;
      yield* ids;
    }, process.stdin).catch((error: Error) => {
      process.end();
      return error;
    });
    const splitter = new ObjectSplitter();
    for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
      const objects = splitter.push(chunk);
      if (objects.length > 0) yield objects;
    }
    const [failure, ending] = await Promise.all([feeding, process.ended]);
    if (failure instanceof GitError) throw failure;
    if (ending.code !== 0) throw new GitError('cat-file', ending);
    if (failure) throw failure;
  } finally {
    await ids.return(undefined);
  }
}

export function matchesFilter(
  { types, minBytes, maxBytes }: ObjectFilter,
  type: ObjectType,
  size: number,
): boolean {
  return types.includes(type) && size >= minBytes && size <= maxBytes;
}

/** Selects ids from lines of `<type> <size> <id>`. Yields batches of one id per line. */
async function* listMatchingIds(
  lines: AsyncIterable<string>,
  filter: ObjectFilter,
): AsyncGenerator<string, undefined> {
  let ids = '';
  for await (const line of lines) {
    const [type, size, oid] = line.split(' ');
    if (!matchesFilter(filter, type as ObjectType, Number(size))) continue;
    ids += `${oid}\n`;
    if (ids.length < BATCH_BYTES) continue;
    yield ids;
    ids = '';
  }
  if (ids) yield ids;
}

/** Splits chunks of output into objects: `<id> <type> <size>\n<contents>\n`. */
class ObjectSplitter {
  /** Bytes of incomplete objects, their number, and the number needed for the next object. */
  #rest: Buffer[] = [];
  #bytes = 0;
  #needed = 1;

  push(chunk: Buffer): NewObject[] {
    this.#rest.push(chunk);
    this.#bytes += chunk.length;
    // Chunks are joined only when an object is complete, so that a large file is joined once.
    if (this.#bytes < this.#needed) return [];
    const all = this.#rest.length === 1 ? chunk : Buffer.concat(this.#rest);
    const objects: NewObject[] = [];
    let at = 0;
    for (;;) {
      const end = all.indexOf(NEWLINE, at);
      if (end < 0) {
        this.#needed = all.length - at + 1;
        break;
      }
      const [oid = '', type, size] = all.toString('latin1', at, end).split(' ');
      const next = end + 1 + Number(size) + 1;
      if (next > all.length) {
        this.#needed = next - at;
        break;
      }
      objects.push({ oid, type: type as ObjectType, data: all.subarray(end + 1, next - 1) });
      at = next;
    }
    this.#rest = at < all.length ? [all.subarray(at)] : [];
    this.#bytes = all.length - at;
    return objects;
  }
}
