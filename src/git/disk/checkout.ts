/**
 * A fresh checkout of one commit, for a job to work in.
 *
 * It is a repository of its own with that commit alone, as `git clone --depth 1` makes: two processes and
 * the cost of one tree, whatever the history holds. Objects are copied, neither linked nor borrowed: whoever
 * owns the checkout could write through a hard link into the pack that everybody reads.
 */
import { mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { git, gitLines } from '../processes/run.ts';

const TIMEOUT_MS = 10 * 60_000;
/** More take minutes to write and gigabytes of git's memory. Linux has 90,000, the largest known some millions. */
export const MAX_CHECKOUT_FILES = 1_000_000;
/** Of the paths of all files: git holds them in memory while it writes. */
const MAX_NAME_BYTES = 256 * 2 ** 20;
/** What a file takes of most disks, however small it is. */
const BLOCK = 4096;

export type CheckoutOptions = {
  /** The bare repository. */
  from: string;
  /** A full commit id. */
  sha: string;
  /** Made by us; its parent must exist. */
  to: string;
  /** What it may take of the disk, with the repository in it. */
  maxBytes: number;
  /** Bytes that the disk itself has left for it; what is on its way at the same time is not known. */
  room?: number;
  /** Files and folders. */
  maxFiles: number;
  signal?: AbortSignal;
};

/** There is more to check out than there may be; the message is for the one who wanted it. */
export class CheckoutTooLarge extends Error {
  override name = 'CheckoutTooLarge';
}

/**
 * Checks `sha` out with HEAD detached. No hooks run, no filters, and no credentials are left in it.
 * @throws CheckoutTooLarge, GitError when the commit or one of its objects is missing, Error when `to` exists.
 */
export async function checkOut(options: CheckoutOptions): Promise<void> {
  const { from, sha, to, signal } = options;
  const fileBytes = await measure(options);
  const gitdir = join(to, '.git');
  await mkdir(to);
  for (const folder of ['objects/info', 'objects/pack', 'refs/heads', 'refs/tags'])
    await mkdir(join(gitdir, folder), { recursive: true });
  await writeFile(join(gitdir, 'HEAD'), `${sha}\n`);
  await writeFile(join(gitdir, 'shallow'), `${sha}\n`);
  await writeFile(
    join(gitdir, 'config'),
    '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n',
  );
  const limits = { signal, timeoutMs: TIMEOUT_MS };
  const packs = join(gitdir, 'objects/pack');
  await git(
    // Deltas are copied as they lie, none are looked for: speed counts here, not size.
    ['pack-objects', '--revs', '--quiet', '--window=0', join(packs, 'pack')],
    {
      ...limits,
      dir: from,
      // Where git writes before it renames: the checkout may be on another disk than the repository.
      env: {
        GIT_OBJECT_DIRECTORY: join(gitdir, 'objects'),
        GIT_ALTERNATE_OBJECT_DIRECTORIES: join(from, 'objects'),
      },
      input: `--shallow ${sha}\n${sha}\n`,
    },
  );
  let bytes = fileBytes;
  for (const name of await readdir(packs)) bytes += (await stat(join(packs, name))).size;
  demandBytes(bytes, options);
  await git(['reset', '--hard', '--quiet'], { ...limits, cwd: to });
}

/**
 * The bytes that the files will take on the disk. They are summed before anything is written, because a push of
 * a few objects can make millions of files: each tree names the next one many times. The sum ends at the limits,
 * so it is bounded too.
 * @throws CheckoutTooLarge
 */
async function measure(options: CheckoutOptions): Promise<number> {
  const { from, sha } = options;
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  const maxFiles = Math.min(options.maxFiles, MAX_CHECKOUT_FILES);
  let files = 0;
  let nameBytes = 0;
  let bytes = 0;
  /** How often each object was named: its size is asked for once, as git opens a file for each answer. */
  let named = new Map<string, number>();
  const demandRoom = () => {
    if (files > maxFiles)
      throw new CheckoutTooLarge(`The checkout has more than ${maxFiles} files and folders`);
    if (nameBytes > MAX_NAME_BYTES)
      throw new CheckoutTooLarge('The paths of the files in the checkout are too long in all');
    demandBytes(Math.max(bytes, files * BLOCK), options);
  };
  const addSizes = async () => {
    const answers = await git(['cat-file', '--batch-check=%(objecttype) %(objectsize)'], {
      dir: from,
      signal,
      input: [...named.keys()].join('\n'),
    });
    const times = named.values();
    for (const answer of answers.toString().trimEnd().split('\n')) {
      // A submodule's commit is another repository's: it is "missing", and an empty folder here.
      const size = Number(/^blob (\d+)/.exec(answer)?.[1] ?? 0);
      bytes += (times.next().value ?? 0) * Math.max(1, Math.ceil(size / BLOCK)) * BLOCK;
    }
    named = new Map();
    demandRoom();
  };
  const args = ['ls-tree', '-r', '-t', '-z', '--full-tree', '--format=%(objectname) %(path)', sha];
  const entries = gitLines(args, { dir: from, signal }, { separator: '\0', encoding: 'latin1' });
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
  return bytes;
}

const CHECK_EVERY = 1_000;
const SIZES_AT_ONCE = 20_000;

function demandBytes(
  bytes: number,
  { maxBytes, room = Number.POSITIVE_INFINITY }: Pick<CheckoutOptions, 'maxBytes' | 'room'>,
): void {
  if (bytes > maxBytes)
    throw new CheckoutTooLarge(
      `The checkout is larger than the job's disk of ${Math.floor(maxBytes / 2 ** 30)} GB`,
    );
  if (bytes > room)
    throw new CheckoutTooLarge("The checkout is larger than what the server's disk has left");
}
