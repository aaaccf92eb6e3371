/** The port of the service, and who answers on it: one handler during the start, another after it. */
import type { IncomingMessage, Server } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Express } from 'express';
import type { Config } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import {
  type ConnectionLimits,
  type HeadersFor,
  openServer,
} from '../../platform/web/connections.ts';
import { listen } from './listening.ts';

type Serve = (req: IncomingMessage, socket: Duplex) => void;

export type Port = Disposable & {
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
  const server = openServer(headersFor, limits, (req) => isUpgrade(req));
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
