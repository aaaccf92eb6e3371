/**
 * The server's Unix socket for the SSH front process: it looks up the owners of keys, and runs the commands of clients
 * whose key was verified. Only the server's user can enter its folder.
 */

import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { findSshKeyOwner } from '../../identity/authenticate.ts';
import { encodeJsonFrame, readFirstFrame } from '../../platform/frames.ts';
import type { ExecRequest, KeyLookup, KeyOwner } from './requests.ts';
import { type Command, type Deps, type ForwardedCommand, serveCommand } from './session.ts';

/** Time that a stopping server gives running commands to end. */
const DRAIN_MS = 10_000;

type Gateway = AsyncDisposable & {
  /** Number of running commands. */
  readonly running: number;
  /** Runs a command that another server forwarded, because this one has the repository. */
  serve(forwarded: ForwardedCommand, socket: Duplex): void;
};

/** @param path of the socket, in a folder that only the server's user can enter */
export async function openGateway(services: Deps, path: string): Promise<Gateway> {
  const running = new Set<Duplex>();
  const sockets = new Set<Socket>();
  let onLastCommandEnd = () => {};
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
    // Ignored, because `close` follows.
    socket.on('error', () => {});
    answer(socket).catch((error) => {
      services.log.error({ err: error }, 'a request of the SSH front process failed');
      socket.destroy();
    });
  });

  async function answer(socket: Socket): Promise<void> {
    const first = await readFirstFrame(socket);
    if (!first) return void socket.destroy();
    if (first.kind === 'keyLookup') {
      const { fingerprint } = first.value as KeyLookup;
      const owner = await findSshKeyOwner(services, fingerprint);
      const keyOwner: KeyOwner = owner
        ? { id: owner.keyId, userId: owner.userId, name: owner.username }
        : null;
      socket.end(encodeJsonFrame('keyOwner', keyOwner));
    } else if (first.kind === 'exec') {
      const opening = first.value as ExecRequest;
      await run({ opening, requestId: randomUUID(), isForwarded: false }, socket);
    } else socket.destroy();
  }

  function run(command: Command, socket: Duplex): Promise<void> {
    // Shells do not end by themselves, and are ended before.
    if (command.opening.shell) return serveCommand(services, command, socket);
    running.add(socket);
    socket.once('close', () => {
      if (running.delete(socket) && running.size === 0) onLastCommandEnd();
    });
    return serveCommand(services, command, socket);
  }

  // A killed server leaves its socket file.
  await rm(path, { force: true });
  server.listen(path);
  await once(server, 'listening');
  server.on('error', (error) =>
    services.log.error({ err: error }, 'the socket for the SSH front process failed'),
  );
  return {
    get running() {
      return running.size;
    },
    serve(forwarded, socket) {
      socket.on('error', () => {});
      run({ ...forwarded, isForwarded: true }, socket);
    },
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      const drained = new AbortController();
      onLastCommandEnd = () => drained.abort();
      if (running.size > 0) await delay(DRAIN_MS, undefined, drained).catch(() => {});
      for (const socket of [...sockets, ...running]) socket.destroy();
      await closed;
    },
  };
}
