/** Writes a downloaded file below a folder, and continues where an earlier transfer ended. Only in Node. */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, realpath, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { LoamError } from './errors.ts';
import { Patience, type PatienceOptions } from './patience.ts';
import { chunksOf, unreachable } from './transport.ts';

export type ArtifactFile = {
  /** Relative to the `outputPath` of the job, with slashes. */
  path: string;
  sizeBytes: number;
  /** A link that works for 15 minutes without credentials. */
  downloadUrl: string;
};

type Transfer = PatienceOptions & {
  send(
    url: string,
    init: { headers: Record<string, string>; signal?: AbortSignal | undefined },
  ): Promise<Response>;
  /** Reads the file's entry again, because its link has expired. */
  renew(): Promise<ArtifactFile>;
  onBytes(bytes: number): void;
};

/** Creates a folder if it is missing. @returns its path without links */
export async function openFolder(folder: string): Promise<string> {
  await mkdir(folder, { recursive: true });
  return realpath(folder);
}

/** @throws LoamError; `bad_answer` for a path that leads out of the folder */
export async function downloadFile(
  root: string,
  file: ArtifactFile,
  transfer: Transfer,
): Promise<void> {
  const target = await prepare(root, file.path);
  const found = await lstat(target).catch(() => null);
  // A link or folder of this name is not replaced: it was not written by an earlier download.
  if (found && !found.isFile()) throw unsafe(file.path, `${target} exists and is not a file`);
  const part = `${target}.${digestOf(file)}.part`;
  const { O_CREAT, O_RDWR, O_NOFOLLOW } = constants;
  const handle = await open(part, O_CREAT | O_RDWR | (O_NOFOLLOW ?? 0), 0o666);
  try {
    await fill(handle, file, transfer);
  } finally {
    await handle.close();
  }
  await rename(part, target);
}

/** Identifies the job and the file, so that a transfer is not continued with the file of another job. */
function digestOf({ downloadUrl }: ArtifactFile): string {
  const { origin, pathname } = new URL(downloadUrl);
  return createHash('sha256').update(`${origin}${pathname}`).digest('hex').slice(0, 12);
}

async function fill(handle: FileHandle, file: ArtifactFile, transfer: Transfer): Promise<void> {
  const patience = new Patience(transfer);
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
      }
      for await (const chunk of chunksOf(response)) {
        if (offset + chunk.length > file.sizeBytes)
          throw new LoamError('bad_answer', `${file.path} is longer than the list says.`);
        await handle.write(chunk, 0, chunk.length, offset);
        offset += chunk.length;
        transfer.onBytes(chunk.length);
        patience.succeeded();
        isRenewed = false;
      }
      if (offset < file.sizeBytes)
        throw unreachable(new URL(url).origin, new Error('the connection was cut'));
    } catch (error) {
      const hasExpired = error instanceof LoamError && /^40[134]$/.test(`${error.status}`);
      if (hasExpired && !isRenewed) {
        url = (await transfer.renew()).downloadUrl;
        isRenewed = true;
      } else await patience.afterFailure(toLoamError(error, url));
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

/**
 * Creates the folders of a path that a server has named, and returns the path of the file. No part of it leads out of the
 * root: neither `..`, nor an absolute path, nor a link that lies in the folder already.
 */
async function prepare(root: string, path: string): Promise<string> {
  const parts = path.split('/');
  // On Windows, a backslash separates folders and a colon names a drive or a stream.
  const forbidden = process.platform === 'win32' ? /[\0\\:]/ : /\0/;
  if (parts.some((part) => part === '' || part === '.' || part === '..' || forbidden.test(part)))
    throw unsafe(path, 'the name leads out of the folder');
  let folder = root;
  for (const part of parts.slice(0, -1)) {
    folder = join(folder, part);
    await mkdir(folder).catch((error) => {
      if (error.code !== 'EEXIST') throw error;
    });
    if (!(await lstat(folder)).isDirectory()) throw unsafe(path, `${folder} is not a folder`);
  }
  return join(folder, parts.at(-1) ?? '');
}

function unsafe(path: string, reason: string): LoamError {
  return new LoamError(
    'bad_answer',
    `Refused to write the artifact ${JSON.stringify(path)}: ${reason}.`,
  );
}
