/** A program on the machine of a user, which gets the events of `loam listen` on loopback and without TLS. */
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

type Received = {
  path: string;
  headers: IncomingHttpHeaders;
  /** Names and values in turn, as they were sent. */
  rawHeaders: string[];
  body: string;
};

export type LocalReceiver = AsyncDisposable & { url: string; port: number; received: Received[] };

/** @param answer the status of each answer */
export async function startLocalReceiver(answer: () => number = () => 204): Promise<LocalReceiver> {
  const received: Received[] = [];
  const server = createServer((req, res) => {
    const chunks: Buffer[] = [];
    req.on('data', (chunk) => chunks.push(chunk));
    req.on('end', () => {
      const { url: path = '', headers, rawHeaders } = req;
      received.push({ path, headers, rawHeaders, body: Buffer.concat(chunks).toString() });
      res.writeHead(answer()).end('ok');
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    received,
    port,
    url: `http://127.0.0.1:${port}/hook?from=loam`,
    async [Symbol.asyncDispose]() {
      if (!server.listening) return;
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}
