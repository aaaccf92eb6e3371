/** Writes a downloaded file below a folder, and continues where an earlier transfer ended. Only in Node. */
import type * as FileSystem from 'node:fs/promises';
import { DownloadRecord } from './download-record.ts';
import { LoamError } from './errors.ts';
import { Backoff, type RetryOptions } from './retry.ts';
import { chunksOf, unreachable } from './transport.ts';

export type ArtifactFile = {
  /** Relative to the `outputPath` of the job, with slashes. */
  path: string;
  sizeBytes: number;
  /** A link that works for 15 minutes without credentials. */
  downloadUrl: string;
};

/**
 * Why a file was not written: git would take a part of its path for `.git`, or the file for the `HEAD` of a repository, or a
 * file or link has its name that no earlier download wrote.
 */
export type LeftOutReason = 'git_folder' | 'exists';

type Transfer = RetryOptions & {
  /** Replaces files that no earlier download wrote. */
  force: boolean;
  send(
    url: string,
    init: { headers: Record<string, string>; signal?: AbortSignal | undefined },
  ): Promise<Response>;
  /** Reads the file's entry again, because its link has expired. */
  renew(): Promise<ArtifactFile>;
  onBytes(bytes: number): void;
};

/** A folder of the local file system, into which files are downloaded. */
export class DownloadFolder {
  readonly #fs: typeof FileSystem;
  readonly #root: string;
  readonly #record: DownloadRecord;

  private constructor(fs: typeof FileSystem, root: string, record: DownloadRecord) {
    this.#fs = fs;
    this.#root = root;
    this.#record = record;
  }

  /** Creates the folder if it is missing. */
  static async open(path: string): Promise<DownloadFolder> {
    // Browsers have no such module, and load this library, too.
    const fs = await import('node:fs/promises');
    const { dirname, resolve } = await import('node:path');
    const make = async (folder: string): Promise<void> => {
      const error = await fs.mkdir(folder).then(
        () => null,
        (failure: NodeJS.ErrnoException) => failure,
      );
      if (error === null) return;
      if (error.code === 'EEXIST' && (await fs.stat(folder)).isDirectory()) return;
      if (error.code !== 'ENOENT' || dirname(folder) === folder) throw error;
      await make(dirname(folder));
      await fs.mkdir(folder);
    };
    // With `recursive`, Node never returns below /proc.
    await make(resolve(path));
    const root = await fs.realpath(path);
    return new DownloadFolder(fs, root, await DownloadRecord.open(fs, root));
  }

  /**
   * @returns why the file was left out; null if it was written
   * @throws LoamError; `bad_answer` for a path that leads out of the folder
   */
  async download(file: ArtifactFile, transfer: Transfer): Promise<LeftOutReason | null> {
    const target = await this.#place(file.path, transfer.force);
    if (typeof target === 'object') return target.leftOut;
    // The name does not contain that of the file, because both together may exceed the limit of the file system.
    const part = `${target.slice(0, target.lastIndexOf('/'))}/.loam-${await digestOf(file)}.part`;
    const { O_CREAT, O_RDWR, O_NOFOLLOW } = this.#fs.constants;
    const handle = await this.#fs.open(part, O_CREAT | O_RDWR | (O_NOFOLLOW ?? 0), 0o666);
    try {
      await fill(handle, file, transfer);
      await this.#record.add(file.path, await handle.stat({ bigint: true }));
    } finally {
      await handle.close();
    }
    await this.#fs.rename(part, target);
    return null;
  }

  /**
   * Writes a file of another source. `isProgram`: it can be executed.
   * @returns why the file was left out, with its content unread; null if it was written
   * @throws LoamError `bad_answer` for a path that leads out of the folder
   */
  async write(
    path: string,
    content: AsyncIterable<Uint8Array>,
    { force, isProgram }: { force: boolean; isProgram: boolean },
  ): Promise<LeftOutReason | null> {
    const target = await this.#place(path, force);
    if (typeof target === 'object') return target.leftOut;
    const part = `${target.slice(0, target.lastIndexOf('/'))}/.loam-${crypto.randomUUID()}.part`;
    const handle = await this.#fs.open(part, 'wx', isProgram ? 0o777 : 0o666);
    try {
      for await (const chunk of content) await handle.writeFile(chunk);
      await this.#record.add(path, await handle.stat({ bigint: true }));
      await handle.close();
      await this.#fs.rename(part, target);
    } catch (error) {
      await handle.close().catch(() => {});
      await this.#fs.rm(part, { force: true });
      throw error;
    }
    return null;
  }

  /** Creates a folder below this one. @throws LoamError as `write` */
  async makeFolder(path: string): Promise<LeftOutReason | null> {
    if (entersGitFolder(path)) return 'git_folder';
    await this.#prepare([...safeParts(path), '']);
    return null;
  }

  /** @returns where the file is to be written, or why it must not be. @throws LoamError as `write` */
  async #place(path: string, force: boolean): Promise<string | { leftOut: LeftOutReason }> {
    const parts = safeParts(path);
    if (isOfGit(path)) return { leftOut: 'git_folder' };
    const target = await this.#prepare(parts);
    const found = await this.#fs.lstat(target, { bigint: true }).catch(() => null);
    if (found?.isDirectory()) throw unsafe(path, `${target} is a folder`);
    const isOurs = found?.isFile() && this.#record.has(path, found);
    return found && !isOurs && !force ? { leftOut: 'exists' } : target;
  }

  /** Creates the folders of a path, of which none may be a link, and returns the path of the file. */
  async #prepare(parts: readonly string[]): Promise<string> {
    let folder = this.#root;
    for (const part of parts.slice(0, -1)) {
      folder = `${folder}/${part}`;
      await this.#fs.mkdir(folder).catch((error) => {
        if (error.code !== 'EEXIST') throw error;
      });
      if (!(await this.#fs.lstat(folder)).isDirectory())
        throw unsafe(parts.join('/'), `${folder} is not a folder`);
    }
    return `${folder}/${parts.at(-1)}`;
  }
}

/** The parts of a path that a server has named. @throws LoamError if it leads out of the folder */
function safeParts(path: string): string[] {
  const parts = path.split('/');
  // On Windows, a backslash separates folders and a colon names a drive or a stream.
  const forbidden = process.platform === 'win32' ? /[\0\\:]/ : /\0/;
  if (parts.some((part) => part === '' || part === '.' || part === '..' || forbidden.test(part)))
    throw unsafe(path, 'the name leads out of the folder');
  return parts;
}

/** Identifies the job and the file, so that a transfer is not continued with the file of another job. */
async function digestOf({ downloadUrl }: ArtifactFile): Promise<string> {
  const { origin, pathname } = new URL(downloadUrl);
  const bytes = new TextEncoder().encode(`${origin}${pathname}`);
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest.subarray(0, 6), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function fill(
  handle: FileSystem.FileHandle,
  file: ArtifactFile,
  transfer: Transfer,
): Promise<void> {
  const backoff = new Backoff(transfer);
  const { size } = await handle.stat();
  let offset = size <= file.sizeBytes ? size : 0;
  await handle.truncate(offset);
  transfer.onBytes(offset);
  let url = file.downloadUrl;
  let isRenewed = false;
  while (offset < file.sizeBytes) {
    try {
      const response = await transfer.send(url, {
        headers: offset > 0 ? { range: `bytes=${offset}-` } : {},
        signal: transfer.signal,
      });
      if (offset > 0 && response.status !== 206) {
        // Without support for ranges, the file begins again.
        transfer.onBytes(-offset);
        offset = 0;
      } else if (
        offset > 0 &&
        !response.headers.get('content-range')?.startsWith(`bytes ${offset}-`)
      )
        throw new LoamError(
          'bad_answer',
          `${new URL(url).origin} sent another part of ${file.path}.`,
        );
      let written: Promise<unknown> = Promise.resolve();
      for await (const chunk of chunksOf(response)) {
        if (offset + chunk.length > file.sizeBytes)
          throw new LoamError('bad_answer', `${file.path} is longer than the list says.`);
        await written;
        // Not awaited here, so that the next chunk arrives meanwhile. The next `await written` throws its error.
        written = handle.write(chunk, 0, chunk.length, offset);
        written.catch(() => {});
        offset += chunk.length;
        transfer.onBytes(chunk.length);
        backoff.succeeded();
        isRenewed = false;
      }
      await written;
      if (offset < file.sizeBytes)
        throw unreachable(new URL(url).origin, new Error('the connection was cut'));
    } catch (error) {
      const hasExpired = error instanceof LoamError && /^40[134]$/.test(`${error.status}`);
      if (hasExpired && !isRenewed) {
        url = (await transfer.renew()).downloadUrl;
        isRenewed = true;
      } else await backoff.afterFailure(toLoamError(error, url));
    }
  }
}

/** An error in the middle of a body comes from `fetch`; one of the file system has a `syscall`. */
function toLoamError(error: unknown, url: string): unknown {
  if (error instanceof LoamError || (error as NodeJS.ErrnoException).syscall === 'write')
    return error;
  if ((error as NodeJS.ErrnoException).path !== undefined) return error;
  return unreachable(new URL(url).origin, error);
}

function unsafe(path: string, reason: string): LoamError {
  return new LoamError('bad_answer', `Refused to write ${JSON.stringify(path)}: ${reason}.`);
}

// Names that a file system takes for `.git`, by the rules with which git itself refuses paths of a tree.

/** Characters that HFS+ ignores in names: the list of git's `utf8.c`. */
const IGNORED = /[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]/g;
/** NTFS has short names such as `GIT~1`, ignores dots and spaces at the end, and names streams after a colon. */
const GIT = /^(?:\.git|git~\d+)[. ]*(?::|$)/i;

/** Git treats a folder as a repository only if it has this file. NTFS ignores dots and spaces at its end, too. */
const HEAD = /^head[. ]*(?::|$)/i;

/**
 * Whether git could use the file as its own: it is in a `.git`, or it makes its folder a repository without one, with a `config`
 * beside it whose programs run at `git status`.
 */
function isOfGit(path: string): boolean {
  const name = path.split(/[/\\]/).at(-1) as string;
  return entersGitFolder(path) || HEAD.test(name.replace(IGNORED, ''));
}

/** Whether a path leads into a `.git` on any file system. A backslash separates folders on some of them. */
function entersGitFolder(path: string): boolean {
  return path.split(/[/\\]/).some((part) => GIT.test(part.replace(IGNORED, '')));
}
