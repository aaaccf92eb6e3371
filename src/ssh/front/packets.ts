/**
 * Data of a channel in packets of AES-GCM, encrypted from where they were read, which leaves out what the library does with
 * each packet: two copies, random bytes, five pieces of memory. It writes into the state of the library (`ssh2`, whose version
 * is pinned for it), so that its packets and the library's follow one another.
 */
import { createCipheriv, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import type { Connection, ServerChannel } from 'ssh2';

/** What has to be free before the bytes that are sent, and after them. */
export const BEFORE = 16;
export const AFTER = 32;

const CHANNEL_DATA = 94;
/** In front of the data: the length of the padding, the kind, the channel, the length of the data. */
const HEAD = 1 + 1 + 4 + 4;
const BLOCK = 16;
const LEAST_PADDING = 4;
/**
 * The stock client, whose window is 2 MiB, tells of each 96 KB that it has taken. This much is sent at once, or what there is
 * after a while.
 */
const ENOUGH = 2 ** 18;
const ENOUGH_MS = 20;
/** To pad with. It need not be secret, nor other bytes in each packet. */
const PADDING = randomBytes(AFTER);
/** Smaller ones may lie in memory that others share. */
const WORTH_FREEING = 16 * 1024;

/** Of the library. */
type Cipher = {
  _encSSLName: 'aes-128-gcm' | 'aes-256-gcm';
  _encKey: Buffer;
  _encIV: Buffer;
  _dead: boolean;
  outSeqno: number;
};
type Protocol = {
  _cipher: Partial<Cipher>;
  /** There while keys are exchanged. */
  _kexinit: unknown;
  _handlers: { CHANNEL_WINDOW_ADJUST(protocol: unknown, channel: number, amount: number): void };
};
type Channel = {
  incoming: { id: number };
  outgoing: { id: number; window: number; packetSize: number; state: string };
};

export type Packets = {
  /** Whether they can be sent now: not with another cipher, nor while keys are exchanged, nor before what the channel keeps. */
  readonly areFit: boolean;
  /** What the client would take. */
  readonly window: number;
  /** Sends `buffer` from `start` to `end`, or what the window has room for, and overwrites it. @returns how many bytes */
  send(buffer: Buffer, start: number, end: number): number;
  /** Called when the client takes more, once that is worth a turn, until it is called with undefined. */
  onRoom(tell: (() => void) | undefined): void;
};

export function packetsOf(client: Connection, channel: ServerChannel, socket: Socket): Packets {
  const protocol = (client as unknown as { _protocol: Protocol })._protocol;
  const { incoming, outgoing } = channel as unknown as Channel;
  const rooms = roomsOf(protocol);
  let late: NodeJS.Timeout | undefined;
  return {
    get areFit() {
      const { _cipher, _kexinit } = protocol;
      return (
        channel.writableLength === 0 &&
        outgoing.state === 'open' &&
        _kexinit === undefined &&
        isGcm(_cipher) &&
        !_cipher._dead &&
        socket.writable
      );
    },
    get window() {
      return outgoing.window;
    },
    send(buffer, start, end) {
      const cipher = protocol._cipher as Cipher;
      const to = start + Math.min(end - start, outgoing.window);
      const sealed: Buffer[] = [];
      socket.cork();
      for (let at = start; at < to; ) {
        const next = Math.min(at + outgoing.packetSize, to);
        const { length, body, tag } = seal(cipher, buffer, at, next, outgoing.id);
        sealed.push(body);
        socket.write(length);
        socket.write(body);
        // Left to the collector, what a clone takes of memory would start it several times a second.
        socket.write(tag, next < to ? undefined : (error) => error || sealed.forEach(free));
        at = next;
      }
      socket.uncork();
      outgoing.window -= to - start;
      return to - start;
    },
    onRoom(tell) {
      clearTimeout(late);
      late = undefined;
      if (!tell) return void rooms.delete(incoming.id);
      rooms.set(incoming.id, () => {
        if (outgoing.window >= ENOUGH) return tell();
        late ??= setTimeout(() => {
          late = undefined;
          tell();
        }, ENOUGH_MS);
      });
    },
  };
}

type Sealed = { length: Buffer; body: Buffer; tag: Buffer };

/** One packet of the bytes from `at` to `end`. What lies before them is overwritten. */
function seal(cipher: Cipher, buffer: Buffer, at: number, end: number, channel: number): Sealed {
  const open = HEAD + end - at;
  const rest = BLOCK - (open % BLOCK);
  const padding = rest < LEAST_PADDING ? rest + BLOCK : rest;
  const start = at - HEAD;
  buffer[start] = padding;
  buffer[start + 1] = CHANNEL_DATA;
  buffer.writeUInt32BE(channel, start + 2);
  buffer.writeUInt32BE(end - at, start + 6);
  // The next packet begins where this is padded.
  const next = Buffer.from(buffer.subarray(end, end + padding));
  PADDING.copy(buffer, end, 0, padding);
  const { _encSSLName, _encIV } = cipher;
  const length = lengthOf(open + padding);
  const gcm = createCipheriv(_encSSLName, keyOf(cipher), _encIV).setAAD(length);
  const body = gcm.update(buffer.subarray(start, end + padding));
  gcm.final();
  next.copy(buffer, end);
  increment(_encIV);
  cipher.outSeqno = (cipher.outSeqno + 1) >>> 0;
  return { length, body, tag: gcm.getAuthTag() };
}

/** The library's state of AES-GCM; it keeps another where its native module was built. */
function isGcm({ _encSSLName, _encKey, _encIV }: Partial<Cipher>): boolean {
  const isNamed = _encSSLName === 'aes-128-gcm' || _encSSLName === 'aes-256-gcm';
  return isNamed && _encKey !== undefined && _encIV?.length === 12;
}

const keys = new WeakMap<Cipher, KeyObject>();

function keyOf(cipher: Cipher): KeyObject {
  let key = keys.get(cipher);
  if (!key) {
    key = createSecretKey(cipher._encKey);
    keys.set(cipher, key);
  }
  return key;
}

let [lastLength, lastBytes] = [0, Buffer.alloc(4)];

/** Most packets are of one length. */
function lengthOf(bytes: number): Buffer {
  if (bytes !== lastLength) {
    lastBytes = Buffer.alloc(4);
    lastBytes.writeUInt32BE(bytes);
    lastLength = bytes;
  }
  return lastBytes;
}

/** Of its last eight bytes, as a number (RFC 5647, 7.1). */
function increment(iv: Buffer): void {
  iv.writeBigUInt64BE(BigInt.asUintN(64, iv.readBigUInt64BE(4) + 1n), 4);
}

function free({ buffer }: Buffer): void {
  // To nothing: the memory goes at once.
  if (buffer instanceof ArrayBuffer && buffer.byteLength >= WORTH_FREEING) buffer.transfer(0);
}

const roomsOfProtocols = new WeakMap<Protocol, Map<number, () => void>>();

/** By channels of a connection, who is told when the client takes more. */
function roomsOf(protocol: Protocol): Map<number, () => void> {
  const known = roomsOfProtocols.get(protocol);
  if (known) return known;
  const rooms = new Map<number, () => void>();
  roomsOfProtocols.set(protocol, rooms);
  const { CHANNEL_WINDOW_ADJUST: adjust } = protocol._handlers;
  protocol._handlers.CHANNEL_WINDOW_ADJUST = (own, channel, amount) => {
    adjust(own, channel, amount);
    rooms.get(channel)?.();
  };
  return rooms;
}
