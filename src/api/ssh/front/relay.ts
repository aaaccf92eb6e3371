/** Relays the streams of one command between its client and the server that runs it. */
import type { EventEmitter } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import {
  type Exit,
  encodeFrame,
  encodeJsonFrame,
  FrameReader,
  LOST_EXIT,
  MAX_JSON_BYTES,
  type TerminalSize,
  writeFrame,
} from '../../../platform/frames.ts';
import type { ExecRequest } from '../requests.ts';

/** Commands are paused while their SSH connection has more unsent bytes. */
const MAX_BUFFERED_BYTES = 2 ** 20;
const REFUSED_EXIT = 1;

/** A channel that the client wants for a port of a job, and that is opened once the port was reached. */
export type PortChannel = { accept(): ServerChannel | undefined; reject(): void };

type RelayedCommand = {
  channel: ServerChannel | PortChannel;
  /** The TCP connection of the client. */
  clientSocket: Socket;
  /** Path of the server's Unix socket. */
  gatewayPath: string;
  request: ExecRequest;
  /** Emits `resize` with the new size of the client's terminal. */
  resizes?: EventEmitter<{ resize: [TerminalSize] }>;
  /** How long the client may read none of the data buffered for it. */
  stalledMs: number;
  /** Called when the client has read nothing for `stalledMs`; must close the connection. */
  onStalled(): void;
  /** Called when the server violates the protocol; the command then fails. */
  onInvalidFrame(error: Error): void;
};

function isPort(channel: ServerChannel | PortChannel): channel is PortChannel {
  return 'accept' in channel;
}

/** Relays until the client has closed the channel, then calls `done`. */
export class CommandRelay {
  readonly #command: RelayedCommand;
  readonly #done: () => void;
  /** The connection to the gateway. */
  readonly #server: Socket;
  /** Undefined until the port was reached. */
  #channel: ServerChannel | undefined;
  /** Whether the command has ended or the client has closed the channel. Output may still be buffered. */
  #hasEnded = false;
  #isFull = false;
  #stallTimer: NodeJS.Timeout | undefined;

  constructor(command: RelayedCommand, done: () => void) {
    this.#command = command;
    this.#done = done;
    this.#server = connect(command.gatewayPath);
  }

  start(): void {
    const { request, channel } = this.#command;
    const frame = encodeJsonFrame('exec', request);
    if (!isPort(channel)) this.#relayInput(channel);
    this.#relayOutput();
    if (frame.length <= MAX_JSON_BYTES) this.#server.write(frame);
    else {
      if (!isPort(channel))
        channel.stderr.write('loam: The command is too long; pass it as input\n');
      this.#end(REFUSED_EXIT);
    }
  }

  /** The client has disconnected. */
  disconnect(): void {
    this.#server.destroy();
  }

  #relayInput(channel: ServerChannel): void {
    this.#channel = channel;
    const server = this.#server;
    channel.on('data', (chunk: Buffer) => {
      if (this.#hasEnded || server.destroyed) return;
      if (!writeFrame(server, 'data', chunk)) channel.pause();
    });
    let size: TerminalSize | undefined;
    const sendSize = () => {
      if (!size || this.#hasEnded || server.destroyed || server.writableNeedDrain) return;
      server.write(encodeJsonFrame('resize', size));
      size = undefined;
    };
    server.on('drain', () => {
      channel.resume();
      sendSize();
    });
    this.#command.resizes?.on('resize', (newest) => {
      size = newest;
      sendSize();
    });
    channel.on('end', () => {
      if (!this.#hasEnded && !server.destroyed)
        for (const part of encodeFrame('end', Buffer.alloc(0))) server.write(part);
    });
    // Errors are ignored here and below, because `close` follows.
    channel.on('error', () => {});
    channel.stderr.on('error', () => {});
    channel.once('close', () => {
      this.#hasEnded = true;
      this.#stopWaitingForClient(channel);
      server.destroy();
      this.#done();
    });
  }

  #relayOutput(): void {
    const server = this.#server;
    const reader = new FrameReader({
      bytes: (kind, piece) => this.#receive(kind, piece),
      json: (kind, value) => {
        if (kind === 'exit') this.#end((value as Exit).code);
      },
    });
    server.on('data', (chunk: Buffer) => {
      try {
        reader.push(chunk);
      } catch (error) {
        this.#command.onInvalidFrame(error as Error);
        server.destroy();
      }
    });
    server.on('error', () => {});
    server.once('close', () => {
      if (this.#hasEnded) return;
      const { channel, request } = this.#command;
      if (!isPort(channel))
        channel.stderr.write('loam: The server closed the connection; try again\n');
      this.#end(request.shell ? LOST_EXIT : 1);
    });
  }

  #receive(kind: 'data' | 'stderr', piece: Buffer): void {
    const { channel } = this.#command;
    if (!isPort(channel)) this.#write(channel, kind, piece);
    else if (kind === 'data') {
      // The first byte shows that the port was reached (`jobs/shells/ports.ts`). Errors are warnings of the program that connects.
      if (this.#channel) this.#write(this.#channel, kind, piece);
      else this.#openPort(channel, piece.subarray(1));
    }
  }

  #openPort(port: PortChannel, firstBytes: Buffer): void {
    const channel = port.accept();
    if (!channel) {
      this.#server.destroy();
      return;
    }
    this.#relayInput(channel);
    if (firstBytes.length > 0) this.#write(channel, 'data', firstBytes);
  }

  #write(channel: ServerChannel, kind: 'data' | 'stderr', piece: Buffer): void {
    const { clientSocket } = this.#command;
    // ssh2 writes the parts of a packet one by one. Corking joins them into one write.
    clientSocket.cork();
    (kind === 'data' ? channel : channel.stderr).write(piece);
    clientSocket.uncork();
    // The rest of a chunk that was read before the pause still arrives here.
    if (this.#isFull || this.#hasRoom(channel)) return;
    this.#isFull = true;
    this.#server.pause();
    // A paused socket does not report that the server has ended the command, so a stalled client is detected here.
    this.#stallTimer = watchProgress(channel, this.#command);
    channel.on('drain', this.#continue);
    clientSocket.on('drain', this.#continue);
  }

  /** Whether both the client's window and the connection have room. */
  #hasRoom(channel: ServerChannel): boolean {
    const { clientSocket } = this.#command;
    return !channel.writableNeedDrain && clientSocket.writableLength < MAX_BUFFERED_BYTES;
  }

  readonly #continue = (): void => {
    const channel = this.#channel;
    if (!channel || !this.#hasRoom(channel)) return;
    this.#isFull = false;
    this.#stopWaitingForClient(channel);
    this.#server.resume();
  };

  #stopWaitingForClient(channel: ServerChannel): void {
    const { clientSocket } = this.#command;
    clearInterval(this.#stallTimer);
    channel.off('drain', this.#continue);
    clientSocket.off('drain', this.#continue);
  }

  #end(code: number): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    const channel = this.#channel;
    this.#server.end();
    if (!channel) {
      if (isPort(this.#command.channel)) this.#command.channel.reject();
      this.#done();
      return;
    }
    this.#stopWaitingForClient(channel);
    channel.exit(code);
    // A slow client may need minutes for buffered bytes. It closes the channel when it has all of them.
    this.#stallTimer = watchProgress(channel, this.#command);
    channel.end();
    // A paused channel would not report that the client has closed it.
    channel.resume();
  }
}

/** Calls `onStalled` when a full channel and its connection have sent nothing within `stalledMs`. */
function watchProgress(
  channel: ServerChannel,
  { clientSocket, stalledMs, onStalled }: RelayedCommand,
): NodeJS.Timeout {
  // Bytes that the client's window holds back are buffered in the channel, all others in the connection. The value is
  // only compared for equality: it changes when bytes are sent.
  const measureProgress = () =>
    channel.writableLength > 0
      ? -channel.writableLength
      : clientSocket.bytesWritten - clientSocket.writableLength;
  let before = measureProgress();
  return setInterval(() => {
    const now = measureProgress();
    if (now === before) onStalled();
    before = now;
  }, stalledMs);
}
