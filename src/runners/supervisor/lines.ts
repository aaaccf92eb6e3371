/** The lines of a job: read from its FIFOs, written into the attempt's log, each with its time, and read from there. */
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
  type LogBatch,
  type LogCursor,
  logFull,
  MAX_LINE,
  messageOf,
  type RunnerLine,
} from '../runner.ts';

/** What is made of a chunk of short lines, nine times its size, has to stay among the small objects that V8 collects soon. */
const CHUNK = 16 * 1024;

/** What a log may hold: bytes of text with line ends, and lines. Beyond it lines are read and thrown away. */
export type LogLimits = { bytes: number; lines: number };

export type LogFile = {
  /** Whole frames, one character a byte: `<epoch ms> <o|e> <line>\n`. */
  write(frames: string): void;
  /** Whether lines are still kept. */
  readonly open: boolean;
  /** A line of our own, whatever the limits. */
  note(text: string): void;
  /** Nothing is written any more. */
  close(): void;
};

/**
 * Opens the log to be written to. `onError` is called once when it cannot be written (the disk is full):
 * nothing is kept from then on. What stands in the file is whole frames at any moment.
 */
export function openLog(file: string, limits: LogLimits, onError: (error: Error) => void): LogFile {
  const fd = openSync(file, 'a+', 0o600);
  let { size, lines } = wholeFrames(fd);
  let bytes = size - STAMP * lines;
  let full = false;
  let failed = false;
  let closed = false;

  function append(frames: string): void {
    if (failed || closed) return;
    const buffer = Buffer.from(frames, 'latin1');
    try {
      for (let done = 0; done < buffer.length; ) done += writeSync(fd, buffer, done);
      size += buffer.length;
    } catch (error) {
      failed = true;
      // Half a frame would be taken for a line.
      ftruncateSync(fd, size);
      onError(error as Error);
    }
  }
  const note = (text: string) =>
    append(`${Date.now()} e ${Buffer.from(text).toString('latin1')}\n`);

  return {
    get open() {
      return !full && !failed;
    },
    note,
    write(frames) {
      if (full) return;
      const count = countOf(frames);
      const text = frames.length - STAMP * count;
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
        bytes += next - end - STAMP;
        lines++;
        if (next === 0 || bytes > limits.bytes || lines > limits.lines) break;
        end = next;
      }
      append(frames.slice(0, end));
      note(logFull(limits));
    },
    close() {
      if (!closed) closeSync(fd);
      closed = true;
    },
  };
}

/** Of what a writer that was killed has left; half a frame at its end is cut off. */
function wholeFrames(fd: number): { size: number; lines: number } {
  const end = fstatSync(fd).size;
  const buffer = Buffer.allocUnsafe(Math.min(end, 2 ** 20));
  let size = 0;
  let lines = 0;
  for (let at = 0; at < end; ) {
    const read = readSync(fd, buffer, 0, buffer.length, at);
    if (read === 0) break;
    const chunk = buffer.subarray(0, read);
    for (let next = chunk.indexOf(10); next >= 0; next = chunk.indexOf(10, next + 1)) {
      lines++;
      size = at + next + 1;
    }
    at += read;
  }
  if (size < end) ftruncateSync(fd, size);
  return { size, lines };
}

/** Of the stamp and the kind, with their spaces: the milliseconds have 13 digits until the year 2286. */
const STAMP = 16;

function countOf(frames: string): number {
  let count = 0;
  for (let at = frames.indexOf('\n'); at >= 0; at = frames.indexOf('\n', at + 1)) count++;
  return count;
}

/** Copies a FIFO's lines into the log. The text passes as latin1, one character a byte, which is quick. */
export function follow(fifo: string, stream: 'o' | 'e', log: LogFile) {
  // The reader first and without blocking, or each end would wait for the other.
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({
    fd: reader,
    readable: true,
    writable: false,
    // One buffer for all that is read: new ones took another 50 MB until they were collected.
    onread: {
      buffer: Buffer.alloc(CHUNK),
      callback: (size, buffer) => read(buffer.subarray(0, size)),
    },
  });
  let pending = '';
  let cut = false;
  const keep = (part: string) => {
    pending += part;
    if (pending.length <= MAX_LINE) return;
    pending = pending.slice(0, MAX_LINE);
    cut = true;
  };
  const line = () => {
    const text = `${Date.now()} ${cut ? stream.toUpperCase() : stream} ${pending}\n`;
    pending = '';
    cut = false;
    return text;
  };
  const read = (chunk: Uint8Array): boolean => {
    // The job is not held up by lines that nobody will read.
    if (!log.open) return true;
    const text = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length).toString('latin1');
    const first = text.indexOf('\n');
    if (first < 0) {
      keep(text);
      return true;
    }
    keep(text.slice(0, first));
    const last = text.lastIndexOf('\n');
    let complete = line();
    // A chunk is shorter than the longest line, so none of the lines within it can be too long.
    if (last > first) {
      const header = `${Date.now()} ${stream} `;
      const within = text.slice(first + 1, last);
      complete += `${header}${within.replaceAll('\n', `\n${header}`)}\n`;
    }
    log.write(complete);
    keep(text.slice(last + 1));
    return true;
  };
  source.resume();
  source.on('error', () => {});
  const closed = new Promise<void>((resolve) => {
    source.once('close', () => {
      if (pending || cut) log.write(line());
      resolve();
    });
  });
  return { source, writer, closed };
}

/** Whole lines of the shim's log. Bytes that are no UTF-8 become U+FFFD. */
export function parseLog(bytes: Buffer, cursor: LogCursor): LogBatch {
  const lines: RunnerLine[] = [];
  for (const frame of bytes.toString('utf8').slice(0, -1).split('\n')) {
    const stamp = frame.indexOf(' ');
    const kind = frame[stamp + 1] ?? 'o';
    lines.push({
      timestamp: new Date(Number(frame.slice(0, stamp))),
      stream: kind.toLowerCase() === 'e' ? 'stderr' : 'stdout',
      // In upper case when the line was cut.
      message: messageOf(frame.slice(stamp + 3), kind < 'a'),
    });
  }
  return { lines, cursor };
}
