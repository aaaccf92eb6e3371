/** The files that a push brings, read by one chain of processes however many there are. */
import { stat } from 'node:fs/promises';
import { GitError, startGit } from '../processes/run.ts';
import { noteObjects } from './known-objects.ts';
import { readSmallPack } from './small-pack.ts';
import type { Quarantined } from './walk.ts';

export type NewBlob = { oid: string; data: Buffer };

/** In bytes, both inclusive. */
export type Sizes = { min: number; max: number };

const NEWLINE = 10;

/**
 * All objects of the quarantine are listed, and the contents of the blobs among them read: of 10,000 commits in half the
 * time that a walk from their tips takes. One process of ours starts the chain, and the list does not pass through this
 * one: starting a process holds the main thread up. A shell has the status of the last command alone, so a list that
 * breaks off says so on standard error.
 */
const chain = ({ min, max }: Sizes) =>
  `!{ git cat-file --batch-all-objects --unordered` +
  ` '--batch-check=%(objecttype) %(objectsize) %(objectname)' || echo broken off >&2; }` +
  ` | awk '$1 == "blob" && $2 >= ${min} && $2 <= ${max} { print $3 }'` +
  ` | git cat-file --buffer '--batch=%(objectname) %(objectsize)'`;

/**
 * The blobs of these sizes in the packs of a quarantine, as they come; each once. Those of a small pack come without a
 * program. Some may be here already: the base of a delta comes with it. Leaving the loop ends the processes.
 * @throws GitError
 */
export async function* newBlobs(
  { dir, quarantine, signal }: Quarantined,
  sizes: Sizes,
): AsyncGenerator<NewBlob[]> {
  if (!quarantine) return;
  const small = readSmallPack(quarantine);
  // Of a repository that was deleted meanwhile git says so.
  if (small && (await isThere(dir))) {
    noteObjects(small);
    const blobs: NewBlob[] = [];
    for (const [oid, { type, data }] of small)
      if (type === 'blob' && data.length >= sizes.min && data.length <= sizes.max)
        blobs.push({ oid, data });
    if (blobs.length > 0) yield blobs;
    return;
  }
  const config = { 'alias.new-blobs': chain(sizes) };
  // Of the quarantine alone, without what it borrows.
  const env = { GIT_OBJECT_DIRECTORY: quarantine };
  using process = await startGit(['new-blobs'], { dir, signal, config, env });
  process.stdin.end();
  const cutter = new Cutter();
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    const blobs = cutter.push(chunk);
    if (blobs.length > 0) yield blobs;
  }
  const ending = await process.ended;
  if (ending.code !== 0 || ending.stderr) throw new GitError('new-blobs', ending);
}

function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

/** Cuts `<id> <size>\n<contents>\n` out of the chunks they come in. */
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
      const [oid = '', size] = all.toString('latin1', at, end).split(' ');
      const next = end + 1 + Number(size) + 1;
      if (next > all.length) {
        this.#needed = next - at;
        break;
      }
      blobs.push({ oid, data: all.subarray(end + 1, next - 1) });
      at = next;
    }
    this.#rest = at < all.length ? [all.subarray(at)] : [];
    this.#held = all.length - at;
    return blobs;
  }
}
