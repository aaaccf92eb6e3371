/**
 * Reads the log of a container from the engine, from a cursor on, and follows it live. The engine returns the log since a
 * time, but not exactly: the time is inclusive, and the times of the two streams may be out of order by some milliseconds.
 * So the cursor holds a position for each stream, a resume asks for one minute more, and frames before it are skipped.
 */
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type AttemptSpec,
  type LogBatch,
  type LogCursor,
  logFullMessage,
  type RunnerLine,
  RunnerUnavailable,
} from '../runner.ts';
import { type Engine, isStatus } from './engine.ts';
import {
  FrameReader,
  LOG_START,
  type LogPositions,
  type SizedLine,
  type StreamPosition,
} from './log-frames.ts';
import { readChunks } from './streams.ts';

/** A resume asks for this much before its cursor. */
const OVERLAP_S = 60;
/** Buffer for lines that arrive while earlier ones are stored: each batch is a transaction. */
const READ_AHEAD_BYTES = 256 * 1024;
/** Pause before the request is repeated to an engine that does not answer. */
const RETRY_MS = 500;
/** When the log is full: how often the engine is asked whether the container has ended. */
const POLL_MS = 1_000;
/** When the log is silent: how often the engine is asked whether the container has ended. */
const QUIET_MS = 30_000;

type Caps = AttemptSpec['log'];

type LogSource = {
  engine: Engine;
  container: string;
  caps: Caps;
  /** Whether the container has ended; true when it is gone. @throws RunnerUnavailable */
  hasEnded(): Promise<boolean>;
  /** In place of `QUIET_MS`. */
  quietMs?: number;
};

/** Ends after the last line of an ended container, or when `signal` aborts. */
export async function* followLog(
  source: LogSource,
  cursor: LogCursor | null,
  signal: AbortSignal,
): AsyncGenerator<LogBatch> {
  let progress = parseCursor(cursor);
  const toBatch = (lines: SizedLine[], positions: LogPositions): LogBatch => {
    const batch = applyCaps(source.caps, progress, lines, positions);
    progress = batch.progress;
    return { lines: batch.lines, cursor: formatCursor(progress) };
  };
  while (!signal.aborted) {
    const reader = new FrameReader(progress.positions);
    try {
      // Asked before the log is read: the log of an ended container is complete, so this read returns all of it.
      const isOver = await source.hasEnded();
      if (progress.full) {
        if (isOver) return;
        await delay(POLL_MS, undefined, { signal }).catch(() => {});
        continue;
      }
      const input = await openLog(source, progress.positions, signal);
      if (input === null) return;
      try {
        for await (const chunk of readAvailable(input, source)) {
          const lines = reader.push(chunk);
          if (lines.length > 0) yield toBatch(lines, reader.positions);
          if (progress.full) break;
        }
      } finally {
        input.destroy();
      }
      if (progress.full || !isOver || signal.aborted) continue;
      const last = reader.flush();
      if (last.length > 0) yield toBatch(last, reader.positions);
      return;
    } catch (error) {
      if (signal.aborted) return;
      // The engine became unavailable, possibly within a line: resume after the last complete line.
      if (!(error instanceof RunnerUnavailable)) throw error;
      await delay(RETRY_MS, undefined, { signal }).catch(() => {});
    }
  }
}

/**
 * Joins all chunks that arrived while the consumer was busy. The engine sends each line as a chunk of its own, so without
 * this each line would be a batch, and thus a transaction.
 */
async function* readAvailable(input: Readable, source: LogSource): AsyncGenerator<Buffer> {
  const { quietMs = QUIET_MS } = source;
  for await (const first of readChunks(input, quietMs, createSilenceHandler(input, source))) {
    const more: Buffer | null = input.readableLength > 0 ? input.read(input.readableLength) : null;
    yield more ? Buffer.concat([first, more]) : first;
  }
}

/**
 * Silence is normal for a job that prints nothing for hours, but an engine that hung or was cut off is silent too. The
 * stream is destroyed, and the log requested again, when the engine does not answer, or when the container had ended at
 * the previous check and the stream still has not.
 */
function createSilenceHandler(input: Readable, { hasEnded }: LogSource): () => void {
  let isOver = false;
  let isChecking = false;
  return async () => {
    if (isChecking) return;
    isChecking = true;
    try {
      if (isOver) throw new RunnerUnavailable('the log of an ended container does not end');
      isOver = await hasEnded();
    } catch (error) {
      input.destroy(error as Error);
    }
    isChecking = false;
  };
}

/** @returns null when the container does not exist. The stream fails with RunnerUnavailable */
async function openLog(
  { engine, container }: LogSource,
  { stdout, stderr }: LogPositions,
  signal: AbortSignal,
): Promise<Readable | null> {
  const last = stdout.at > stderr.at ? stdout.at : stderr.at;
  const since = last && Math.floor(Date.parse(`${last.slice(0, 19)}Z`) / 1000) - OVERLAP_S;
  const options = {
    stdout: true,
    stderr: true,
    timestamps: true,
    // For an ended container the engine ends the stream.
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
  const output = new PassThrough({ highWaterMark: READ_AHEAD_BYTES });
  const stop = () => stream.destroy();
  signal.addEventListener('abort', stop, { once: true });
  if (signal.aborted) stop();
  output.once('close', () => {
    signal.removeEventListener('abort', stop);
    stream.destroy();
  });
  stream.once('error', (error) =>
    output.destroy(new RunnerUnavailable(`the log broke off: ${error}`)),
  );
  stream.once('close', () => {
    if (!stream.readableEnded) output.destroy(new RunnerUnavailable('the log broke off'));
  });
  return stream.pipe(output);
}

/** The parsed cursor. `full`: the caps are reached, and further lines are dropped. */
type LogProgress = { positions: LogPositions; bytes: number; lines: number; full: boolean };

function parseCursor(cursor: LogCursor | null): LogProgress {
  if (!cursor) return { positions: LOG_START, bytes: 0, lines: 0, full: false };
  const position = (name: string): StreamPosition => ({
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

function formatCursor({
  positions: { stdout, stderr },
  bytes,
  lines,
  full,
}: LogProgress): LogCursor {
  return {
    ...(stdout.at && { stdout: stdout.at, stdoutCount: stdout.count }),
    ...(stderr.at && { stderr: stderr.at, stderrCount: stderr.count }),
    bytes,
    lines,
    ...(full && { full: 1 }),
  };
}

/** Keeps the lines that fit into the caps, and replaces the first one that does not by a line that says so. */
function applyCaps(
  caps: Caps,
  before: LogProgress,
  lines: SizedLine[],
  positions: LogPositions,
): { lines: RunnerLine[]; progress: LogProgress } {
  const progress = { ...before, positions };
  const kept: RunnerLine[] = [];
  for (const { bytes, ...line } of lines) {
    if (progress.bytes + bytes > caps.bytes || progress.lines + 1 > caps.lines) {
      kept.push({ ...line, stream: 'stderr', message: logFullMessage(caps) });
      return { lines: kept, progress: { ...progress, full: true } };
    }
    progress.bytes += bytes;
    progress.lines++;
    kept.push(line);
  }
  return { lines: kept, progress };
}
