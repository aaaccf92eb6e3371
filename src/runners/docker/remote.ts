/**
 * The folders of a job in a container on another machine, where nothing of ours can be mounted: they are sent into it as
 * tar archives before it is started.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pack } from 'tar-stream';
import { MOUNTS } from '../runner.ts';
import type { Engine } from './engine.ts';
import type { Owner } from './place.ts';

/** For the largest checkout over a slow line. */
const SEND_MS = 3_600_000;
/** Of what `tar` says. */
const SAID = 500;

type Target = { engine: Engine; container: string };

/** Makes the job's folders, empty, in a container that was not started: of its user, and nobody else may enter. */
export async function makeFoldersIn(target: Target, { uid, gid }: Owner): Promise<void> {
  const archive = pack();
  for (const path of Object.values(MOUNTS))
    archive.entry({ name: `${path.slice(1)}/`, type: 'directory', mode: 0o700, uid, gid });
  archive.finalize();
  await send(target, archive.pipe(new PassThrough()), new AbortController().signal);
}

/**
 * Sends a checkout, which is `work` in the folder `place` and belongs to the job's user already. It passes through in
 * pieces, however large it is.
 */
export async function sendCheckout(
  target: Target,
  place: string,
  abort: AbortSignal,
): Promise<void> {
  const refused = new AbortController();
  const tar = spawn('tar', ['-c', '-f', '-', '-C', place, 'work'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: AbortSignal.any([abort, refused.signal]),
  });
  const archive = new PassThrough();
  archive.on('error', () => {});
  const copied = copy(tar, archive);
  // It breaks the request off, which fails for the same reason.
  copied.catch((error) => archive.destroy(error));
  try {
    await send(target, archive, abort);
  } catch (error) {
    abort.throwIfAborted();
    throw error;
  } finally {
    // What was not read by now is read by nobody, and copying would wait for a reader.
    archive.destroy();
    refused.abort();
    await copied.catch(() => {});
  }
}

/** The engine sees the end of the archive only when it is known to be whole. */
async function copy(tar: ChildProcess, archive: PassThrough): Promise<void> {
  const ended = once(tar, 'close');
  ended.catch(() => {});
  let said = '';
  tar.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said += text.slice(0, SAID - said.length);
  });
  // Without a free descriptor there is none, and `ended` has the reason.
  if (tar.stdout) await pipeline(tar.stdout, archive, { end: false });
  const [code] = await ended;
  if (code !== 0) throw new Error(`tar ended with ${code}: ${said.trim()}`);
  archive.end();
}

/** Unpacked by the engine, in the container's own root: no link of its image leads out of it. */
async function send(
  { engine, container }: Target,
  archive: NodeJS.ReadableStream,
  abort: AbortSignal,
) {
  await engine.call(
    (docker) =>
      docker.getContainer(container).putArchive(archive, {
        path: '/',
        abortSignal: abort,
      }),
    SEND_MS,
  );
}
