/** The port: taken at the start, given back at the end. */
import type { IncomingMessage, Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Express } from 'express';
import { type Config, ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import {
  type ConnectionLimits,
  createHttpServer,
  type HeadersFor,
} from '../../platform/web/connections.ts';

/** Requests still running after this are cut off when the server stops. */
const DRAIN_MS = 10_000;
const CLOSE_IDLE_MS = 50;
/** A fault that keeps connections from being accepted comes again with each round of the event loop: it is logged so often. */
const TELL_FAULT_MS = 10_000;

/** Where a server listens, and the variables that say it. */
export type ListenAddress = { host: string; port: number; names?: { host: string; port: string } };

/** @returns the address, without a trailing slash. @throws ConfigError when it cannot listen there. */
export async function listen(server: Server, place: ListenAddress, log: Logger): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const refuse = (error: Error) => reject(listenFault(error, place));
  server.once('error', refuse);
  server.listen(place.port, place.host, resolve);
  await promise;
  // A connection that cannot be accepted, without a free descriptor or memory, is an `error` of the server; one
  // without a listener would end it.
  let toldAt = Number.NEGATIVE_INFINITY;
  server.off('error', refuse).on('error', (error) => {
    if (performance.now() - toldAt < TELL_FAULT_MS) return;
    toldAt = performance.now();
    log.error({ err: error }, 'connections cannot be accepted');
  });
  const { port } = server.address() as AddressInfo;
  const host = place.host.includes(':') ? `[${place.host}]` : place.host;
  return `http://${host}:${port}`;
}

function listenFault(
  { code, message }: NodeJS.ErrnoException,
  { host, port, names = { host: 'HOST', port: 'PORT' } }: ListenAddress,
): Error {
  switch (code) {
    case 'EADDRINUSE':
      return new ConfigError(`${names.port}: ${port} is in use on ${host}`);
    case 'EACCES':
      return new ConfigError(
        `${names.port}: no right to listen on ${port}; those from 1024 need none`,
      );
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return new ConfigError(`${names.host}: there is no host ${host}`);
    case 'EADDRNOTAVAIL':
      return new ConfigError(`${names.host}: ${host} is no address of this machine`);
    default:
      return new ConfigError(
        `${names.host}, ${names.port}: cannot listen on ${host}, port ${port}: ${message}`,
      );
  }
}

/** Lets running requests finish; streams and idle connections are closed. */
export async function drain(server: Server): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  // A connection whose answer ends after `close` would stay open for the time that is given to idle ones.
  const closing = setInterval(() => server.closeIdleConnections(), CLOSE_IDLE_MS);
  const timer = setTimeout(() => server.closeAllConnections(), DRAIN_MS);
  await closed;
  clearInterval(closing);
  clearTimeout(timer);
}

/** The port of the service, and who answers on it: one handler during the start, another after it. */
type Serve = (req: IncomingMessage, socket: Duplex) => void;

type Port = Disposable & {
  server: Server;
  address: string;
  /** From now on in place of the handler before. */
  answer(handler: Express): void;
  /** From now on `serve` gets the sockets of requests that `isOurs` takes, which ask for another protocol. */
  converse(isOurs: (req: IncomingMessage) => boolean, serve: Serve): void;
};

/**
 * The first thing of all: whoever asks is answered from now on, and a port that is taken stops the start before
 * anything was begun.
 */
export async function takePort(
  config: Config,
  {
    log,
    headersFor,
    handler,
    limits,
  }: {
    log: Logger;
    headersFor: HeadersFor;
    handler: Express;
    limits?: Partial<ConnectionLimits>;
  },
): Promise<Port> {
  let isUpgrade = (_req: IncomingMessage) => false;
  const server = createHttpServer(headersFor, limits, (req) => isUpgrade(req));
  let current = handler;
  server.on('request', (req, res) => current(req, res));
  const address = await listen(server, config, log);
  return {
    server,
    address,
    answer(next) {
      current = next;
    },
    converse(isOurs, serve) {
      server.on('upgrade', (req, socket, beginning) => {
        if (beginning.length > 0) socket.unshift(beginning);
        serve(req, socket);
      });
      isUpgrade = isOurs;
    },
    [Symbol.dispose]() {
      server.close();
      server.closeAllConnections();
    },
  };
}
