/** The files that a push brings, read by one chain of processes however many there are. */
import { GitError, startGit } from '../processes/run.ts';
import { type Quarantined, seeing } from './walk.ts';

/** `path`: as Latin-1, the first that git met it at; empty where it lies in no commit. */
export type NewBlob = { oid: string; path: string; data: Buffer };

const NEWLINE = 10;

/**
 * One process of ours starts the chain, and the list does not pass through this one: starting a process holds the main
 * thread up. What stands behind an id in the list, which is the path, comes back with the contents. A shell has the status
 * of the last command alone, so a list that breaks off says so on standard error.
 */
const chain = (maxBytes: number) =>
  `!{ git rev-list --stdin --objects --filter=object:type=blob --filter=blob:limit=${maxBytes}` +
  ` --filter-provided-objects --not --all || echo broken off >&2; }` +
  ` | git cat-file --buffer '--batch=%(objectname) %(objectsize) %(rest)'`;

/**
 * The blobs of less than `maxBytes` that are reachable from `tips`, and from no ref yet, as they come; each once. Leaving
 * the loop ends the processes.
 * @throws GitError
 */
export async function* newBlobs(
  { dir, quarantine, signal }: Quarantined,
  tips: readonly string[],
  maxBytes: number,
): AsyncGenerator<NewBlob[]> {
  const config = { 'alias.new-blobs': chain(maxBytes) };
  const env = seeing(dir, quarantine);
  using process = await startGit(['new-blobs'], { dir, signal, config, env });
  process.stdin.end(tips.map((tip) => `${tip}\n`).join(''));
  const cutter = new Cutter();
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    const blobs = cutter.push(chunk);
    if (blobs.length > 0) yield blobs;
  }
  const ending = await process.ended;
  if (ending.code !== 0 || ending.stderr) throw new GitError('new-blobs', ending);
}

/** Cuts `<id> <size> <path>\n<contents>\n` out of the chunks they come in. */
class Cutter {
  /** What is not cut yet, and how long it must be for the next cut. */
  #rest: Buffer[] = [];
  #held = 0;
  #needed = 1;

  push(chunk: Buffer): NewBlob[] {
    this.#rest.push(chunk);
    this.#held += chunk.length;
    // Joined when there is something to cut, so that a large file is joined once.
    if (this.#held < this.#needed) return [];
    const all = this.#rest.length === 1 ? chunk : Buffer.concat(this.#rest);
    const blobs: NewBlob[] = [];
    let at = 0;
    for (;;) {
      const end = all.indexOf(NEWLINE, at);
      if (end < 0) {
        this.#needed = all.length - at + 1;
        break;
      }
      const [oid = '', size, ...path] = all.toString('latin1', at, end).split(' ');
      const next = end + 1 + Number(size) + 1;
      if (next > all.length) {
        this.#needed = next - at;
        break;
      }
      blobs.push({ oid, path: path.join(' '), data: all.subarray(end + 1, next - 1) });
      at = next;
    }
    this.#rest = at < all.length ? [all.subarray(at)] : [];
    this.#held = all.length - at;
    return blobs;
  }
}
