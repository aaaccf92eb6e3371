/**
 * Parses the log stream of an engine into lines.
 *
 * The stream consists of frames: `[stream, 0, 0, 0, length as 4 bytes]`, then the payload
 * `<RFC 3339 time with nanoseconds> <at most 16 KiB of text>`. A longer line is split into frames of the same stream and
 * time, of which only the last ends with a newline.
 */
import { MAX_LINE, messageOf, type RunnerLine } from '../runner.ts';

const HEADER_BYTES = 8;
/** Length of `2026-01-01T12:00:00.123456789Z`. Times are padded to it, so that comparing them as text orders them. */
const TIME_LENGTH = 30;
const STDERR = 2;
const SPACE = 0x20;
const NEWLINE = 0x0a;

type StreamName = 'stdout' | 'stderr';

/** How far a stream was read: the time of its last frame, and the number of frames with that time that were read. */
export type StreamPosition = { at: string; count: number };
export type LogPositions = { stdout: StreamPosition; stderr: StreamPosition };
export const LOG_START: LogPositions = {
  stdout: { at: '', count: 0 },
  stderr: { at: '', count: 0 },
};

/** `bytes`: size of the text with its line end. */
export type SizedLine = RunnerLine & { bytes: number };

/** A line whose newline has not arrived yet. */
type PartialLine = {
  /** Time of the first frame. */
  at: string;
  parts: Buffer[];
  bytes: number;
  isCut: boolean;
  position: StreamPosition;
};

/** Skips frames up to a position, because the engine sends some of them again after a resume. */
export class FrameReader {
  readonly #from: LogPositions;
  /** An incomplete frame; little more than 16 KiB at most. */
  #rest: Buffer = Buffer.alloc(0);
  #done: LogPositions;
  #partial: { stdout?: PartialLine; stderr?: PartialLine } = {};
  /** How many frames with the time of `#from` were received again. */
  #repeated = { stdout: 0, stderr: 0 };

  constructor(from: LogPositions) {
    this.#from = from;
    this.#done = { stdout: { ...from.stdout }, stderr: { ...from.stderr } };
  }

  /** Takes a chunk of any size. @returns the lines that it completes */
  push(chunk: Buffer): SizedLine[] {
    const lines: SizedLine[] = [];
    const bytes = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    let offset = 0;
    while (bytes.length - offset >= HEADER_BYTES) {
      const end = offset + HEADER_BYTES + bytes.readUInt32BE(offset + 4);
      if (bytes.length < end) break;
      const stream = bytes[offset] === STDERR ? 'stderr' : 'stdout';
      const line = this.#readFrame(bytes.subarray(offset + HEADER_BYTES, end), stream);
      if (line) lines.push(line);
      offset = end;
    }
    this.#rest = Buffer.from(bytes.subarray(offset));
    return lines;
  }

  /** Call it at the end of the log. @returns last lines without a newline */
  flush(): SizedLine[] {
    return (['stdout', 'stderr'] as const).flatMap((stream) => {
      const line = this.#partial[stream];
      return line ? [this.#completeLine(stream, line)] : [];
    });
  }

  /** Positions after the last lines that were returned. */
  get positions(): LogPositions {
    return { stdout: { ...this.#done.stdout }, stderr: { ...this.#done.stderr } };
  }

  #readFrame(payload: Buffer, stream: StreamName): SizedLine | undefined {
    const space = payload.indexOf(SPACE);
    const at = padTime(payload.toString('latin1', 0, space));
    if (this.#wasRead(stream, at)) return undefined;
    const endsLine = payload[payload.length - 1] === NEWLINE;
    const text = payload.subarray(space + 1, endsLine ? payload.length - 1 : payload.length);
    const before = this.#partial[stream]?.position ?? this.#done[stream];
    const position = { at, count: before.at === at ? before.count + 1 : 1 };
    const line = this.#partial[stream] ?? { at, parts: [], bytes: 0, isCut: false, position };
    line.position = position;
    const room = MAX_LINE - line.bytes;
    const kept = text.length > room ? text.subarray(0, room) : text;
    if (text.length > room) line.isCut = true;
    if (kept.length > 0) {
      // A line that ends in this frame is decoded at once, and so needs no copy.
      line.parts.push(endsLine ? kept : Buffer.from(kept));
      line.bytes += kept.length;
    }
    if (endsLine) return this.#completeLine(stream, line);
    this.#partial[stream] = line;
    return undefined;
  }

  #wasRead(stream: StreamName, at: string): boolean {
    const { at: last, count } = this.#from[stream];
    if (at !== last) return at < last;
    this.#repeated[stream]++;
    return this.#repeated[stream] <= count;
  }

  #completeLine(stream: StreamName, line: PartialLine): SizedLine {
    this.#partial[stream] = undefined;
    this.#done[stream] = line.position;
    return {
      timestamp: new Date(`${line.at.slice(0, 23)}Z`),
      stream,
      message: messageOf(Buffer.concat(line.parts).toString('utf8'), line.isCut),
      bytes: line.bytes + 1,
    };
  }
}

/** Engines omit zeros at the end of the fraction. */
function padTime(time: string): string {
  if (time.length === TIME_LENGTH) return time;
  const [seconds = '', fraction = ''] = time.slice(0, -1).split('.');
  return `${seconds}.${fraction.padEnd(9, '0')}Z`;
}
