/**
 * Sends the job's folders into a container on another machine, where no folder of this machine can be mounted, as tar
 * archives before the container is started.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pack } from 'tar-stream';
import { accountFiles } from '../account-files.ts';
import { SHARED, SHARED_DIR } from '../container/shared-folder.ts';
import { type AttemptSpec, FILES_DIR, MOUNTS, RESULTS_DIR } from '../runner.ts';
import type { JobScripts, Owner } from './attempt-dir.ts';
import type { Engine } from './engine.ts';
import type { ContainerUser } from './image-users.ts';

/** Enough for the largest checkout over a slow connection. */
const SEND_TIMEOUT_MS = 3_600_000;
const SEND_FILES_TIMEOUT_MS = 30_000;
/** Maximum length of the error text of `tar`. */
const MAX_ERROR_LENGTH = 500;

type Target = { engine: Engine; container: string };

/**
 * Creates the job's folders, empty and accessible to its user alone, in a container that has not been started, the job's scripts,
 * and its account.
 */
export async function createRemoteFolders(
  target: Target,
  scripts: JobScripts,
  { uid, gid, isOfImage }: ContainerUser,
): Promise<void> {
  const archive = pack();
  if (!isOfImage)
    for (const [name, text] of Object.entries(accountFiles(uid, gid)))
      archive.entry({ name: `etc/${name}`, mode: 0o644, uid: 0, gid: 0 }, text);
  for (const path of [...Object.values(MOUNTS), RESULTS_DIR])
    archive.entry({ name: `${path.slice(1)}/`, type: 'directory', mode: 0o700, uid, gid });
  const shared = SHARED_DIR.slice(1);
  archive.entry({ name: `${shared}/`, type: 'directory', mode: 0o755, uid: 0, gid: 0 });
  for (const name of ['environment', 'start'] as const)
    archive.entry({ name: `${shared}/${SHARED[name]}`, mode: 0o400, uid, gid }, scripts[name]);
  archive.finalize();
  await send(target, archive.pipe(new PassThrough()), new AbortController().signal);
}

/**
 * Creates or replaces the provided files in a container, which may be running. The root user of the container owns their
 * folder. The engine replaces a file in two steps, so a running job does not find the file for a moment.
 */
export async function sendFiles(
  target: Target,
  files: AttemptSpec['files'],
  { uid, gid }: Owner,
): Promise<void> {
  const archive = pack();
  const dir = FILES_DIR.slice(1);
  archive.entry({ name: `${dir}/`, type: 'directory', mode: 0o755, uid: 0, gid: 0 });
  for (const [name, content] of Object.entries(files))
    archive.entry({ name: `${dir}/${name}`, mode: 0o400, uid, gid }, content);
  archive.finalize();
  // The end of the attempt waits for this.
  await send(target, archive.pipe(new PassThrough()), AbortSignal.timeout(SEND_FILES_TIMEOUT_MS));
}

/** Sends the folders that the checkout has written, which belong to the job's user already. */
export async function sendCheckout(
  target: Target,
  attemptDir: string,
  abort: AbortSignal,
): Promise<void> {
  for (const name of ['work', 'home'] as const) {
    const from = join(attemptDir, name);
    if (readdirSync(from).length > 0) await sendFolder(target, { from, to: MOUNTS[name] }, abort);
  }
}

/** Streams the archive of a folder, which is never held in memory as a whole. */
async function sendFolder(
  target: Target,
  { from, to }: { from: string; to: string },
  abort: AbortSignal,
): Promise<void> {
  const failed = new AbortController();
  const tar = spawn('tar', ['-c', '-f', '-', '-C', from, '.'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: AbortSignal.any([abort, failed.signal]),
  });
  const archive = new PassThrough();
  archive.on('error', () => {});
  const copied = copyOutput(tar, archive);
  // A failure of `tar` also fails the request, with the same reason.
  copied.catch((error) => archive.destroy(error));
  try {
    await send(target, archive, abort, to);
  } catch (error) {
    abort.throwIfAborted();
    throw error;
  } finally {
    // The request no longer reads the archive, and the copy would wait for a reader without end.
    archive.destroy();
    failed.abort();
    await copied.catch(() => {});
  }
}

/** Ends the archive only after `tar` has succeeded, so that the engine never accepts an incomplete archive. */
async function copyOutput(tar: ChildProcess, archive: PassThrough): Promise<void> {
  const closed = once(tar, 'close');
  closed.catch(() => {});
  let errors = '';
  tar.stderr?.setEncoding('utf8').on('data', (text: string) => {
    errors += text.slice(0, MAX_ERROR_LENGTH - errors.length);
  });
  // Without a free file descriptor `tar` has no output; `closed` then rejects with the reason.
  if (tar.stdout) await pipeline(tar.stdout, archive, { end: false });
  const [code] = await closed;
  if (code !== 0) throw new Error(`tar ended with ${code}: ${errors.trim()}`);
  archive.end();
}

/** The engine unpacks the archive inside the container's root, so links in the image cannot lead out of it. */
async function send(
  { engine, container }: Target,
  archive: NodeJS.ReadableStream,
  abort: AbortSignal,
  path = '/',
) {
  await engine.call(
    (docker) =>
      docker.getContainer(container).putArchive(archive, {
        path,
        abortSignal: abort,
      }),
    SEND_TIMEOUT_MS,
  );
}
