/** The port of the service, and who answers on it: one handler during the start, another after it. */
import type { Server } from 'node:http';
import type { Express } from 'express';
import type { Config } from '../config.ts';
import type { Logger } from '../log.ts';
import { type ConnectionLimits, type HeadersFor, openServer } from './connections.ts';
import { listen } from './listening.ts';

export type Port = Disposable & {
  server: Server;
  address: string;
  /** From now on in place of the handler before. */
  answer(handler: Express): void;
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
  const server = openServer(headersFor, limits);
  let current = handler;
  server.on('request', (req, res) => current(req, res));
  const address = await listen(server, config, log);
  return {
    server,
    address,
    answer(next) {
      current = next;
    },
    [Symbol.dispose]() {
      server.close();
      server.closeAllConnections();
    },
  };
}
