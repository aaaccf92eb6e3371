/**
 * A fresh checkout of one commit for a job to work in: a repository of its own that holds only this commit, like `git
 * clone --depth 1`. It takes two processes and the cost of one tree, however long the history is.
 *
 * Objects are copied, not hard-linked or borrowed, because a job could write through a hard link into the pack that all
 * readers use. Objects come from a repository on this machine (`checkOut`), or as a pack from another server, which
 * runs `measure` and `sendPack` while this server runs `checkOutReceived`.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join, posix } from 'node:path';
import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { LRUCache } from 'lru-cache';
import { GitError, gitLines, gitViaStarter, OutputTooLarge, startGit } from '../processes/run.ts';

const TIMEOUT_MS = 10 * 60_000;
/**
 * Larger checkouts take minutes to write and gigabytes of git's memory. Linux has 90,000 files, the largest known
 * repositories some millions.
 */
const MAX_CHECKOUT_FILES = 1_000_000;
/** Limit for the total length of all file paths, because git holds them in memory while it writes the checkout. */
const MAX_PATHS_BYTES = 256 * 2 ** 20;
/** Disk block size: the minimum that a file takes on most disks. */
const BLOCK_BYTES = 4096;

type CheckoutSource = {
  /** The bare repository. */
  from: string;
  /** A full commit id. */
  sha: string;
  signal?: AbortSignal;
};

export type CheckoutLimits = {
  /** Disk space that the checkout may take, including its repository. */
  maxBytes: number;
  /** Free bytes on the disk. Checkouts that are being written at the same time are not subtracted. */
  room?: number;
  /** Files and folders. */
  maxFiles: number;
};

type Target = CheckoutLimits & {
  sha: string;
  /** Created here; its parent must exist. */
  to: string;
  signal?: AbortSignal;
};

/** The checkout exceeds a limit. The message is for the user who requested the checkout. */
export class CheckoutTooLarge extends Error {
  override name = 'CheckoutTooLarge';
}

/** Existing deltas are copied and no new ones are searched for, because speed matters here and size does not. */
const PACK = ['pack-objects', '--revs', '--quiet', '--window=0'];
/** Input of `PACK`: the commit without its parents. */
const commitAlone = (sha: string) => `--shallow ${sha}\n${sha}\n`;

/**
 * Checks `sha` out with HEAD detached. Runs no hooks and no filters, and stores no credentials in the checkout.
 * @returns the bytes that the checkout takes on disk
 * @throws CheckoutTooLarge, GitError when the commit or one of its objects is missing, Error when `to` exists.
 */
export async function checkOut(options: Target & CheckoutSource): Promise<number> {
  const { from, sha, signal } = options;
  const fileBytes = await measure(options);
  return writeCheckout(options, fileBytes, (gitdir) =>
    gitViaStarter([...PACK, join(gitdir, 'objects/pack/pack')], {
      signal,
      timeoutMs: TIMEOUT_MS,
      dir: from,
      // Git writes here before it renames, because the checkout may be on another disk than the repository.
      env: {
        GIT_OBJECT_DIRECTORY: join(gitdir, 'objects'),
        GIT_ALTERNATE_OBJECT_DIRECTORIES: join(from, 'objects'),
      },
      input: commitAlone(sha),
    }),
  );
}

/**
 * Like `checkOut`, but reads the objects from `pack`, which `sendPack` on another machine produces.
 * @param fileBytes the result of `measure` on that machine
 * @throws like `checkOut`, and errors of `pack`: an incomplete pack never becomes a checkout
 */
export async function checkOutReceived(
  options: Target & { fileBytes: number; pack: AsyncIterable<Uint8Array> },
): Promise<number> {
  const { fileBytes, pack } = options;
  checkSize(fileBytes, options);
  return writeCheckout(options, fileBytes, (gitdir) => indexPack(gitdir, options, fileBytes, pack));
}

/**
 * Writes the pack of a commit that `measure` has accepted. Stops when the output closes.
 * @throws GitError when the commit or one of its objects is missing, Error when the output closed early
 */
export async function sendPack(
  { from, sha, signal }: CheckoutSource,
  output: Writable,
): Promise<void> {
  using process = await startGit([...PACK, '--stdout'], { dir: from, signal });
  process.stdin.end(commitAlone(sha));
  await pipeline(process.stdout, output, { end: false });
  const ending = await process.ended;
  if (ending.code !== 0) throw new GitError('pack-objects', ending);
}

/**
 * The object ids of files and folders of the commit that a checkout has. Paths that do not exist are omitted.
 * @param dir a checkout in which no job has run
 */
export async function hashPaths(
  dir: string,
  paths: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const path of paths) {
    const name = posix.normalize(path).replace(/\/$/, '');
    const args = ['--literal-pathspecs', 'ls-tree', '-z', 'HEAD', '--', name];
    const listed = await gitViaStarter(args, { cwd: dir, signal });
    const [, id] = /^\d+ \w+ ([0-9a-f]+)\t/.exec(listed.toString()) ?? [];
    if (id !== undefined) found.set(path, id);
  }
  return found;
}

/** Creates a repository that holds only this commit, adds the pack with `addPack`, and writes the files. */
async function writeCheckout(
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
  checkSize(bytes, options);
  await gitViaStarter(['reset', '--hard', '--quiet'], { signal, timeoutMs: TIMEOUT_MS, cwd: to });
  return bytes;
}

/** Creates the folder `to` with an empty repository whose HEAD is the commit. @returns its git folder */
function makeRepository(to: string, sha: string): string {
  const gitdir = join(to, '.git');
  // Synchronous, because through Node's thread pool these few steps took 2 ms of a job's start.
  mkdirSync(to);
  // The folders that git requires in a repository, and the folder for the pack. Git creates the others when it needs
  // them.
  for (const folder of ['', 'objects', 'objects/pack', 'refs']) mkdirSync(join(gitdir, folder));
  const files = {
    HEAD: `${sha}\n`,
    shallow: `${sha}\n`,
    config: '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n',
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(gitdir, name), text);
  return gitdir;
}

async function indexPack(
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
        checkSize(bytes, limits);
        yield chunk;
      }
    } catch (error) {
      failure = error;
      process.end();
      throw error;
    }
  };
  process.stdout.resume();
  // Git closes its input when it fails; `process.ended` has the reason.
  await pipeline(bounded, process.stdin).catch(() => {});
  const ending = await process.ended;
  if (failure) throw failure;
  if (ending.code !== 0) throw new GitError('index-pack', ending);
}

/**
 * Returns the bytes that the files will take on disk. They are summed before any file is written, because a push of a
 * few objects can expand to millions of files, if each tree refers to the next tree many times. The sum stops at the
 * limits, so its cost is bounded too. The `sha` may be followed by a colon and the path of a folder.
 * @throws CheckoutTooLarge
 */
export async function measure(options: CheckoutSource & CheckoutLimits): Promise<number> {
  const { from, sha } = options;
  const known = measuredCommits.get(sha);
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let { files, nameBytes, bytes } = known ?? { files: 0, nameBytes: 0, bytes: 0 };
  /** How often each object occurs. Its size is queried once, because git opens a file for each answer. */
  let occurrences = new Map<string, number>();
  const checkLimits = () => {
    checkFileCount(files, options);
    if (nameBytes > MAX_PATHS_BYTES)
      throw new CheckoutTooLarge('The paths of the files in the checkout are too long in total');
    checkSize(Math.max(bytes, files * BLOCK_BYTES), options);
  };
  if (known) {
    checkLimits();
    return bytes;
  }
  const addSizes = async () => {
    const answers = await gitViaStarter(['cat-file', '--batch-check=%(objecttype) %(objectsize)'], {
      dir: from,
      signal,
      input: [...occurrences.keys()].join('\n'),
    });
    const times = occurrences.values();
    for (const answer of answers.toString().trimEnd().split('\n')) {
      // A submodule's commit belongs to another repository: git reports it as "missing", and the checkout has an empty
      // folder.
      const size = Number(/^blob (\d+)/.exec(answer)?.[1] ?? 0);
      bytes += (times.next().value ?? 0) * bytesOnDisk(size);
    }
    occurrences = new Map();
    checkLimits();
  };
  const args = ['ls-tree', '-r', '-t', '-z', '--full-tree', '--format=%(objectname) %(path)', sha];
  const entries = readRecords(args, { dir: from, signal });
  for await (const entry of entries) {
    const space = entry.indexOf(' ');
    const oid = entry.slice(0, space);
    files++;
    nameBytes += entry.length - space;
    occurrences.set(oid, (occurrences.get(oid) ?? 0) + 1);
    if (files % CHECK_EVERY === 0) checkLimits();
    if (occurrences.size >= SIZES_AT_ONCE) await addSizes();
  }
  checkLimits();
  if (occurrences.size > 0) await addSizes();
  measuredCommits.set(sha, { files, nameBytes, bytes });
  return bytes;
}

/**
 * Measurements of commits that were within the caller's limits. Many jobs use the same commit, and a commit never
 * changes.
 */
const measuredCommits = new LRUCache<string, { files: number; nameBytes: number; bytes: number }>({
  max: 1_000,
});

/** Yields NUL-terminated records. A short list is read whole, which is faster; a long list is streamed. */
async function* readRecords(
  args: readonly string[],
  options: { dir: string; signal: AbortSignal },
): AsyncGenerator<string> {
  let short: Buffer;
  try {
    short = await gitViaStarter(args, { ...options, maxBytes: SHORT_LIST_BYTES });
  } catch (error) {
    if (!(error instanceof OutputTooLarge)) throw error;
    yield* gitLines(args, options, { separator: '\0', encoding: 'latin1' });
    return;
  }
  for (const piece of short.toString('latin1').split('\0')) if (piece) yield piece;
}

const SHORT_LIST_BYTES = 256 * 1024;
const CHECK_EVERY = 1_000;
const SIZES_AT_ONCE = 20_000;

/** Returns the disk space that a file of this size takes on most disks. */
function bytesOnDisk(size: number): number {
  return Math.max(1, Math.ceil(size / BLOCK_BYTES)) * BLOCK_BYTES;
}

/** @throws CheckoutTooLarge when the number of files and folders exceeds the limit */
function checkFileCount(count: number, limits: Pick<CheckoutLimits, 'maxFiles'>): void {
  const maxFiles = Math.min(limits.maxFiles, MAX_CHECKOUT_FILES);
  if (count > maxFiles)
    throw new CheckoutTooLarge(`The checkout has more than ${maxFiles} files and folders`);
}

/** @throws CheckoutTooLarge when the checkout takes more bytes than the limit */
export function checkSize(
  bytes: number,
  { maxBytes, room = Number.POSITIVE_INFINITY }: Pick<CheckoutLimits, 'maxBytes' | 'room'>,
): void {
  if (bytes > maxBytes)
    throw new CheckoutTooLarge(
      `The checkout is larger than the job's disk of ${Math.floor(maxBytes / 2 ** 30)} GB`,
    );
  if (bytes > room)
    throw new CheckoutTooLarge("The checkout is larger than the free space on the server's disk");
}
