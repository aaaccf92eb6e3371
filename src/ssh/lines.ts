/** Connections of the process that speaks SSH that belong to a command that runs, and carry the output of its program. */
import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';

/** The other end is a process of ours on this machine, which opens it at once. */
const OPENING_MS = 10_000;

export type Lines = {
  /** `line` is the connection that comes with the ticket. It rejects when none comes, and when `signal` aborts. */
  await(signal: AbortSignal): { ticket: string; line: Promise<Socket> };
  /** Gives a connection to who waits for it. @returns false: nobody does, and it is to be closed */
  take(ticket: string, socket: Socket): boolean;
};

export function createLines(): Lines {
  const awaited = new Map<string, (socket: Socket) => void>();
  return {
    await(signal) {
      const ticket = randomBytes(16).toString('base64url');
      const { promise, resolve, reject } = Promise.withResolvers<Socket>();
      const fail = () => reject(new Error('the process that speaks SSH has opened no line'));
      const late = setTimeout(fail, OPENING_MS);
      signal.addEventListener('abort', fail);
      if (signal.aborted) fail();
      awaited.set(ticket, resolve);
      const line = promise.finally(() => {
        clearTimeout(late);
        signal.removeEventListener('abort', fail);
        awaited.delete(ticket);
      });
      return { ticket, line };
    },
    take(ticket, socket) {
      const give = awaited.get(ticket);
      awaited.delete(ticket);
      give?.(socket);
      return give !== undefined;
    },
  };
}
