/** Listens on the ports of the service, and closes them without cutting off running requests. */
import type { IncomingMessage, Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Express } from 'express';
import { type Config, ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import {
  type ConnectionLimits,
  createHttpServer,
  type RateLimitHeaders,
} from '../../platform/web/connections.ts';

/** When the server stops, it cuts off requests that are still running after this time. */
const DRAIN_MS = 10_000;
const CLOSE_IDLE_MS = 50;
/**
 * Connections that the kernel holds until this process accepts them; it takes the smaller of this and `net.core.somaxconn`. With
 * Node's 511, it reset a part of the connections of a client that opened a thousand event streams at once.
 */
const BACKLOG = 4_096;
/** A failure to accept connections repeats with each round of the event loop: it is logged at this interval. */
const LOG_FAILURE_MS = 10_000;

/** Where a server listens, and the variables that set host and port. */
type ListenAddress = { host: string; port: number; names?: { host: string; port: string } };

/** @returns the address, without a trailing slash. @throws ConfigError when it cannot listen on the port. */
export async function listen(server: Server, at: ListenAddress, log: Logger): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const fail = (error: Error) => reject(toConfigError(error, at));
  server.once('error', fail);
  server.listen({ port: at.port, host: at.host, backlog: BACKLOG }, resolve);
  await promise;
  // The server emits `error` when it has no file descriptor or memory to accept a connection. Without a listener, that
  // would end the process.
  let loggedAt = Number.NEGATIVE_INFINITY;
  server.off('error', fail).on('error', (error) => {
    if (performance.now() - loggedAt < LOG_FAILURE_MS) return;
    loggedAt = performance.now();
    log.error({ err: error }, 'cannot accept connections');
  });
  const { port } = server.address() as AddressInfo;
  const host = at.host.includes(':') ? `[${at.host}]` : at.host;
  return `http://${host}:${port}`;
}

function toConfigError(
  { code, message }: NodeJS.ErrnoException,
  { host, port, names = { host: 'HOST', port: 'PORT' } }: ListenAddress,
): Error {
  switch (code) {
    case 'EADDRINUSE':
      return new ConfigError(
        `${names.port}: ${port} is in use on ${host}; stop the program that uses it, or set another port`,
      );
    case 'EACCES':
      return new ConfigError(
        `${names.port}: no permission to listen on ${port}; use a port from 1024 on`,
      );
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return new ConfigError(
        `${names.host}: the host name ${host} cannot be resolved; use an address of this machine`,
      );
    case 'EADDRNOTAVAIL':
      return new ConfigError(
        `${names.host}: ${host} is not an address of this machine; use one of its addresses, or 0.0.0.0 for all`,
      );
    default:
      return new ConfigError(
        `${names.host}, ${names.port}: cannot listen on ${host}, port ${port}: ${message}`,
      );
  }
}

/** Waits until running requests end; closes streams and idle connections. */
export async function drain(server: Server): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  // A connection whose response ends after `close` would otherwise stay open for the whole keep-alive time.
  const closeIdle = setInterval(() => server.closeIdleConnections(), CLOSE_IDLE_MS);
  const cutOff = setTimeout(() => server.closeAllConnections(), DRAIN_MS);
  await closed;
  clearInterval(closeIdle);
  clearTimeout(cutOff);
}

type UpgradeHandler = (req: IncomingMessage, socket: Duplex) => void;

/** The port of the service. One handler serves requests during startup, another one afterwards. */
type Port = Disposable & {
  server: Server;
  address: string;
  /** Replaces the handler of requests. */
  setHandler(handler: Express): void;
  /** Hands the sockets of upgrade requests to `serve` when `isOurs` accepts the request. */
  onUpgrade(isOurs: (req: IncomingMessage) => boolean, serve: UpgradeHandler): void;
};

/**
 * The first step of startup: from now on clients get a response, and if the port is in use, startup fails before it has
 * changed anything.
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
    headersFor: RateLimitHeaders;
    handler: Express;
    limits?: Partial<ConnectionLimits>;
  },
): Promise<Port> {
  const upgrades: { isOurs: (req: IncomingMessage) => boolean; serve: UpgradeHandler }[] = [];
  const findUpgrade = (req: IncomingMessage) => upgrades.find(({ isOurs }) => isOurs(req));
  const server = createHttpServer(headersFor, limits, (req) => findUpgrade(req) !== undefined);
  server.on('upgrade', (req, socket, head) => {
    if (head.length > 0) socket.unshift(head);
    findUpgrade(req)?.serve(req, socket);
  });
  let current = handler;
  server.on('request', (req, res) => current(req, res));
  const address = await listen(server, config, log);
  return {
    server,
    address,
    setHandler(next) {
      current = next;
    },
    onUpgrade(isOurs, serve) {
      upgrades.push({ isOurs, serve });
    },
    [Symbol.dispose]() {
      server.close();
      server.closeAllConnections();
    },
  };
}
