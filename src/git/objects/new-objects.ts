/** The objects that a push brings, read by one chain of processes however many there are. */
import { stat } from 'node:fs/promises';
import { GitError, startGit } from '../processes/run.ts';
import type { ObjectType } from './cat-file-answers.ts';
import { noteObjects } from './known-objects.ts';
import { readSmallPack } from './small-pack.ts';
import type { Quarantined } from './walk.ts';

export type NewObject = { type: ObjectType; oid: string; data: Buffer };

/** Which objects are read. The sizes are in bytes, both inclusive. */
export type Wanted = { types: readonly ObjectType[]; min: number; max: number };

const NEWLINE = 10;

/**
 * All objects of the quarantine are listed, and the contents of those that are wanted read: of 10,000 commits in half the
 * time that a walk from their tips takes. One process of ours starts the chain, and the list does not pass through this
 * one: starting a process holds the main thread up. A shell has the status of the last command alone, so a list that
 * breaks off says so on standard error.
 */
const chain = ({ types, min, max }: Wanted) =>
  `!{ git cat-file --batch-all-objects --unordered` +
  ` '--batch-check=%(objecttype) %(objectsize) %(objectname)' || echo broken off >&2; }` +
  ` | awk '$1 ~ /^(${types.join('|')})$/ && $2 >= ${min} && $2 <= ${max} { print $3 }'` +
  ` | git cat-file --buffer '--batch=%(objectname) %(objecttype) %(objectsize)'`;

/**
 * The wanted objects in the packs of a quarantine, as they come; each once. Those of a small pack come without a program.
 * Some may be here already: the base of a delta comes with it. Leaving the loop ends the processes.
 * @throws GitError
 */
export async function* newObjects(
  { dir, quarantine, signal }: Quarantined,
  wanted: Wanted,
): AsyncGenerator<NewObject[]> {
  if (!quarantine) return;
  const small = readSmallPack(quarantine);
  // Of a repository that was deleted meanwhile git says so.
  if (small && (await isThere(dir))) {
    noteObjects(small);
    const objects = [...small].map(([oid, object]) => ({ oid, ...object }));
    const found = objects.filter((object) => isWanted(wanted, object));
    if (found.length > 0) yield found;
    return;
  }
  const config = { 'alias.new-objects': chain(wanted) };
  // Of the quarantine alone, without what it borrows.
  const env = { GIT_OBJECT_DIRECTORY: quarantine };
  using process = await startGit(['new-objects'], { dir, signal, config, env });
  process.stdin.end();
  const cutter = new Cutter();
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    const objects = cutter.push(chunk);
    if (objects.length > 0) yield objects;
  }
  const ending = await process.ended;
  if (ending.code !== 0 || ending.stderr) throw new GitError('new-objects', ending);
}

export function isWanted({ types, min, max }: Wanted, { type, data }: NewObject): boolean {
  return types.includes(type) && data.length >= min && data.length <= max;
}

function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

/** Cuts `<id> <type> <size>\n<contents>\n` out of the chunks they come in. */
class Cutter {
  /** What is not cut yet, and how long it must be for the next cut. */
  #rest: Buffer[] = [];
  #held = 0;
  #needed = 1;

  push(chunk: Buffer): NewObject[] {
    this.#rest.push(chunk);
    this.#held += chunk.length;
    // Joined when there is something to cut, so that a large file is joined once.
    if (this.#held < this.#needed) return [];
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
    this.#held = all.length - at;
    return objects;
  }
}
