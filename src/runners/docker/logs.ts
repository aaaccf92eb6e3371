/**
 * The log of a container, from a cursor on and live.
 *
 * The engine keeps it in a file that is not rotated while a line of it may still be wanted: with rotation a follower
 * lost 195,000 of 300,000 lines. It can be asked for what came since a time, and that is not exact: the time is
 * inclusive, and the times of the two streams run backwards against each other by some milliseconds. So a cursor knows
 * for each stream how far it was read, a resume asks for a minute more, and what was read before is left out.
 */
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type AttemptSpec,
  type LogBatch,
  type LogCursor,
  logFull,
  RunnerAway,
  type RunnerLine,
} from '../runner.ts';
import { type Engine, isStatus } from './engine.ts';
import { BEGINNING, type FoldedLine, type Position, type Positions, readFrames } from './frames.ts';
import { pieces } from './streams.ts';

/** What a resume asks for beyond its cursor. */
const OVERLAP_S = 60;
/** Read ahead while the lines before are stored: each batch is a transaction. */
const AHEAD_BYTES = 256 * 1024;
/** An engine that does not answer is asked again after this. */
const PAUSE_MS = 500;
/** Between two looks whether a container has ended whose log is full. */
const LOOK_MS = 1_000;
/** A container that has printed nothing for so long is asked whether it has ended. */
const QUIET_MS = 30_000;

type Caps = AttemptSpec['log'];

export type LogSource = {
  engine: Engine;
  container: string;
  caps: Caps;
  /** Whether the container has ended; true when it is gone. @throws RunnerAway */
  hasEnded(): Promise<boolean>;
  /** Without a line, until somebody looks why. */
  quietMs?: number;
};

/** Ends after the last line of an ended container, or when `signal` aborts. */
export async function* followLog(
  source: LogSource,
  cursor: LogCursor | null,
  signal: AbortSignal,
): AsyncGenerator<LogBatch> {
  let state = stateOf(cursor);
  const take = (lines: FoldedLine[], positions: Positions): LogBatch => {
    const batch = within(source.caps, state, lines, positions);
    state = batch.state;
    return { lines: batch.lines, cursor: cursorOf(state) };
  };
  while (!signal.aborted) {
    const frames = readFrames(state.positions);
    try {
      // Asked before the log is read: what an ended container has printed is all in what is read then.
      const over = await source.hasEnded();
      if (state.full) {
        if (over) return;
        await delay(LOOK_MS, undefined, { signal }).catch(() => {});
        continue;
      }
      const input = await openLog(source, state.positions, signal);
      if (input === null) return;
      try {
        for await (const chunk of allThatCame(input, source)) {
          const lines = frames.take(chunk);
          if (lines.length > 0) yield take(lines, frames.position());
          if (state.full) break;
        }
      } finally {
        input.destroy();
      }
      if (state.full || !over || signal.aborted) continue;
      const last = frames.end();
      if (last.length > 0) yield take(last, frames.position());
      return;
    } catch (error) {
      if (signal.aborted) return;
      // The engine went away, perhaps in the middle: it goes on behind the last whole line.
      if (!(error instanceof RunnerAway)) throw error;
      await delay(PAUSE_MS, undefined, { signal }).catch(() => {});
    }
  }
}

/**
 * What has come while the consumer was busy, at once. A stream gives one piece at a time, and the engine sends each line
 * as a piece of its own: each line would be a batch, and so a transaction.
 */
async function* allThatCame(input: Readable, source: LogSource): AsyncGenerator<Buffer> {
  const { quietMs = QUIET_MS } = source;
  for await (const first of pieces(input, quietMs, watchProgress(input, source))) {
    const more: Buffer | null = input.readableLength > 0 ? input.read(input.readableLength) : null;
    yield more ? Buffer.concat([first, more]) : first;
  }
}

/**
 * A job may print nothing for hours, and so does an engine that was frozen or cut off while it was listened to. Of one that
 * did not answer in between, or that has nothing more of an ended container and does not say so, the log is asked for anew.
 */
function watchProgress(input: Readable, { hasEnded }: LogSource): () => void {
  let over = false;
  let looking = false;
  return async () => {
    if (looking) return;
    looking = true;
    try {
      if (over) throw new RunnerAway('the log of an ended container has no end');
      over = await hasEnded();
    } catch (error) {
      input.destroy(error as Error);
    }
    looking = false;
  };
}

/** Null: there is no such container. The stream fails with RunnerAway. */
async function openLog(
  { engine, container }: LogSource,
  { stdout, stderr }: Positions,
  signal: AbortSignal,
): Promise<Readable | null> {
  const last = stdout.at > stderr.at ? stdout.at : stderr.at;
  const since = last && Math.floor(Date.parse(`${last.slice(0, 19)}Z`) / 1000) - OVERLAP_S;
  const options = {
    stdout: true,
    stderr: true,
    timestamps: true,
    // Of an ended container the engine ends it.
    follow: true as const,
    ...(since && { since: String(since) }),
  };
  let stream: Readable;
  try {
    stream = await engine.stream((docker) =>
      docker.getContainer(container).logs(options as unknown as typeof options & { since: number }),
    );
  } catch (error) {
    if (isStatus(error, 404)) return null;
    throw error;
  }
  const output = new PassThrough({ highWaterMark: AHEAD_BYTES });
  const stop = () => stream.destroy();
  signal.addEventListener('abort', stop, { once: true });
  if (signal.aborted) stop();
  output.once('close', () => {
    signal.removeEventListener('abort', stop);
    stream.destroy();
  });
  stream.once('error', (error) => output.destroy(new RunnerAway(`the log broke off: ${error}`)));
  stream.once('close', () => {
    if (!stream.readableEnded) output.destroy(new RunnerAway('the log broke off'));
  });
  return stream.pipe(output);
}

type State = { positions: Positions; bytes: number; lines: number; full: boolean };

function stateOf(cursor: LogCursor | null): State {
  if (!cursor) return { positions: BEGINNING, bytes: 0, lines: 0, full: false };
  const position = (name: string): Position => ({
    at: String(cursor[name] ?? ''),
    count: Number(cursor[`${name}Count`] ?? 0),
  });
  return {
    positions: { stdout: position('stdout'), stderr: position('stderr') },
    bytes: Number(cursor.bytes ?? 0),
    lines: Number(cursor.lines ?? 0),
    full: cursor.full === 1,
  };
}

function cursorOf({ positions: { stdout, stderr }, bytes, lines, full }: State): LogCursor {
  return {
    ...(stdout.at && { stdout: stdout.at, stdoutCount: stdout.count }),
    ...(stderr.at && { stderr: stderr.at, stderrCount: stderr.count }),
    bytes,
    lines,
    ...(full && { full: 1 }),
  };
}

/** The lines that the caps leave room for, and in place of the first other one a line that says so. */
function within(
  caps: Caps,
  before: State,
  lines: FoldedLine[],
  positions: Positions,
): { lines: RunnerLine[]; state: State } {
  const state = { ...before, positions };
  const kept: RunnerLine[] = [];
  for (const { bytes, ...line } of lines) {
    if (state.bytes + bytes > caps.bytes || state.lines + 1 > caps.lines) {
      kept.push({ ...line, stream: 'stderr', message: logFull(caps) });
      return { lines: kept, state: { ...state, full: true } };
    }
    state.bytes += bytes;
    state.lines++;
    kept.push(line);
  }
  return { lines: kept, state };
}
