/**
 * Webhook endpoints for `bench/webhooks.ts`, as a separate process: `node bench/receiver.ts CERT KEY`. It responds with 204 over
 * TLS and reports to its parent when each message arrived. Requests to paths that begin with /hang never get a response.
 */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';

/** `at`: the arrival, as from `Date.now()`; `event`: the `timestamp` of the body. */
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
// In batches, so that the reports have little influence on the measurement.
setInterval(() => {
  if (arrivals.length > 0) process.send?.(arrivals);
  arrivals = [];
}, 50);
process.on('disconnect', () => server.closeAllConnections());
process.on('disconnect', () => process.exit());
