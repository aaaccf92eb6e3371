/**
 * Follows the log of a container that the engine keeps, from a cursor on. The engine returns lines since a time, but not
 * exactly: the time is inclusive, and the times of the two streams may be out of order by some milliseconds. So the cursor
 * holds a position for each stream. A resumed request starts one minute earlier, and frames before the position are skipped.
 */
import { PassThrough, type Readable } from 'node:stream';
import { jitter, sleep } from '../../base/backoff.ts';
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
  LOG_START,
  LogFrameReader,
  type LogPositions,
  type SizedLine,
  type StreamPosition,
} from './log-frames.ts';
import { readChunks } from './streams.ts';

/** A resumed request starts this long before the cursor. */
const OVERLAP_S = 60;
/** Buffer for lines that arrive while earlier lines are stored: each batch is a transaction. */
const READ_AHEAD_BYTES = 256 * 1024;
/** Longest pause before the next request to an engine that does not answer. */
const RETRY_MS = 500;
/** Interval of checks whether the container has ended, after the log has reached its size limit. */
const FULL_POLL_MS = 1_000;
/** The same, while the log is silent. */
const SILENT_POLL_MS = 30_000;

type Caps = AttemptSpec['log'];

type LogSource = {
  engine: Engine;
  container: string;
  caps: Caps;
  /**
   * Whether the container has ended or is gone.
   * @throws RunnerUnavailable
   */
  hasEnded(): Promise<boolean>;
  /** Default: `SILENT_POLL_MS`. */
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
    const reader = new LogFrameReader(progress.positions);
    try {
      // Checked before the read: the log of an ended container is complete, so this read returns all of it.
      const isOver = await source.hasEnded();
      if (progress.full) {
        if (isOver) return;
        await sleep(FULL_POLL_MS, signal);
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
      // The engine may have become unavailable within a line, so the next read starts after the last complete line.
      if (!(error instanceof RunnerUnavailable)) throw error;
      await sleep(jitter(RETRY_MS), signal);
    }
  }
}

/**
 * Joins all chunks that arrived while the consumer was busy. The engine sends each line as a separate chunk, and otherwise
 * each line would be a batch, and thus a transaction.
 */
async function* readAvailable(input: Readable, source: LogSource): AsyncGenerator<Buffer> {
  const { quietMs = SILENT_POLL_MS } = source;
  for await (const first of readChunks(input, quietMs, createSilenceHandler(input, source))) {
    const more: Buffer | null = input.readableLength > 0 ? input.read(input.readableLength) : null;
    yield more ? Buffer.concat([first, more]) : first;
  }
}

/**
 * Detects a dead stream: a job may print nothing for hours, but an engine that hangs or was cut off is silent too. The
 * handler destroys the stream, so that the log is requested again, when the engine does not answer, or when the container
 * had ended at the previous check and the stream has not.
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

/** @returns null when the container does not exist; the stream may fail with RunnerUnavailable */
async function openLog(
  { engine, container }: LogSource,
  { stdout, stderr }: LogPositions,
  signal: AbortSignal,
): Promise<Readable | null> {
  const last = stdout.time > stderr.time ? stdout.time : stderr.time;
  const since = last && Math.floor(Date.parse(`${last.slice(0, 19)}Z`) / 1000) - OVERLAP_S;
  const options = {
    stdout: true,
    stderr: true,
    timestamps: true,
    // The engine ends the stream when the container has ended.
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
    output.destroy(new RunnerUnavailable(`the log stream was interrupted: ${error}`)),
  );
  stream.once('close', () => {
    if (!stream.readableEnded)
      output.destroy(new RunnerUnavailable('the log stream was interrupted'));
  });
  return stream.pipe(output);
}

/** The parsed cursor. `full`: the caps were reached, and further lines are dropped. */
type LogProgress = { positions: LogPositions; bytes: number; lines: number; full: boolean };

function parseCursor(cursor: LogCursor | null): LogProgress {
  if (!cursor) return { positions: LOG_START, bytes: 0, lines: 0, full: false };
  const position = (name: string): StreamPosition => ({
    time: String(cursor[name] ?? ''),
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
    ...(stdout.time && { stdout: stdout.time, stdoutCount: stdout.count }),
    ...(stderr.time && { stderr: stderr.time, stderrCount: stderr.count }),
    bytes,
    lines,
    ...(full && { full: 1 }),
  };
}

/** Keeps the lines that fit into the caps, and replaces the first line that does not fit by a notice that the log ends. */
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
