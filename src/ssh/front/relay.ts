/** Relays the streams of one command between its client and the server that runs it. */
import { connect, type Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import {
  type ExecRequest,
  type Exit,
  encodeFrame,
  encodeJsonFrame,
  FrameReader,
  writeFrame,
} from '../frames.ts';

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
export function relayCommand(command: RelayedCommand, done: () => void): void {
  new CommandRelay(command, done).start();
}

class CommandRelay {
  readonly #command: RelayedCommand;
  readonly #done: () => void;
  readonly #server: Socket;
  #isOver = false;
  #isFull = false;
  #watch: NodeJS.Timeout | undefined;

  constructor(command: RelayedCommand, done: () => void) {
    this.#command = command;
    this.#done = done;
    this.#server = connect(command.gateway);
  }

  start(): void {
    this.#server.write(encodeJsonFrame('open', this.#command.opening));
    this.#relayInput();
    this.#relayOutput();
  }

  #relayInput(): void {
    const { channel } = this.#command;
    const server = this.#server;
    channel.on('data', (chunk: Buffer) => {
      if (this.#isOver || server.destroyed) return;
      if (!writeFrame(server, 'data', chunk)) channel.pause();
    });
    server.on('drain', () => channel.resume());
    channel.on('end', () => {
      if (!this.#isOver && !server.destroyed)
        for (const part of encodeFrame('end', Buffer.alloc(0))) server.write(part);
    });
    channel.on('error', () => {});
    channel.stderr.on('error', () => {});
    channel.once('close', () => {
      this.#isOver = true;
      this.#stopWaiting();
      server.destroy();
      this.#done();
    });
  }

  #relayOutput(): void {
    const { channel } = this.#command;
    const server = this.#server;
    const reader = new FrameReader({
      bytes: (kind, piece) => this.#write(kind === 'data' ? channel : channel.stderr, piece),
      json: (kind, value) => {
        if (kind === 'exit') this.#end((value as Exit).code);
      },
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
      if (this.#isOver) return;
      channel.stderr.write('loam: The server closed the connection; try again\n');
      this.#end(1);
    });
  }

  #write(to: ServerChannel | ServerChannel['stderr'], piece: Buffer): void {
    const { channel, socket } = this.#command;
    // ssh2 writes the parts of a packet one by one.
    socket.cork();
    to.write(piece);
    socket.uncork();
    // The rest of a chunk that was read before the pause still arrives here.
    if (this.#isFull || this.#hasRoom()) return;
    this.#isFull = true;
    this.#server.pause();
    // A paused socket does not report that the server has ended the command, so a stalled client is detected here.
    this.#watch = watchProgress(this.#command);
    channel.on('drain', this.#continue);
    socket.on('drain', this.#continue);
  }

  /** Whether both the client's window and the connection have room. */
  #hasRoom(): boolean {
    const { channel, socket } = this.#command;
    return !channel.writableNeedDrain && socket.writableLength < MAX_BUFFERED;
  }

  readonly #continue = (): void => {
    if (!this.#hasRoom()) return;
    this.#isFull = false;
    this.#stopWaiting();
    this.#server.resume();
  };

  #stopWaiting(): void {
    const { channel, socket } = this.#command;
    clearInterval(this.#watch);
    channel.off('drain', this.#continue);
    socket.off('drain', this.#continue);
  }

  #end(code: number): void {
    if (this.#isOver) return;
    const { channel } = this.#command;
    this.#isOver = true;
    this.#stopWaiting();
    this.#server.end();
    channel.exit(code);
    // A slow client may need minutes for buffered bytes. It closes the channel when it has all of them.
    this.#watch = watchProgress(this.#command);
    channel.end();
    // A paused channel would not report that the client has closed it.
    channel.resume();
  }
}

/** Calls `stalled` when a full channel and its connection have sent nothing within `stalledMs`. */
function watchProgress({ channel, socket, stalledMs, stalled }: RelayedCommand): NodeJS.Timeout {
  // Bytes that the client's window holds back are buffered in the channel, all others in the connection.
  const sent = () =>
    channel.writableLength > 0
      ? -channel.writableLength
      : socket.bytesWritten - socket.writableLength;
  let before = sent();
  return setInterval(() => {
    const now = sent();
    if (now === before) stalled();
    before = now;
  }, stalledMs);
}
