/** The streams of one command, between its client and the server that runs it. */
import { connect, type Socket } from 'node:net';
import type { Connection, ServerChannel } from 'ssh2';
import {
  type Exit,
  FrameReader,
  frame,
  jsonFrame,
  type LineRequest,
  type Opening,
  writeBytes,
} from '../frames.ts';
import { type Line, openLine } from './line.ts';
import { packetsOf } from './packets.ts';

/** More than this, and what is made for a client waits until it takes some. */
const FULL = 2 ** 20;
/** Much shorter than the silence after which the server ends a command. */
const MOVED_MS = 2_000;

type Carried = {
  client: Connection;
  channel: ServerChannel;
  socket: Socket;
  gateway: string;
  opening: Opening;
  /** How long a client may take nothing of what waits for it. */
  stalledMs: number;
  /** It has taken nothing for so long: its connection is to be ended. */
  stalled(): void;
};

/** Carries them until the client has closed the channel; then `done` is called. */
export function carry(
  { client, channel, socket, gateway, opening, stalledMs, stalled }: Carried,
  done: () => void,
): void {
  const server = connect(gateway);
  /** Where the output comes from when it comes without frames. */
  let line: Line | undefined;
  const packets = packetsOf(client, channel, socket);
  let isOver = false;
  let isFull = false;
  /** What the program ended with, while its last bytes are still on their way. */
  let ending: Exit | undefined;
  let watch: NodeJS.Timeout | undefined;
  /** Both have to have room: the client's window, and the connection. */
  const hasRoom = () => !line?.kept && !channel.writableNeedDrain && socket.writableLength < FULL;
  /** Changes with what the client takes: what its window keeps back waits here, else it waits in the connection. */
  const sent = () => {
    if (line?.kept) return `of the line ${line.passed}`;
    if (channel.writableLength > 0) return `${channel.writableLength} left in the channel`;
    return `${socket.bytesWritten - socket.writableLength}`;
  };
  const release = () => {
    clearInterval(watch);
    packets.onRoom(undefined);
    channel.off('drain', goOn);
    socket.off('drain', goOn);
  };
  const goOn = () => {
    if (socket.writableLength < FULL) line?.goOn();
    if (!hasRoom()) return;
    isFull = false;
    release();
    server.resume();
    line?.resume();
  };
  const give = (to: ServerChannel | ServerChannel['stderr'], piece: Buffer) => {
    // The library writes each packet of 32 KB by itself.
    socket.cork();
    to.write(piece);
    socket.uncork();
    pauseWhenFull();
  };
  const pauseWhenFull = () => {
    // Of what came with this piece more may follow before the pause.
    if (isFull || hasRoom()) return;
    isFull = true;
    server.pause();
    line?.pause();
    // A paused socket does not see that the server has ended the command, so it is seen here that nothing goes on.
    watch = watchProgress(sent, stalledMs, stalled);
    packets.onRoom(goOn);
    channel.on('drain', goOn);
    socket.on('drain', goOn);
  };
  const end = (code: number) => {
    if (isOver) return;
    isOver = true;
    release();
    server.end();
    channel.exit(code);
    // A slow client may need minutes for what waits for it. It closes the channel when it has everything.
    watch = watchProgress(sent, stalledMs, stalled);
    channel.end();
    // Of a channel that waits for the server the library would not tell that the client has closed it.
    channel.resume();
  };
  const beginLine = (request: LineRequest) => {
    let most = 0;
    const telling = setInterval(() => {
      const taken = own.passed - channel.writableLength - socket.writableLength;
      if (taken > most && server.writable) server.write(jsonFrame('moved', null));
      most = Math.max(most, taken);
    }, MOVED_MS);
    const own = openLine({
      ...{ gateway, request, channel, packets },
      write: (piece) => give(channel, piece),
      read: pauseWhenFull,
      closed() {
        clearInterval(telling);
        if (ending) end(ending.code);
      },
    });
    line = own;
  };
  const reader = new FrameReader({
    bytes: (kind, piece) => give(kind === 'data' ? channel : channel.stderr, piece),
    json(kind, value) {
      if (kind === 'line' && !line && !isOver) beginLine(value as LineRequest);
      if (kind !== 'exit') return;
      ending = value as Exit;
      if (!line || line.closed) end(ending.code);
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
    release();
    server.destroy();
    line?.destroy();
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
    if (isOver || ending) return;
    line?.destroy();
    channel.stderr.write('loam: the server has broken off\n');
    end(1);
  });
}

/** Calls `stalled` when `sent` has not changed within `ms`. */
function watchProgress(sent: () => string, ms: number, stalled: () => void): NodeJS.Timeout {
  let before = sent();
  return setInterval(() => {
    const now = sent();
    if (now === before) stalled();
    before = now;
  }, ms);
}
