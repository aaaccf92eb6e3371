/** The streams of one command, between its client and the server that runs it. */
import { connect, type Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import {
  type Exit,
  FrameReader,
  frame,
  jsonFrame,
  type LineRequest,
  type Opening,
  writeBytes,
} from '../frames.ts';

/** More than this, and what is made for a client waits until it takes some. */
const FULL = 2 ** 20;
/** What is read at once of a line: twice what git writes at once. */
const LINE_BYTES = 2 ** 17;
/** Much shorter than the silence after which the server ends a command. */
const MOVED_MS = 2_000;

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

/** Carries them until the client has closed the channel; then `done` is called. */
export function carry(
  { channel, socket, gateway, opening, stalledMs, stalled }: Carried,
  done: () => void,
): void {
  const server = connect(gateway);
  /** Where the output comes from when it comes without frames. */
  let line: Socket | undefined;
  let isOver = false;
  let isFull = false;
  /** What the program ended with, while its last bytes are still on their way. */
  let ending: Exit | undefined;
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
    line?.resume();
  };
  const give = (to: ServerChannel | ServerChannel['stderr'], piece: Buffer) => {
    // The library writes each packet of 32 KB by itself.
    socket.cork();
    to.write(piece);
    socket.uncork();
    // Of what came with this piece more may follow before the pause.
    if (isFull || hasRoom()) return;
    isFull = true;
    server.pause();
    line?.pause();
    // A paused socket does not see that the server has ended the command, so it is seen here that nothing goes on.
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
    // A slow client may need minutes for what waits for it. It closes the channel when it has everything.
    watch = watchProgress({ channel, socket }, stalledMs, stalled);
    channel.end();
    // Of a channel that waits for the server the library would not tell that the client has closed it.
    channel.resume();
  };
  const openLine = ({ ticket }: LineRequest) => {
    const buffer = Buffer.allocUnsafeSlow(LINE_BYTES);
    const callback = (bytes: number) => {
      const piece = buffer.subarray(0, bytes);
      // What the window has room for the library copies at once; the rest it keeps, while this is read into again.
      const isCopied = channel.writableLength === 0 && windowOf(channel) >= bytes;
      give(channel, isCopied ? piece : Buffer.from(piece));
      return true;
    };
    const own = connect({ path: gateway, onread: { buffer, callback } });
    line = own;
    own.write(jsonFrame('ticket', { ticket } satisfies LineRequest));
    // Why it broke off the server knows, which says how the command ended.
    own.on('error', () => {});
    let most = 0;
    const telling = setInterval(() => {
      const taken = own.bytesRead - channel.writableLength - socket.writableLength;
      if (taken > most && server.writable) server.write(jsonFrame('moved', null));
      most = Math.max(most, taken);
    }, MOVED_MS);
    own.once('close', () => {
      clearInterval(telling);
      if (ending) end(ending.code);
    });
  };
  const reader = new FrameReader({
    bytes: (kind, piece) => give(kind === 'data' ? channel : channel.stderr, piece),
    json(kind, value) {
      if (kind === 'line' && !line && !isOver) openLine(value as LineRequest);
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

/** How much the client takes now. */
function windowOf(channel: ServerChannel): number {
  return (channel as unknown as { outgoing: { window: number } }).outgoing.window;
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
