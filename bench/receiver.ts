/**
 * Endpoints of webhooks for `bench/webhooks.ts`, in a process of its own: `node bench/receiver.ts CERT KEY`. It
 * answers 204 over TLS and tells its parent when each message arrived; a path that begins with /hang never gets an
 * answer.
 */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';

/** `at`: as `Date.now()`; `event`: that of the body's `timestamp`. */
export type Arrival = { id: string; path: string; at: number; event: number };

const [cert = '', key = ''] = process.argv.slice(2);
let arrivals: Arrival[] = [];

const server = createServer(
  { cert: readFileSync(cert), key: readFileSync(key) },
  (request, response) => {
    const path = request.url ?? '';
    const chunks: Buffer[] = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      const at = performance.timeOrigin + performance.now();
      if (path.startsWith('/hang')) return;
      response.writeHead(204).end();
      const [, timestamp = ''] =
        /"timestamp":"([^"]+)"/.exec(Buffer.concat(chunks).toString()) ?? [];
      const id = `${request.headers['webhook-id']}`;
      arrivals.push({ id, path, at, event: Date.parse(timestamp) });
    });
    request.on('error', () => {});
  },
);
server.on('tlsClientError', () => {});
server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
// In batches, so that telling takes little of what is measured.
setInterval(() => {
  if (arrivals.length > 0) process.send?.(arrivals);
  arrivals = [];
}, 50);
process.on('disconnect', () => server.closeAllConnections());
process.on('disconnect', () => process.exit());
