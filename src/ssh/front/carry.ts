/** The streams of one command, between its client and the server that runs it. */
import { connect, type Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import { type Exit, FrameReader, frame, jsonFrame, type Opening, writeBytes } from '../frames.ts';

/** More than this, and what is made for a client waits until it takes some. */
const FULL = 2 ** 20;

type Carried = {
  channel: ServerChannel;
  socket: Socket;
  gateway: string;
  opening: Opening;
  /** How long a client may take nothing of what waits for it. */
  stalledMs: number;
  /** It has taken nothing for so long: its connection is to be ended. */
  stalled(): void;
};

/** Carries them until both ends are through; then `done` is called. It may be called twice. */
export function carry(
  { channel, socket, gateway, opening, stalledMs, stalled }: Carried,
  done: () => void,
): void {
  const server = connect(gateway);
  let isOver = false;
  let isFull = false;
  let watch: NodeJS.Timeout | undefined;
  /** Both have to have room: the client's window, and the connection. */
  const hasRoom = () => !channel.writableNeedDrain && socket.writableLength < FULL;
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
  const end = (code: number) => {
    if (isOver) return;
    isOver = true;
    server.end();
    channel.exit(code);
    channel.end();
    // Of a channel that waits for the server the library would not tell that the client has closed it.
    channel.resume();
    done();
  };
  const reader = new FrameReader({
    bytes(kind, piece) {
      const to = kind === 'data' ? channel : channel.stderr;
      // The library writes each packet of 32 KB by itself.
      socket.cork();
      to.write(piece);
      socket.uncork();
      // Of what came with this piece more may follow before the pause.
      if (isFull || hasRoom()) return;
      isFull = true;
      server.pause();
      // A paused socket does not see that the server has ended the command, so it is seen here that nothing goes on.
      watch = watchProgress({ channel, socket }, stalledMs, stalled);
      channel.on('drain', goOn);
      socket.on('drain', goOn);
    },
    json(kind, value) {
      if (kind === 'exit') end((value as Exit).code);
    },
  });
  server.write(jsonFrame('open', opening));
  channel.on('data', (chunk: Buffer) => {
    if (isOver || server.destroyed) return;
    if (!writeBytes(server, 'data', chunk)) channel.pause();
  });
  server.on('drain', () => channel.resume());
  channel.on('end', () => {
    if (!isOver && !server.destroyed)
      for (const part of frame('end', Buffer.alloc(0))) server.write(part);
  });
  channel.on('error', () => {});
  channel.stderr.on('error', () => {});
  channel.once('close', () => {
    isOver = true;
    server.destroy();
    done();
  });
  server.on('data', (chunk: Buffer) => {
    try {
      reader.take(chunk);
    } catch {
      server.destroy();
    }
  });
  server.on('error', () => {});
  server.once('close', () => {
    // The connection outlives the command, and must not keep what the client has left unread.
    release();
    if (isOver) return;
    channel.stderr.write('loam: the server has broken off\n');
    end(1);
  });
}

/** Calls `stalled` when a channel that is full, or its connection, has sent nothing within `ms`. */
function watchProgress(
  { channel, socket }: Pick<Carried, 'channel' | 'socket'>,
  ms: number,
  stalled: () => void,
): NodeJS.Timeout {
  // What the window keeps back waits in the channel, else it waits in the connection.
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
