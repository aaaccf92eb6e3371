/**
 * What an engine sends as a container's log, taken apart: frames of a stream, a time and at most 16 KiB of text, which
 * make up lines.
 *
 * A frame is `[stream, 0, 0, 0, length as 4 bytes]` and the payload `<RFC 3339 time with nanoseconds> <text>`. A line that is
 * longer than 16 KiB comes in several of the same stream and time, of which only the last ends with a newline.
 */
import { MAX_LINE, messageOf, type RunnerLine } from '../runner.ts';

const HEADER = 8;
/** `2026-01-01T12:00:00.123456789Z`, padded, so that two of them are in order as text. */
const STAMP = 30;
const STDERR = 2;
const SPACE = 0x20;
const NEWLINE = 0x0a;

/** How far a stream was read: the time of its last frame, and how many of the frames with that time were read. */
export type Position = { at: string; count: number };
export type Positions = { stdout: Position; stderr: Position };
export const BEGINNING: Positions = { stdout: { at: '', count: 0 }, stderr: { at: '', count: 0 } };

/** `bytes`: of the text with its line end. */
export type FoldedLine = RunnerLine & { bytes: number };

type Pending = {
  /** Of the first frame. */
  at: string;
  parts: Buffer[];
  bytes: number;
  cut: boolean;
  position: Position;
};

export type Frames = {
  /** Takes what has come, in pieces of any size. @returns the lines that it completes */
  take(chunk: Buffer): FoldedLine[];
  /** The log is at its end: lines without a newline are complete. */
  end(): FoldedLine[];
  /** After the last line that was returned. */
  position(): Positions;
};

/** `from`: frames up to there are left out, although the engine sends them again. */
export function readFrames(from: Positions): Frames {
  /** A header or payload that has not come to its end; at most 16 KiB and a little. */
  let rest: Buffer = Buffer.alloc(0);
  const done = { stdout: { ...from.stdout }, stderr: { ...from.stderr } };
  const pending: { stdout?: Pending; stderr?: Pending } = {};
  /** How many frames with the time of `from` were met again. */
  const met = { stdout: 0, stderr: 0 };

  function isSeen(stream: 'stdout' | 'stderr', at: string): boolean {
    const { at: last, count } = from[stream];
    if (at !== last) return at < last;
    met[stream]++;
    return met[stream] <= count;
  }

  function complete(stream: 'stdout' | 'stderr', line: Pending): FoldedLine {
    pending[stream] = undefined;
    done[stream] = line.position;
    return {
      timestamp: new Date(`${line.at.slice(0, 23)}Z`),
      stream,
      message: messageOf(Buffer.concat(line.parts).toString('utf8'), line.cut),
      bytes: line.bytes + 1,
    };
  }

  function frame(payload: Buffer, stream: 'stdout' | 'stderr'): FoldedLine | undefined {
    const space = payload.indexOf(SPACE);
    const at = padded(payload.toString('latin1', 0, space));
    if (isSeen(stream, at)) return undefined;
    const ends = payload[payload.length - 1] === NEWLINE;
    const text = payload.subarray(space + 1, ends ? payload.length - 1 : payload.length);
    const before = pending[stream]?.position ?? done[stream];
    const position = { at, count: before.at === at ? before.count + 1 : 1 };
    const line = pending[stream] ?? { at, parts: [], bytes: 0, cut: false, position };
    line.position = position;
    const room = MAX_LINE - line.bytes;
    const kept = text.length > room ? text.subarray(0, room) : text;
    if (text.length > room) line.cut = true;
    if (kept.length > 0) {
      // What is complete at once is not copied.
      line.parts.push(ends ? kept : Buffer.from(kept));
      line.bytes += kept.length;
    }
    if (ends) return complete(stream, line);
    pending[stream] = line;
    return undefined;
  }

  return {
    take(chunk) {
      const lines: FoldedLine[] = [];
      const bytes = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk;
      let offset = 0;
      while (bytes.length - offset >= HEADER) {
        const end = offset + HEADER + bytes.readUInt32BE(offset + 4);
        if (bytes.length < end) break;
        const stream = bytes[offset] === STDERR ? 'stderr' : 'stdout';
        const line = frame(bytes.subarray(offset + HEADER, end), stream);
        if (line) lines.push(line);
        offset = end;
      }
      rest = Buffer.from(bytes.subarray(offset));
      return lines;
    },
    end() {
      return (['stdout', 'stderr'] as const).flatMap((stream) => {
        const line = pending[stream];
        return line ? [complete(stream, line)] : [];
      });
    },
    position: () => ({ stdout: { ...done.stdout }, stderr: { ...done.stderr } }),
  };
}

/** Engines leave out zeros at the end. */
function padded(time: string): string {
  if (time.length === STAMP) return time;
  const [seconds = '', fraction = ''] = time.slice(0, -1).split('.');
  return `${seconds}.${fraction.padEnd(9, '0')}Z`;
}
