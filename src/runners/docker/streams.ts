/**
 * Reads responses of unlimited duration. An engine that hangs, or whose machine is cut off, keeps the connection open and
 * sends nothing, so readers need a timeout on silence.
 */
import { pipeline, type Readable } from 'node:stream';
import { type Extract, extract } from 'tar-stream';
import { RunnerUnavailable } from '../runner.ts';

/** An entry of a tar archive: its header, and its content as a stream. */
export type ArchiveEntry = Extract extends AsyncIterable<infer Item> ? Item : never;

/** An engine that packs files sends data within this time, even with a busy disk. */
const SILENCE_TIMEOUT_MS = 120_000;

/**
 * Yields the chunks of a stream.
 * @param onSilence called each time the wait for a chunk has lasted another `ms`; time that the consumer takes is not counted
 */
export async function* readChunks(
  source: Readable,
  ms: number,
  onSilence: () => void,
): AsyncGenerator<Buffer> {
  let timer = setInterval(onSilence, ms);
  try {
    for await (const chunk of source) {
      clearInterval(timer);
      yield chunk;
      timer = setInterval(onSilence, ms);
    }
  } finally {
    clearInterval(timer);
  }
}

/**
 * Yields the entries of a tar archive that an engine sends. Leaving the loop ends the request.
 * @throws RunnerUnavailable when the transfer is interrupted, or nothing arrives for `ms`
 */
export function readArchive(
  archive: Readable,
  ms = SILENCE_TIMEOUT_MS,
): AsyncIterable<ArchiveEntry> {
  // An error before the first read must not crash the process.
  archive.on('error', () => {});
  return unpackArchive(archive, ms);
}

async function* unpackArchive(archive: Readable, ms: number): AsyncGenerator<ArchiveEntry> {
  const entries = extract();
  entries.once('close', () => archive.destroy());
  // The reader of the entries receives the error, so the callback ignores it.
  pipeline(withRunnerUnavailable(archive, ms), entries, () => {});
  yield* entries;
}

/** Turns silence and connection errors into RunnerUnavailable. */
async function* withRunnerUnavailable(archive: Readable, ms: number): AsyncGenerator<Buffer> {
  try {
    yield* readChunks(archive, ms, () =>
      archive.destroy(new RunnerUnavailable(`the engine sent nothing for ${ms / 1000} s`)),
    );
  } catch (error) {
    if (error instanceof RunnerUnavailable) throw error;
    throw new RunnerUnavailable(`the engine interrupted the transfer: ${(error as Error).message}`);
  }
}
