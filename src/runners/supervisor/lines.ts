/** Copies a job's lines from FIFOs into the attempt's log, each with its time, and parses the log. */
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  openSync,
  readSync,
  writeSync,
} from 'node:fs';
import { Socket } from 'node:net';
import {
  HOLD_MARK,
  type LogBatch,
  type LogCursor,
  logFullMessage,
  MAX_LINE_BYTES,
  type RunnerLine,
  toMessage,
} from '../runner.ts';

/** Small enough that the objects for a chunk of short lines, nine times its size, stay in V8's young generation. */
const CHUNK_BYTES = 16 * 1024;
const NEWLINE = 0x0a;

/** The limits of a log: bytes of text with line ends, and lines. Further lines are read and discarded. */
export type LogLimits = { bytes: number; lines: number };

export type LogFile = {
  /** Appends whole frames, one character per byte: `<epoch ms> <o|e> <line>\n`. */
  write(frames: string): void;
  /** False after the limits were reached or a write failed. */
  readonly keepsLines: boolean;
  /** Appends a line of the runner itself, regardless of the limits. */
  note(text: string): void;
  /** Later writes are ignored. */
  close(): void;
};

/**
 * Opens the log for writing. `onError` is called once when a write fails, for example because the disk is full. It may make
 * room, because the frames are then written once more; later lines are discarded. The file contains only whole frames at any
 * time.
 */
export function openLog(file: string, limits: LogLimits, onError: (error: Error) => void): LogFile {
  const fd = openSync(file, 'a+', 0o600);
  let { size, lines } = readWholeFrames(fd);
  let bytes = size - STAMP_BYTES * lines;
  // A supervisor that was replaced may have reached the limits.
  let full = endsWith(fd, size, `e ${logFullMessage(limits)}\n`);
  let failed = false;
  let closed = false;

  function append(frames: string): void {
    if (failed || closed) return;
    const buffer = Buffer.from(frames, 'latin1');
    try {
      writeWhole(buffer);
    } catch (error) {
      failed = true;
      onError(error as Error);
      try {
        writeWhole(buffer);
      } catch {
        // There is still no room.
      }
    }
  }
  function writeWhole(buffer: Buffer): void {
    try {
      for (let done = 0; done < buffer.length; ) done += writeSync(fd, buffer, done);
      size += buffer.length;
    } catch (error) {
      // A partial frame would be read as a line.
      ftruncateSync(fd, size);
      throw error;
    }
  }
  const note = (text: string) =>
    append(`${Date.now()} e ${Buffer.from(text).toString('latin1')}\n`);

  return {
    get keepsLines() {
      return !full && !failed;
    },
    note,
    write(frames) {
      if (full) return;
      const count = countFrames(frames);
      const text = frames.length - STAMP_BYTES * count;
      if (bytes + text <= limits.bytes && lines + count <= limits.lines) {
        bytes += text;
        lines += count;
        append(frames);
        return;
      }
      full = true;
      let end = 0;
      for (let next = 0; ; ) {
        next = frames.indexOf('\n', end) + 1;
        bytes += next - end - STAMP_BYTES;
        lines++;
        if (next === 0 || bytes > limits.bytes || lines > limits.lines) break;
        end = next;
      }
      append(frames.slice(0, end));
      note(logFullMessage(limits));
    },
    close() {
      if (!closed) closeSync(fd);
      closed = true;
    },
  };
}

function endsWith(fd: number, size: number, text: string): boolean {
  const end = Buffer.alloc(Math.min(size, Buffer.byteLength(text)));
  readSync(fd, end, 0, end.length, size - end.length);
  return end.toString() === text;
}

/** Measures the frames in the file, and cuts off a partial frame that a killed writer left at the end. */
function readWholeFrames(fd: number): { size: number; lines: number } {
  const end = fstatSync(fd).size;
  const buffer = Buffer.allocUnsafe(Math.min(end, 2 ** 20));
  let size = 0;
  let lines = 0;
  for (let at = 0; at < end; ) {
    const read = readSync(fd, buffer, 0, buffer.length, at);
    if (read === 0) break;
    const chunk = buffer.subarray(0, read);
    for (let next = chunk.indexOf(NEWLINE); next >= 0; next = chunk.indexOf(NEWLINE, next + 1)) {
      lines++;
      size = at + next + 1;
    }
    at += read;
  }
  if (size < end) ftruncateSync(fd, size);
  return { size, lines };
}

/** Bytes of the timestamp and the kind with their spaces. Milliseconds have 13 digits until the year 2286. */
const STAMP_BYTES = 16;

function countFrames(frames: string): number {
  let count = 0;
  for (let at = frames.indexOf('\n'); at >= 0; at = frames.indexOf('\n', at + 1)) count++;
  return count;
}

/** A whole line, which is shorter than this. */
const MARK_LINE = new RegExp(`\n(${HOLD_MARK}\\d{1,3})\n`);
const MARK_BYTES = 32;

/** Copies a FIFO's lines into the log. Text is handled as latin1, one character per byte, which is faster than UTF-8. */
export function copyLines(fifo: string, stream: 'o' | 'e', log: LogFile) {
  // The reader is opened first and without blocking, because opening one end of a FIFO waits for the other end.
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({
    fd: reader,
    readable: true,
    writable: false,
    // One buffer serves all reads: a buffer for each read took another 50 MB until they were collected.
    onread: {
      buffer: Buffer.alloc(CHUNK_BYTES),
      callback: (size, buffer) => read(buffer.subarray(0, size)),
    },
  });
  let pending = '';
  let cut = false;
  const addToPending = (part: string) => {
    pending += part;
    if (pending.length <= MAX_LINE_BYTES) return;
    pending = pending.slice(0, MAX_LINE_BYTES);
    cut = true;
  };
  const takeLine = () => {
    const text = `${Date.now()} ${cut ? stream.toUpperCase() : stream} ${pending}\n`;
    pending = '';
    cut = false;
    return text;
  };
  const read = (chunk: Uint8Array): boolean => {
    const text = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length).toString('latin1');
    if (log.keepsLines) keep(text);
    // Also after the chunk with which the log reached its limits.
    if (!log.keepsLines) noteMark(text);
    return true;
  };
  /** The end of the last chunk, which may have the begin of a mark. */
  let lastEnd = '';
  let hasNotedMark = false;
  /** Lines beyond the limits are discarded, so that the job does not block on a full pipe, except the mark of a hold. */
  const noteMark = (text: string) => {
    if (hasNotedMark || stream !== 'o') return;
    const mark = MARK_LINE.exec(lastEnd + text)?.[1];
    lastEnd = (lastEnd + text).slice(-MARK_BYTES);
    if (mark === undefined) return;
    hasNotedMark = true;
    log.note(mark);
  };
  const keep = (text: string): void => {
    const first = text.indexOf('\n');
    if (first < 0) {
      addToPending(text);
      return;
    }
    addToPending(text.slice(0, first));
    const last = text.lastIndexOf('\n');
    let complete = takeLine();
    // A chunk is shorter than the maximum line, so no line that begins and ends in it can be too long.
    if (last > first) {
      const header = `${Date.now()} ${stream} `;
      const within = text.slice(first + 1, last);
      complete += `${header}${within.replaceAll('\n', `\n${header}`)}\n`;
    }
    log.write(complete);
    addToPending(text.slice(last + 1));
  };
  source.resume();
  source.on('error', () => {});
  const closed = new Promise<void>((resolve) => {
    source.once('close', () => {
      if (pending || cut) log.write(takeLine());
      resolve();
    });
  });
  return { source, writer, closed };
}

/** Parses whole lines of a shim's log. Bytes that are not UTF-8 become U+FFFD. */
export function parseLog(bytes: Buffer, cursor: LogCursor): LogBatch {
  const lines: RunnerLine[] = [];
  for (const frame of bytes.toString('utf8').slice(0, -1).split('\n')) {
    const stamp = frame.indexOf(' ');
    const kind = frame[stamp + 1] ?? 'o';
    lines.push({
      timestamp: new Date(Number(frame.slice(0, stamp))),
      stream: kind.toLowerCase() === 'e' ? 'stderr' : 'stdout',
      // The kind is in upper case when the line was cut.
      message: toMessage(frame.slice(stamp + 3), kind < 'a'),
    });
  }
  return { lines, cursor };
}
