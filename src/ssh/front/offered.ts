/**
 * What a client offers, read before the library answers it: of the ciphers that both sides know the client's first is taken,
 * and the stock client before 9.10 puts AES-CTR before AES-GCM, with which a packet takes less than half of the CPU. So a
 * client that can do GCM is offered nothing else. Either side may send its list whenever it likes (RFC 4253, 7.1).
 */
import type { Socket } from 'node:net';

export const IDENT = 'Loam';
const LINE = `SSH-2.0-${IDENT}\r\n`;
export const GCM = ['aes128-gcm@openssh.com', 'aes256-gcm@openssh.com'];

/** A client that waits for our list first is given all of it. */
const WAIT_MS = 1_000;
/** A line of identification and a packet, as the RFC bounds them. */
const MAX_BYTES = 255 + 35_000;
const KEXINIT = 20;
/** The length of the packet and of its padding, the kind of the message and its cookie. */
const BEFORE_LISTS = 4 + 1 + 1 + 16;

/**
 * Says who we are, and reads the first that the client says. The socket is then as it was, with all of that unread, but for
 * the line that was said: the library's own is dropped.
 * @returns whether the client can do GCM in both directions
 */
export async function canDoGcm(socket: Socket): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  let begun: Buffer = Buffer.alloc(0);
  const read = (chunk: Buffer) => {
    begun = Buffer.concat([begun, chunk]);
    const found = readsGcm(begun);
    if (found !== undefined || begun.length > MAX_BYTES) resolve(found ?? false);
  };
  const timer = setTimeout(() => resolve(false), WAIT_MS);
  const gone = () => resolve(false);
  socket.on('data', read).once('close', gone);
  socket.write(LINE);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    socket.off('data', read).off('close', gone).pause();
    if (begun.length > 0 && !socket.destroyed) socket.unshift(begun);
    dropFirst(socket);
  }
}

/** Undefined: more has to come. False also for what is no beginning of SSH, which the library refuses. */
function readsGcm(begun: Buffer): boolean | undefined {
  const start = begun.indexOf('\n') + 1;
  if (start === 0 || begun.length < start + BEFORE_LISTS) return undefined;
  const length = begun.readUInt32BE(start);
  if (length > MAX_BYTES || begun[start + 5] !== KEXINIT) return false;
  const end = start + 4 + length;
  if (begun.length < end) return undefined;
  let at = start + BEFORE_LISTS;
  const lists: string[][] = [];
  // Of key exchanges, of host keys, of ciphers to us and to the client.
  while (lists.length < 4) {
    if (at + 4 > end) return false;
    const next = at + 4 + begun.readUInt32BE(at);
    if (next > end) return false;
    lists.push(begun.toString('latin1', at + 4, next).split(','));
    at = next;
  }
  return lists.slice(2).every((list) => GCM.some((name) => list.includes(name)));
}

function dropFirst(socket: Socket): void {
  const { write } = socket;
  socket.write = ((line: unknown, ...more: never[]) => {
    socket.write = write;
    return `${line}` === LINE || write.call(socket, line as Buffer, ...more);
  }) as Socket['write'];
}
