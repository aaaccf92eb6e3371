/**
 * A fresh checkout of one commit, for a job to work in.
 *
 * It is a repository of its own with that commit alone, as `git clone --depth 1` makes: two processes and
 * the cost of one tree, whatever the history holds. Objects are copied, neither linked nor borrowed: whoever
 * owns the checkout could write through a hard link into the pack that everybody reads.
 *
 * The objects come out of a repository of this machine (`checkOut`), or as a pack that another server sends: it
 * measures and sends (`measure`, `sendPack`), this one takes the pack in (`checkOutReceived`).
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { LRUCache } from 'lru-cache';
import { GitError, gitApart, gitLines, SaidTooMuch, startGit } from '../processes/run.ts';

const TIMEOUT_MS = 10 * 60_000;
/** More take minutes to write and gigabytes of git's memory. Linux has 90,000, the largest known some millions. */
export const MAX_CHECKOUT_FILES = 1_000_000;
/** Of the paths of all files: git holds them in memory while it writes. */
const MAX_NAME_BYTES = 256 * 2 ** 20;
/** What a file takes of most disks, however small it is. */
const BLOCK = 4096;

/** Which commit of which repository. */
export type Source = {
  /** The bare repository. */
  from: string;
  /** A full commit id. */
  sha: string;
  signal?: AbortSignal;
};

export type Limits = {
  /** What it may take of the disk, with the repository in it. */
  maxBytes: number;
  /** Bytes that the disk itself has left for it; what is on its way at the same time is not known. */
  room?: number;
  /** Files and folders. */
  maxFiles: number;
};

export type Target = Limits & {
  sha: string;
  /** Made by us; its parent must exist. */
  to: string;
  signal?: AbortSignal;
};

/** There is more to check out than there may be; the message is for the one who wanted it. */
export class CheckoutTooLarge extends Error {
  override name = 'CheckoutTooLarge';
}

/** Deltas are copied as they lie, none are looked for: speed counts here, not size. */
const PACK = ['pack-objects', '--revs', '--quiet', '--window=0'];
/** What `PACK` reads: the commit, without its parents. */
const commitAlone = (sha: string) => `--shallow ${sha}\n${sha}\n`;

/**
 * Checks `sha` out with HEAD detached. No hooks run, no filters, and no credentials are left in it.
 * @returns the bytes that it takes of the disk
 * @throws CheckoutTooLarge, GitError when the commit or one of its objects is missing, Error when `to` exists.
 */
export async function checkOut(options: Target & Source): Promise<number> {
  const { from, sha, signal } = options;
  const fileBytes = await measure(options);
  return fill(options, fileBytes, (gitdir) =>
    gitApart([...PACK, join(gitdir, 'objects/pack/pack')], {
      signal,
      timeoutMs: TIMEOUT_MS,
      dir: from,
      // Where git writes before it renames: the checkout may be on another disk than the repository.
      env: {
        GIT_OBJECT_DIRECTORY: join(gitdir, 'objects'),
        GIT_ALTERNATE_OBJECT_DIRECTORIES: join(from, 'objects'),
      },
      input: commitAlone(sha),
    }),
  );
}

/**
 * As `checkOut`, with objects that come as `pack`, from `sendPack` on another machine.
 * @param fileBytes what `measure` said there
 * @throws as `checkOut`, and what `pack` throws: what came until then is never taken for a checkout
 */
export async function checkOutReceived(
  options: Target & { fileBytes: number; pack: AsyncIterable<Uint8Array> },
): Promise<number> {
  const { fileBytes, pack } = options;
  demandBytes(fileBytes, options);
  return fill(options, fileBytes, (gitdir) => receive(gitdir, options, fileBytes, pack));
}

/**
 * Writes the pack of a commit that `measure` has allowed. An output that closes ends it.
 * @throws GitError when the commit or one of its objects is missing, Error when the output closed early
 */
export async function sendPack({ from, sha, signal }: Source, output: Writable): Promise<void> {
  using process = await startGit([...PACK, '--stdout'], { dir: from, signal });
  process.stdin.end(commitAlone(sha));
  await pipeline(process.stdout, output, { end: false });
  const ending = await process.ended;
  if (ending.code !== 0) throw new GitError('pack-objects', ending);
}

/** A repository with this commit alone, whose pack `addPack` puts into it, and its files. */
async function fill(
  options: Target,
  fileBytes: number,
  addPack: (gitdir: string) => Promise<unknown>,
): Promise<number> {
  const { sha, to, signal } = options;
  const gitdir = makeRepository(to, sha);
  const packs = join(gitdir, 'objects/pack');
  await addPack(gitdir);
  let bytes = fileBytes;
  for (const name of await readdir(packs)) bytes += (await stat(join(packs, name))).size;
  demandBytes(bytes, options);
  await gitApart(['reset', '--hard', '--quiet'], { signal, timeoutMs: TIMEOUT_MS, cwd: to });
  return bytes;
}

/** The folder `to`, with a repository in which HEAD is the commit, and no object yet. @returns its git folder */
function makeRepository(to: string, sha: string): string {
  const gitdir = join(to, '.git');
  // At once: by Node's threads these few steps took 2 ms of a job's start.
  mkdirSync(to);
  // What git takes for a repository, and where the pack goes: it makes the others when it needs them.
  for (const folder of ['', 'objects', 'objects/pack', 'refs']) mkdirSync(join(gitdir, folder));
  const files = {
    HEAD: `${sha}\n`,
    shallow: `${sha}\n`,
    config: '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n',
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(gitdir, name), text);
  return gitdir;
}

async function receive(
  gitdir: string,
  { signal, ...limits }: Target,
  fileBytes: number,
  pack: AsyncIterable<Uint8Array>,
): Promise<void> {
  using process = await startGit(['index-pack', '--stdin'], { dir: gitdir, signal });
  let bytes = fileBytes;
  let failure: unknown;
  const bounded = async function* () {
    try {
      for await (const chunk of pack) {
        bytes += chunk.length;
        demandBytes(bytes, limits);
        yield chunk;
      }
    } catch (error) {
      failure = error;
      process.end();
      throw error;
    }
  };
  process.stdout.resume();
  // Where git fails it says why itself, and reads no more.
  await pipeline(bounded, process.stdin).catch(() => {});
  const ending = await process.ended;
  if (failure) throw failure;
  if (ending.code !== 0) throw new GitError('index-pack', ending);
}

/**
 * The bytes that the files will take on the disk. They are summed before anything is written, because a push of
 * a few objects can make millions of files: each tree names the next one many times. The sum ends at the limits,
 * so it is bounded too.
 * @throws CheckoutTooLarge
 */
export async function measure(options: Source & Limits): Promise<number> {
  const { from, sha } = options;
  const known = measured.get(sha);
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let { files, nameBytes, bytes } = known ?? { files: 0, nameBytes: 0, bytes: 0 };
  /** How often each object was named: its size is asked for once, as git opens a file for each answer. */
  let named = new Map<string, number>();
  const demandRoom = () => {
    demandFiles(files, options);
    if (nameBytes > MAX_NAME_BYTES)
      throw new CheckoutTooLarge('The paths of the files in the checkout are too long in all');
    demandBytes(Math.max(bytes, files * BLOCK), options);
  };
  if (known) {
    demandRoom();
    return bytes;
  }
  const addSizes = async () => {
    const answers = await gitApart(['cat-file', '--batch-check=%(objecttype) %(objectsize)'], {
      dir: from,
      signal,
      input: [...named.keys()].join('\n'),
    });
    const times = named.values();
    for (const answer of answers.toString().trimEnd().split('\n')) {
      // A submodule's commit is another repository's: it is "missing", and an empty folder here.
      const size = Number(/^blob (\d+)/.exec(answer)?.[1] ?? 0);
      bytes += (times.next().value ?? 0) * bytesOnDisk(size);
    }
    named = new Map();
    demandRoom();
  };
  const args = ['ls-tree', '-r', '-t', '-z', '--full-tree', '--format=%(objectname) %(path)', sha];
  const entries = piecesOf(args, { dir: from, signal });
  for await (const entry of entries) {
    const space = entry.indexOf(' ');
    const oid = entry.slice(0, space);
    files++;
    nameBytes += entry.length - space;
    named.set(oid, (named.get(oid) ?? 0) + 1);
    if (files % CHECK_EVERY === 0) demandRoom();
    if (named.size >= SIZES_AT_ONCE) await addSizes();
  }
  demandRoom();
  if (named.size > 0) await addSizes();
  measured.set(sha, { files, nameBytes, bytes });
  return bytes;
}

/** Of commits that were within the limits of whoever asked. Many jobs run the same one, and it never changes. */
const measured = new LRUCache<string, { files: number; nameBytes: number; bytes: number }>({
  max: 1_000,
});

/** What ends with a NUL. A short list comes whole, which is quicker; a long one as it is made. */
async function* piecesOf(
  args: readonly string[],
  options: { dir: string; signal: AbortSignal },
): AsyncGenerator<string> {
  let short: Buffer;
  try {
    short = await gitApart(args, { ...options, maxBytes: SHORT_LIST_BYTES });
  } catch (error) {
    if (!(error instanceof SaidTooMuch)) throw error;
    yield* gitLines(args, options, { separator: '\0', encoding: 'latin1' });
    return;
  }
  for (const piece of short.toString('latin1').split('\0')) if (piece) yield piece;
}

const SHORT_LIST_BYTES = 256 * 1024;
const CHECK_EVERY = 1_000;
const SIZES_AT_ONCE = 20_000;

/** What a file of that size takes of most disks. */
function bytesOnDisk(size: number): number {
  return Math.max(1, Math.ceil(size / BLOCK)) * BLOCK;
}

/** @throws CheckoutTooLarge when a checkout of so many files and folders has more than it may */
function demandFiles(count: number, limits: Pick<Limits, 'maxFiles'>): void {
  const maxFiles = Math.min(limits.maxFiles, MAX_CHECKOUT_FILES);
  if (count > maxFiles)
    throw new CheckoutTooLarge(`The checkout has more than ${maxFiles} files and folders`);
}

/** @throws CheckoutTooLarge when a checkout of so many bytes takes more than it may */
export function demandBytes(
  bytes: number,
  { maxBytes, room = Number.POSITIVE_INFINITY }: Pick<Limits, 'maxBytes' | 'room'>,
): void {
  if (bytes > maxBytes)
    throw new CheckoutTooLarge(
      `The checkout is larger than the job's disk of ${Math.floor(maxBytes / 2 ** 30)} GB`,
    );
  if (bytes > room)
    throw new CheckoutTooLarge("The checkout is larger than what the server's disk has left");
}
