/**
 * Parses the log stream of an engine into lines.
 *
 * The stream consists of frames: `[stream, 0, 0, 0, length as 4 bytes]`, then the payload
 * `<RFC 3339 time with nanoseconds> <at most 16 KiB of text>`. A longer line is split into frames of the same stream and
 * time, of which only the last ends with a newline.
 */
import { MAX_LINE_BYTES, type RunnerLine, toMessage } from '../runner.ts';

const HEADER_BYTES = 8;
/** Length of `2026-01-01T12:00:00.123456789Z`. Times are padded to this length so that they can be compared as strings. */
const TIME_LENGTH = 30;
/** Length of `2026-01-01T12:00:00.123`, the precision that `Date` keeps. */
const MILLISECONDS_LENGTH = 23;
const STDERR = 2;
const SPACE = 0x20;
const NEWLINE = 0x0a;

type StreamName = 'stdout' | 'stderr';

/** The last frame of a stream that was read: its time, and how many frames with the same time have been read. */
export type StreamPosition = { time: string; count: number };
export type LogPositions = { stdout: StreamPosition; stderr: StreamPosition };
export const LOG_START: LogPositions = {
  stdout: { time: '', count: 0 },
  stderr: { time: '', count: 0 },
};

/** `bytes`: size of the text with its line end. */
export type SizedLine = RunnerLine & { bytes: number };

/** A line whose newline has not arrived yet. */
type PartialLine = {
  /** Time of the first frame. */
  time: string;
  parts: Buffer[];
  /** Sum of the lengths of `parts`. */
  bytes: number;
  isCut: boolean;
  /** Position of the last frame. */
  position: StreamPosition;
};

/** Turns chunks into lines. Skips frames up to a start position: the engine sends some again when a follower reconnects. */
export class LogFrameReader {
  readonly #start: LogPositions;
  /** Bytes of an incomplete frame: at most 16 KiB of text, with the frame's header and time. */
  #incomplete: Buffer = Buffer.alloc(0);
  /** Positions after the last complete lines. */
  #positions: LogPositions;
  #partial: { stdout?: PartialLine; stderr?: PartialLine } = {};
  /** How many frames with the time of the stream's start position were received again. */
  #repeated = { stdout: 0, stderr: 0 };

  constructor(start: LogPositions) {
    this.#start = start;
    this.#positions = { stdout: { ...start.stdout }, stderr: { ...start.stderr } };
  }

  /**
   * @param chunk of any size
   * @returns the lines that the chunk completes
   */
  push(chunk: Buffer): SizedLine[] {
    const lines: SizedLine[] = [];
    const data = this.#incomplete.length > 0 ? Buffer.concat([this.#incomplete, chunk]) : chunk;
    let offset = 0;
    while (data.length - offset >= HEADER_BYTES) {
      const end = offset + HEADER_BYTES + data.readUInt32BE(offset + 4);
      if (data.length < end) break;
      const stream = data[offset] === STDERR ? 'stderr' : 'stdout';
      const line = this.#readFrame(data.subarray(offset + HEADER_BYTES, end), stream);
      if (line) lines.push(line);
      offset = end;
    }
    this.#incomplete = Buffer.from(data.subarray(offset));
    return lines;
  }

  /** Called at the end of the log. @returns last lines without a newline */
  flush(): SizedLine[] {
    return (['stdout', 'stderr'] as const).flatMap((stream) => {
      const line = this.#partial[stream];
      return line ? [this.#completeLine(stream, line)] : [];
    });
  }

  get positions(): LogPositions {
    return { stdout: { ...this.#positions.stdout }, stderr: { ...this.#positions.stderr } };
  }

  /** @returns the line that the frame completes; undefined if the line continues or the frame was read before */
  #readFrame(payload: Buffer, stream: StreamName): SizedLine | undefined {
    // There is always a space: `logs.ts` requests a time in each frame.
    const space = payload.indexOf(SPACE);
    const time = padTime(payload.toString('latin1', 0, space));
    if (this.#wasRead(stream, time)) return undefined;
    const endsLine = payload[payload.length - 1] === NEWLINE;
    const text = payload.subarray(space + 1, endsLine ? payload.length - 1 : payload.length);
    const position = this.#nextPosition(stream, time);
    const line = this.#partial[stream] ?? { time, parts: [], bytes: 0, isCut: false, position };
    line.position = position;
    appendText(line, text, endsLine);
    if (endsLine) return this.#completeLine(stream, line);
    this.#partial[stream] = line;
    return undefined;
  }

  /** Call it once for each frame, because it counts frames with the time of the start position. */
  #wasRead(stream: StreamName, time: string): boolean {
    const { time: startTime, count } = this.#start[stream];
    if (time !== startTime) return time < startTime;
    this.#repeated[stream]++;
    return this.#repeated[stream] <= count;
  }

  #nextPosition(stream: StreamName, time: string): StreamPosition {
    const previous = this.#partial[stream]?.position ?? this.#positions[stream];
    return { time, count: previous.time === time ? previous.count + 1 : 1 };
  }

  #completeLine(stream: StreamName, line: PartialLine): SizedLine {
    this.#partial[stream] = undefined;
    this.#positions[stream] = line.position;
    return {
      timestamp: new Date(`${line.time.slice(0, MILLISECONDS_LENGTH)}Z`),
      stream,
      message: toMessage(Buffer.concat(line.parts).toString('utf8'), line.isCut),
      bytes: line.bytes + 1,
    };
  }
}

/** Appends text up to the maximum length of a line. */
function appendText(line: PartialLine, text: Buffer, endsLine: boolean): void {
  const room = MAX_LINE_BYTES - line.bytes;
  const kept = text.length > room ? text.subarray(0, room) : text;
  if (text.length > room) line.isCut = true;
  if (kept.length === 0) return;
  // A line that continues is copied, because it would otherwise keep its whole chunk in memory.
  line.parts.push(endsLine ? kept : Buffer.from(kept));
  line.bytes += kept.length;
}

/** Pads the fraction to nine digits: engines omit zeros at its end. */
function padTime(time: string): string {
  if (time.length === TIME_LENGTH) return time;
  const [seconds = '', fraction = ''] = time.slice(0, -1).split('.');
  return `${seconds}.${fraction.padEnd(9, '0')}Z`;
}
