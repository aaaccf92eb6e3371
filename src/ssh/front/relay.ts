/** Relays the streams of one command between its client and the server that runs it. */
import { connect, type Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import { type Exit, FrameReader, encodeFrame, encodeJsonFrame, type ExecRequest, writeFrame } from '../frames.ts';

/** A connection with more unsent bytes pauses its commands. */
const MAX_BUFFERED = 2 ** 20;

type RelayedCommand = {
  channel: ServerChannel;
  socket: Socket;
  gateway: string;
  opening: ExecRequest;
  /** Maximum time that a client reads none of the buffered data. */
  stalledMs: number;
  /** Called after that time, to close the connection. */
  stalled(): void;
};

/** Relays until the client has closed the channel, then calls `done`. */
export function relayCommand(
  { channel, socket, gateway, opening, stalledMs, stalled }: RelayedCommand,
  done: () => void,
): void {
  const server = connect(gateway);
  let isOver = false;
  let isFull = false;
  let watch: NodeJS.Timeout | undefined;
  /** Whether both the client's window and the connection have room. */
  const hasRoom = () => !channel.writableNeedDrain && socket.writableLength < MAX_BUFFERED;
  const release = () => {
    clearInterval(watch);
    channel.off('drain', goOn);
    socket.off('drain', goOn);
  };
  const goOn = () => {
    if (!hasRoom()) return;
    isFull = false;
    release();
    server.resume();
  };
  const give = (to: ServerChannel | ServerChannel['stderr'], piece: Buffer) => {
    // ssh2 writes the parts of a packet one by one.
    socket.cork();
    to.write(piece);
    socket.uncork();
    // The rest of a chunk that was read before the pause still arrives here.
    if (isFull || hasRoom()) return;
    isFull = true;
    server.pause();
    // A paused socket does not report that the server has ended the command, so a stalled client is detected here.
    watch = watchProgress({ channel, socket }, stalledMs, stalled);
    channel.on('drain', goOn);
    socket.on('drain', goOn);
  };
  const end = (code: number) => {
    if (isOver) return;
    isOver = true;
    release();
    server.end();
    channel.exit(code);
    // A slow client may need minutes for the bytes that are still buffered. It closes the channel when it has all of them.
    watch = watchProgress({ channel, socket }, stalledMs, stalled);
    channel.end();
    // A paused channel would not report that the client has closed it.
    channel.resume();
  };
  const reader = new FrameReader({
    bytes: (kind, piece) => give(kind === 'data' ? channel : channel.stderr, piece),
    json(kind, value) {
      if (kind === 'exit') end((value as Exit).code);
    },
  });
  server.write(encodeJsonFrame('open', opening));
  channel.on('data', (chunk: Buffer) => {
    if (isOver || server.destroyed) return;
    if (!writeFrame(server, 'data', chunk)) channel.pause();
  });
  server.on('drain', () => channel.resume());
  channel.on('end', () => {
    if (!isOver && !server.destroyed)
      for (const part of encodeFrame('end', Buffer.alloc(0))) server.write(part);
  });
  channel.on('error', () => {});
  channel.stderr.on('error', () => {});
  channel.once('close', () => {
    isOver = true;
    release();
    server.destroy();
    done();
  });
  server.on('data', (chunk: Buffer) => {
    try {
      reader.push(chunk);
    } catch {
      server.destroy();
    }
  });
  server.on('error', () => {});
  server.once('close', () => {
    if (isOver) return;
    channel.stderr.write('loam: The server closed the connection; try again\n');
    end(1);
  });
}

/** Calls `stalled` when a full channel and its connection have sent nothing within `ms`. */
function watchProgress(
  { channel, socket }: Pick<RelayedCommand, 'channel' | 'socket'>,
  ms: number,
  stalled: () => void,
): NodeJS.Timeout {
  // Bytes that the client's window holds back wait in the channel, all others in the connection.
  const sent = () =>
    channel.writableLength > 0
      ? -channel.writableLength
      : socket.bytesWritten - socket.writableLength;
  let before = sent();
  return setInterval(() => {
    const now = sent();
    if (now === before) stalled();
    before = now;
  }, ms);
}
