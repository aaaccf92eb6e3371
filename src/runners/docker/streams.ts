/**
 * What an engine sends without saying how long it takes. One that is frozen, or whose machine is cut off, keeps the
 * connection, and nothing comes of it any more: so somebody has to notice the silence.
 */
import { pipeline, type Readable } from 'node:stream';
import { type Extract, extract } from 'tar-stream';
import { RunnerAway } from '../runner.ts';

/** Of an archive: its header, and its content as a stream. */
export type Entry = Extract extends AsyncIterable<infer One> ? One : never;

/** An engine that packs files sends some of them within this, however busy its disk is. */
export const SILENT_MS = 120_000;

/** Each piece of a stream. `silent` is called when its reader has waited for one for `ms`, and after each further `ms`. */
export async function* pieces(
  source: Readable,
  ms: number,
  silent: () => void,
): AsyncGenerator<Buffer> {
  let timer = setInterval(silent, ms);
  try {
    for await (const piece of source) {
      clearInterval(timer);
      yield piece;
      timer = setInterval(silent, ms);
    }
  } finally {
    clearInterval(timer);
  }
}

/**
 * The entries of an archive that an engine sends. Who stops reading them ends the stream.
 * @throws RunnerAway when it breaks off, or nothing comes for `ms`
 */
export function entriesOf(archive: Readable, ms = SILENT_MS): AsyncIterable<Entry> {
  // It may break off before anybody reads.
  archive.on('error', () => {});
  return unpacked(archive, ms);
}

async function* unpacked(archive: Readable, ms: number): AsyncGenerator<Entry> {
  const entries = extract();
  entries.once('close', () => archive.destroy());
  // Whoever reads the entries hears of it by them.
  pipeline(whole(archive, ms), entries, () => {});
  yield* entries;
}

async function* whole(archive: Readable, ms: number): AsyncGenerator<Buffer> {
  try {
    yield* pieces(archive, ms, () =>
      archive.destroy(new RunnerAway(`the engine sent nothing for ${ms / 1000} s`)),
    );
  } catch (error) {
    if (error instanceof RunnerAway) throw error;
    throw new RunnerAway(`the engine broke off: ${(error as Error).message}`);
  }
}
