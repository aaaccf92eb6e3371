/** The connection over which a program's output comes without frames, which goes to the client from where it was read. */
import { connect } from 'node:net';
import type { ServerChannel } from 'ssh2';
import { jsonFrame, type LineRequest } from '../frames.ts';
import { AFTER, BEFORE, type Packets } from './packets.ts';

/** What is read at once: more than a socket of the kernel holds by default. */
const LINE_BYTES = 2 ** 18;

export type Line = {
  /** What was read and not sent yet, because the client's window was closed. Nothing is read until it is sent. */
  readonly kept: number;
  /** Bytes that were read, without those that are kept. */
  readonly passed: number;
  readonly closed: boolean;
  /** Sends what is kept, or what the client takes of it. */
  goOn(): void;
  pause(): void;
  resume(): void;
  destroy(): void;
};

type Opened = {
  gateway: string;
  request: LineRequest;
  channel: ServerChannel;
  packets: Packets;
  /** Writes to the channel what cannot be sent in packets of ours. */
  write(piece: Buffer): void;
  /** Something was read. */
  read(): void;
  closed(): void;
};

export function openLine(opened: Opened): Line {
  const { gateway, request, channel, packets, write, read, closed } = opened;
  const whole = Buffer.allocUnsafeSlow(BEFORE + LINE_BYTES + AFTER);
  const buffer = whole.subarray(BEFORE, BEFORE + LINE_BYTES);
  let at = BEFORE;
  let end = BEFORE;
  const goOn = () => {
    if (at === end) return;
    if (packets.areFit) at += packets.send(whole, at, end);
    else {
      const piece = whole.subarray(at, end);
      // What the window has room for the library copies at once; the rest it keeps, while this is read into again.
      const isCopied = channel.writableLength === 0 && packets.window >= piece.length;
      at = end;
      write(isCopied ? piece : Buffer.from(piece));
    }
  };
  const callback = (bytes: number) => {
    [at, end] = [BEFORE, BEFORE + bytes];
    goOn();
    read();
    return true;
  };
  const own = connect({ path: gateway, onread: { buffer, callback } });
  own.write(jsonFrame('ticket', request));
  // Why it broke off the server knows, which says how the command ended.
  own.on('error', () => {});
  own.once('close', closed);
  return {
    get kept() {
      return end - at;
    },
    get passed() {
      return own.bytesRead - (end - at);
    },
    get closed() {
      return own.closed;
    },
    goOn,
    pause: () => void own.pause(),
    resume: () => void own.resume(),
    destroy: () => void own.destroy(),
  };
}
